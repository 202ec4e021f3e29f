"""The consumer framework's door: what applications are made of, what runs them, and the clients that ask them.

Stores, sources, leases, messages byte by byte, servers to try things with, and the simulator have doors of their own:
`consumer.stores`, `consumer.sources`, `consumer.leasing`, `consumer.message`, `consumer.embedded`,
`consumer.simulation`. What no door names is internal, and may change in any release.
"""

from typing import TYPE_CHECKING

from allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from consumer.application import (
        Application,
        BatchConsumer,
        BeginFinisher,
        DeferToNextTxnError,
        MessageProducer,
        Resolution,
        Resolver,
        ServiceRegistrar,
        Shard,
        Store,
    )
    from consumer.cli.connection import BROKER_ADDRESS_DEFAULT, CONSUMER_ADDRESS_DEFAULT
    from consumer.client.allocation_client import AllocationClient
    from consumer.client.recovery_client import RecoveryClient
    from consumer.client.shard_client import ShardClient
    from consumer.client.state_client import StateClient
    from consumer.client.sync_client import SyncShardClient
    from consumer.config import MemberConfig
    from consumer.errors import (
        BoundExceededError,
        ClaimsMissingError,
        ConsumerError,
        EndpointError,
        JournalError,
        NotAuthorizedError,
        RpcFailedError,
        ShardError,
        UnauthenticatedError,
    )
    from consumer.journal.append_service import AppendService
    from consumer.journal.channels import parse_endpoint
    from consumer.journal.client import JournalClient
    from consumer.member.service import run_member
    from consumer.message.batch import Envelope, MessageBatch, MessageType
    from consumer.message.mapping import (
        MappedJournal,
        modulo_mapping,
        random_mapping,
        rendezvous_mapping,
    )
    from consumer.message.publisher import Publisher
    from consumer.message.reader import read_committed
    from consumer.message.types import (
        ArrowType,
        CsvType,
        JsonStructType,
        JsonType,
        Meta,
        ProtobufType,
    )
    from consumer.message.uuid import Flags
    from consumer.op_future import OpFuture
    from consumer.protocol.auth import Capability, Claims, KeyedAuth
    from consumer.protocol.journal_pb2 import JournalSpec, LabelSelector
    from consumer.protocol.shard_pb2 import Checkpoint, ConsumerSpec, ShardSpec, Status
    from consumer.rpc.call_context import claims_of
    from consumer.rpc.shard_call import serving_shard

__all__ = [
    "BROKER_ADDRESS_DEFAULT",
    "CONSUMER_ADDRESS_DEFAULT",
    "AllocationClient",
    "AppendService",
    "Application",
    "ArrowType",
    "BatchConsumer",
    "BeginFinisher",
    "BoundExceededError",
    "Capability",
    "Checkpoint",
    "Claims",
    "ClaimsMissingError",
    "ConsumerError",
    "ConsumerSpec",
    "CsvType",
    "DeferToNextTxnError",
    "EndpointError",
    "Envelope",
    "Flags",
    "JournalClient",
    "JournalError",
    "JournalSpec",
    "JsonStructType",
    "JsonType",
    "KeyedAuth",
    "LabelSelector",
    "MappedJournal",
    "MemberConfig",
    "MessageBatch",
    "MessageProducer",
    "MessageType",
    "Meta",
    "NotAuthorizedError",
    "OpFuture",
    "ProtobufType",
    "Publisher",
    "RecoveryClient",
    "Resolution",
    "Resolver",
    "RpcFailedError",
    "ServiceRegistrar",
    "Shard",
    "ShardClient",
    "ShardError",
    "ShardSpec",
    "StateClient",
    "Status",
    "Store",
    "SyncShardClient",
    "UnauthenticatedError",
    "claims_of",
    "modulo_mapping",
    "parse_endpoint",
    "random_mapping",
    "read_committed",
    "rendezvous_mapping",
    "run_member",
    "serving_shard",
]

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would believe in any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AllocationClient": "consumer.client.allocation_client",
            "AppendService": "consumer.journal.append_service",
            "Application": "consumer.application",
            "ArrowType": "consumer.message.types",
            "BROKER_ADDRESS_DEFAULT": "consumer.cli.connection",
            "BatchConsumer": "consumer.application",
            "BeginFinisher": "consumer.application",
            "BoundExceededError": "consumer.errors",
            "CONSUMER_ADDRESS_DEFAULT": "consumer.cli.connection",
            "Capability": "consumer.protocol.auth",
            "Checkpoint": "consumer.protocol.shard_pb2",
            "Claims": "consumer.protocol.auth",
            "ClaimsMissingError": "consumer.errors",
            "ConsumerError": "consumer.errors",
            "ConsumerSpec": "consumer.protocol.shard_pb2",
            "CsvType": "consumer.message.types",
            "DeferToNextTxnError": "consumer.application",
            "EndpointError": "consumer.errors",
            "Envelope": "consumer.message.batch",
            "Flags": "consumer.message.uuid",
            "JournalClient": "consumer.journal.client",
            "JournalError": "consumer.errors",
            "JournalSpec": "consumer.protocol.journal_pb2",
            "JsonStructType": "consumer.message.types",
            "JsonType": "consumer.message.types",
            "KeyedAuth": "consumer.protocol.auth",
            "LabelSelector": "consumer.protocol.journal_pb2",
            "MappedJournal": "consumer.message.mapping",
            "MemberConfig": "consumer.config",
            "MessageBatch": "consumer.message.batch",
            "MessageProducer": "consumer.application",
            "MessageType": "consumer.message.batch",
            "Meta": "consumer.message.types",
            "NotAuthorizedError": "consumer.errors",
            "OpFuture": "consumer.op_future",
            "ProtobufType": "consumer.message.types",
            "Publisher": "consumer.message.publisher",
            "RecoveryClient": "consumer.client.recovery_client",
            "Resolution": "consumer.application",
            "Resolver": "consumer.application",
            "RpcFailedError": "consumer.errors",
            "ServiceRegistrar": "consumer.application",
            "Shard": "consumer.application",
            "ShardClient": "consumer.client.shard_client",
            "ShardError": "consumer.errors",
            "ShardSpec": "consumer.protocol.shard_pb2",
            "StateClient": "consumer.client.state_client",
            "Status": "consumer.protocol.shard_pb2",
            "Store": "consumer.application",
            "SyncShardClient": "consumer.client.sync_client",
            "UnauthenticatedError": "consumer.errors",
            "claims_of": "consumer.rpc.call_context",
            "modulo_mapping": "consumer.message.mapping",
            "parse_endpoint": "consumer.journal.channels",
            "random_mapping": "consumer.message.mapping",
            "read_committed": "consumer.message.reader",
            "rendezvous_mapping": "consumer.message.mapping",
            "run_member": "consumer.member.service",
            "serving_shard": "consumer.rpc.shard_call",
        },
    )
