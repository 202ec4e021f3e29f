"""Runs shards on Spark: needs the extra `broadsheet[spark]`."""

from broadsheet.spark_bridge import ShardCluster

__all__ = ["ShardCluster"]
