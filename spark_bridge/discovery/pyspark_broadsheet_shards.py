"""Tells Spark of the format "shards"."""

from broadsheet.spark_bridge.shard_tables.shards_format import ShardsFormat as DefaultSource

__all__ = ["DefaultSource"]
