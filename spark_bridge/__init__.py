"""Spark bridge: members on executors, journals as DataFrames, and calls to shards from tasks.

Needs the extra `[spark]`. Names that are not exported here are internal and may change in any release.
"""

from typing import TYPE_CHECKING

from broadsheet.allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from broadsheet.spark_bridge.cluster.cluster_conf import MemberSettings
    from broadsheet.spark_bridge.cluster.membership import MemberInfo
    from broadsheet.spark_bridge.cluster.shard_cluster import Services, ShardCluster
    from broadsheet.spark_bridge.errors import (
        ClusterStartError,
        ClusterStoppedError,
        NoMemberError,
        PublishError,
        ScaleTimeoutError,
        ShardNotServedError,
        SparkBridgeError,
    )
    from broadsheet.spark_bridge.format_options import OptionError
    from broadsheet.spark_bridge.formats import register_formats
    from broadsheet.spark_bridge.member.application import Arguments
    from broadsheet.spark_bridge.publish import PublishTarget, publish_dataframe
    from broadsheet.spark_bridge.routing.heads import token_of_heads
    from broadsheet.spark_bridge.routing.member_list import MemberDirectory
    from broadsheet.spark_bridge.session import recommended_conf, start_session
    from broadsheet.spark_bridge.standalone import StandaloneCluster
    from broadsheet.spark_bridge.task_resolver import TaskResolver, token_accumulator

__all__ = [
    "Arguments",
    "ClusterStartError",
    "ClusterStoppedError",
    "MemberDirectory",
    "MemberInfo",
    "MemberSettings",
    "NoMemberError",
    "OptionError",
    "PublishError",
    "PublishTarget",
    "ScaleTimeoutError",
    "Services",
    "ShardCluster",
    "ShardNotServedError",
    "SparkBridgeError",
    "StandaloneCluster",
    "TaskResolver",
    "publish_dataframe",
    "recommended_conf",
    "register_formats",
    "start_session",
    "token_accumulator",
    "token_of_heads",
]

if (
    not TYPE_CHECKING
):  # Hidden from type checkers, because `__getattr__` would make them accept any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Arguments": "broadsheet.spark_bridge.member.application",
            "ClusterStartError": "broadsheet.spark_bridge.errors",
            "ClusterStoppedError": "broadsheet.spark_bridge.errors",
            "MemberDirectory": "broadsheet.spark_bridge.routing.member_list",
            "MemberInfo": "broadsheet.spark_bridge.cluster.membership",
            "MemberSettings": "broadsheet.spark_bridge.cluster.cluster_conf",
            "NoMemberError": "broadsheet.spark_bridge.errors",
            "OptionError": "broadsheet.spark_bridge.format_options",
            "PublishError": "broadsheet.spark_bridge.errors",
            "PublishTarget": "broadsheet.spark_bridge.publish",
            "ScaleTimeoutError": "broadsheet.spark_bridge.errors",
            "Services": "broadsheet.spark_bridge.cluster.shard_cluster",
            "ShardCluster": "broadsheet.spark_bridge.cluster.shard_cluster",
            "ShardNotServedError": "broadsheet.spark_bridge.errors",
            "SparkBridgeError": "broadsheet.spark_bridge.errors",
            "StandaloneCluster": "broadsheet.spark_bridge.standalone",
            "TaskResolver": "broadsheet.spark_bridge.task_resolver",
            "publish_dataframe": "broadsheet.spark_bridge.publish",
            "recommended_conf": "broadsheet.spark_bridge.session",
            "register_formats": "broadsheet.spark_bridge.formats",
            "start_session": "broadsheet.spark_bridge.session",
            "token_accumulator": "broadsheet.spark_bridge.task_resolver",
            "token_of_heads": "broadsheet.spark_bridge.routing.heads",
        },
    )
