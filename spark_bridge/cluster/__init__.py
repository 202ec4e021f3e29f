"""Runs members on a Spark cluster, from the driver."""

from broadsheet.spark_bridge.cluster.cluster_conf import MemberSettings
from broadsheet.spark_bridge.cluster.membership import MemberInfo
from broadsheet.spark_bridge.cluster.shard_cluster import ShardCluster

__all__ = ["MemberInfo", "MemberSettings", "ShardCluster"]
