"""Tells Spark of the format "shard_moves"."""

from broadsheet.spark_bridge.shard_tables.moves_format import ShardMovesFormat as DefaultSource

__all__ = ["DefaultSource"]
