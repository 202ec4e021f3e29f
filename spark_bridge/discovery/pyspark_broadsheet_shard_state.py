"""Tells Spark of the format "shard_state"."""

from broadsheet.spark_bridge.shard_tables.state_format import ShardStateFormat as DefaultSource

__all__ = ["DefaultSource"]
