"""Spark bridge: members on executors, journals as DataFrames, and calls to shards from tasks.

Needs the extra `[spark]`. Names that are not exported here are internal and may change in any release.
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.spark_bridge.cluster.cluster_conf import MemberSettings as MemberSettings
    from broadsheet.spark_bridge.cluster.membership import MemberInfo as MemberInfo
    from broadsheet.spark_bridge.cluster.shard_cluster import (
        Services as Services,
        ShardCluster as ShardCluster,
    )
    from broadsheet.spark_bridge.errors import (
        ClusterStartError as ClusterStartError,
        ClusterStoppedError as ClusterStoppedError,
        NoMemberError as NoMemberError,
        PublishError as PublishError,
        ScaleTimeoutError as ScaleTimeoutError,
        ShardNotServedError as ShardNotServedError,
        SparkBridgeError as SparkBridgeError,
    )
    from broadsheet.spark_bridge.format_options import OptionError as OptionError
    from broadsheet.spark_bridge.formats import register_formats as register_formats
    from broadsheet.spark_bridge.keyed_reader import KeyedReader as KeyedReader
    from broadsheet.spark_bridge.member.application import Arguments as Arguments
    from broadsheet.spark_bridge.publish import (
        PublishTarget as PublishTarget,
        publish_dataframe as publish_dataframe,
    )
    from broadsheet.spark_bridge.routing.heads import token_of_heads as token_of_heads
    from broadsheet.spark_bridge.routing.member_list import MemberDirectory as MemberDirectory
    from broadsheet.spark_bridge.session import (
        recommended_conf as recommended_conf,
        start_session as start_session,
    )
    from broadsheet.spark_bridge.standalone import StandaloneCluster as StandaloneCluster
    from broadsheet.spark_bridge.task_resolver import (
        TaskResolver as TaskResolver,
        token_accumulator as token_accumulator,
    )

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
