"""Public API of the consumer framework: applications, members that run them, and clients.

Journals and their messages are in `broadsheet.journals`, credentials in `broadsheet.security`; stores and sources in
`broadsheet.consumer.stores` and `broadsheet.consumer.sources`; leases without shards in `broadsheet.leases`; servers
for trials in `broadsheet.embedded`; simulators and conformance suites in `broadsheet.testing`. A name that none of
these packages exports is internal and may change in any release.
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.consumer.application import (
        Application as Application,
        BatchConsumer as BatchConsumer,
        BeginFinisher as BeginFinisher,
        DeferToNextTxnError as DeferToNextTxnError,
        FollowingApplication as FollowingApplication,
        MessageProducer as MessageProducer,
        RecordPublisher as RecordPublisher,
        Resolution as Resolution,
        Resolver as Resolver,
        SelfWaking as SelfWaking,
        ServiceRegistrar as ServiceRegistrar,
        SettlingMessages as SettlingMessages,
        Shard as Shard,
        Store as Store,
    )
    from broadsheet.consumer.client.allocation_client import AllocationClient as AllocationClient
    from broadsheet.consumer.client.keyed_client import (
        KeyedClient as KeyedClient,
        KeyedReadOptions as KeyedReadOptions,
    )
    from broadsheet.consumer.client.recovery_client import RecoveryClient as RecoveryClient
    from broadsheet.consumer.client.shard_client import (
        ShardClient as ShardClient,
        ShardTable as ShardTable,
    )
    from broadsheet.consumer.client.state_client import StateClient as StateClient
    from broadsheet.consumer.client.sync_client import SyncShardClient as SyncShardClient
    from broadsheet.consumer.direct.kafka_output import (
        KafkaCluster as KafkaCluster,
        KafkaOutput as KafkaOutput,
    )
    from broadsheet.consumer.elastic.scaling_policy import (
        ScalingMode as ScalingMode,
        ScalingPolicy as ScalingPolicy,
    )
    from broadsheet.consumer.errors import ShardError as ShardError
    from broadsheet.consumer.member.config import MemberConfig as MemberConfig
    from broadsheet.consumer.member.service import run_member as run_member
    from broadsheet.consumer.rpc.guard import claims_of as claims_of
    from broadsheet.consumer.rpc.shard_call import serving_shard as serving_shard
    from broadsheet.consumer.schema_registry.registry import SchemaRegistry as SchemaRegistry
    from broadsheet.runtime.errors import (
        BoundExceededError as BoundExceededError,
        EndpointError as EndpointError,
        RpcFailedError as RpcFailedError,
        ServiceError as ServiceError,
    )
    from broadsheet.runtime.op_future import OpFuture as OpFuture
    from broadsheet.security.endpoints import CONSUMER_ADDRESS_DEFAULT as CONSUMER_ADDRESS_DEFAULT
    from broadsheet.wire.shard_pb2 import (
        Checkpoint as Checkpoint,
        ConsumerSpec as ConsumerSpec,
        ShardSpec as ShardSpec,
        Status as Status,
    )

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
