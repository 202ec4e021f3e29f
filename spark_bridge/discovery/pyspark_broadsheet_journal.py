"""Tells Spark of the format "journal"."""

from broadsheet.spark_bridge.formats import JournalFormat as DefaultSource

__all__ = ["DefaultSource"]
