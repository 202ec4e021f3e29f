"""The Spark bridge's door: members on executors, journals as DataFrames, and calls to shards from tasks.

Needs the extra `[spark]`. What is not named here is internal, and may change in any release.
"""

from typing import TYPE_CHECKING

from allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from spark_bridge.cluster.cluster_conf import MemberSettings
    from spark_bridge.cluster.membership import MemberInfo
    from spark_bridge.cluster.shard_cluster import Services, ShardCluster
    from spark_bridge.errors import (
        ClusterStartError,
        ClusterStoppedError,
        NoMemberError,
        PublishError,
        ScaleTimeoutError,
        ShardNotServedError,
        SparkBridgeError,
    )
    from spark_bridge.format_options import OptionError
    from spark_bridge.formats import register_formats
    from spark_bridge.member.application import Arguments
    from spark_bridge.publish import PublishTarget, publish_dataframe
    from spark_bridge.routing.heads import token_of_heads
    from spark_bridge.session import recommended_conf, start_session
    from spark_bridge.standalone import StandaloneCluster
    from spark_bridge.task_resolver import TaskResolver, token_accumulator

__all__ = [
    "Arguments",
    "ClusterStartError",
    "ClusterStoppedError",
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

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would believe in any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Arguments": "spark_bridge.member.application",
            "ClusterStartError": "spark_bridge.errors",
            "ClusterStoppedError": "spark_bridge.errors",
            "MemberInfo": "spark_bridge.cluster.membership",
            "MemberSettings": "spark_bridge.cluster.cluster_conf",
            "NoMemberError": "spark_bridge.errors",
            "OptionError": "spark_bridge.format_options",
            "PublishError": "spark_bridge.errors",
            "PublishTarget": "spark_bridge.publish",
            "ScaleTimeoutError": "spark_bridge.errors",
            "Services": "spark_bridge.cluster.shard_cluster",
            "ShardCluster": "spark_bridge.cluster.shard_cluster",
            "ShardNotServedError": "spark_bridge.errors",
            "SparkBridgeError": "spark_bridge.errors",
            "StandaloneCluster": "spark_bridge.standalone",
            "TaskResolver": "spark_bridge.task_resolver",
            "publish_dataframe": "spark_bridge.publish",
            "recommended_conf": "spark_bridge.session",
            "register_formats": "spark_bridge.formats",
            "start_session": "spark_bridge.session",
            "token_accumulator": "spark_bridge.task_resolver",
            "token_of_heads": "spark_bridge.routing.heads",
        },
    )
