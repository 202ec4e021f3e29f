"""Public API of the consumer framework: applications, members that run them, and clients.

Stores, sources, leases, message encodings, embedded servers and the simulator have public packages themselves:
`broadsheet.consumer.stores`, `broadsheet.consumer.sources`, `broadsheet.consumer.leasing`,
`broadsheet.consumer.message`, `broadsheet.consumer.embedded`, `broadsheet.consumer.simulation`. A name that none of
these packages exports is internal and may change in any release.
"""

from typing import TYPE_CHECKING

from broadsheet.allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from broadsheet.allocator.runtime.certificates import peer_identity
    from broadsheet.allocator.runtime.tls import TlsConfig
    from broadsheet.consumer.application import (
        Application,
        BatchConsumer,
        BeginFinisher,
        DeferToNextTxnError,
        MessageProducer,
        Resolution,
        Resolver,
        ServiceRegistrar,
        SettlingMessages,
        Shard,
        Store,
    )
    from broadsheet.consumer.cli.connection import BROKER_ADDRESS_DEFAULT, CONSUMER_ADDRESS_DEFAULT
    from broadsheet.consumer.client.allocation_client import AllocationClient
    from broadsheet.consumer.client.recovery_client import RecoveryClient
    from broadsheet.consumer.client.shard_client import ShardClient, ShardTable
    from broadsheet.consumer.client.state_client import StateClient
    from broadsheet.consumer.client.sync_client import SyncShardClient
    from broadsheet.consumer.config import MemberConfig
    from broadsheet.consumer.errors import (
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
    from broadsheet.consumer.journal.append_service import AppendService
    from broadsheet.consumer.journal.channels import open_channel, parse_endpoint
    from broadsheet.consumer.journal.client import JournalClient
    from broadsheet.consumer.journal.transport import TransportPolicy
    from broadsheet.consumer.member.service import run_member
    from broadsheet.consumer.message.batch import Envelope, MessageBatch, MessageType
    from broadsheet.consumer.message.mapping import (
        KeyColumn,
        MappedJournal,
        modulo_mapping,
        random_mapping,
        rendezvous_mapping,
    )
    from broadsheet.consumer.message.publisher import Publisher
    from broadsheet.consumer.message.reader import read_committed
    from broadsheet.consumer.message.types import (
        ArrowType,
        CsvType,
        JsonStructType,
        JsonType,
        Meta,
        ProtobufType,
    )
    from broadsheet.consumer.message.uuid import Flags
    from broadsheet.consumer.op_future import OpFuture
    from broadsheet.consumer.protocol.auth import (
        BearerAuth,
        Capability,
        Claims,
        KeyedAuth,
        TrustConfig,
    )
    from broadsheet.consumer.protocol.journal_pb2 import JournalSpec, LabelSelector
    from broadsheet.consumer.protocol.shard_pb2 import Checkpoint, ConsumerSpec, ShardSpec, Status
    from broadsheet.consumer.rpc.guard import claims_of
    from broadsheet.consumer.rpc.shard_call import serving_shard

__all__ = [
    "BROKER_ADDRESS_DEFAULT",
    "CONSUMER_ADDRESS_DEFAULT",
    "AllocationClient",
    "AppendService",
    "Application",
    "ArrowType",
    "BatchConsumer",
    "BearerAuth",
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
    "KeyColumn",
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
    "SettlingMessages",
    "Shard",
    "ShardClient",
    "ShardError",
    "ShardSpec",
    "ShardTable",
    "StateClient",
    "Status",
    "Store",
    "SyncShardClient",
    "TlsConfig",
    "TransportPolicy",
    "TrustConfig",
    "UnauthenticatedError",
    "claims_of",
    "modulo_mapping",
    "open_channel",
    "parse_endpoint",
    "peer_identity",
    "random_mapping",
    "read_committed",
    "rendezvous_mapping",
    "run_member",
    "serving_shard",
]

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AllocationClient": "broadsheet.consumer.client.allocation_client",
            "AppendService": "broadsheet.consumer.journal.append_service",
            "Application": "broadsheet.consumer.application",
            "ArrowType": "broadsheet.consumer.message.types",
            "BROKER_ADDRESS_DEFAULT": "broadsheet.consumer.cli.connection",
            "BatchConsumer": "broadsheet.consumer.application",
            "BeginFinisher": "broadsheet.consumer.application",
            "BoundExceededError": "broadsheet.consumer.errors",
            "CONSUMER_ADDRESS_DEFAULT": "broadsheet.consumer.cli.connection",
            "Capability": "broadsheet.consumer.protocol.auth",
            "Checkpoint": "broadsheet.consumer.protocol.shard_pb2",
            "Claims": "broadsheet.consumer.protocol.auth",
            "ClaimsMissingError": "broadsheet.consumer.errors",
            "ConsumerError": "broadsheet.consumer.errors",
            "ConsumerSpec": "broadsheet.consumer.protocol.shard_pb2",
            "CsvType": "broadsheet.consumer.message.types",
            "DeferToNextTxnError": "broadsheet.consumer.application",
            "EndpointError": "broadsheet.consumer.errors",
            "Envelope": "broadsheet.consumer.message.batch",
            "Flags": "broadsheet.consumer.message.uuid",
            "JournalClient": "broadsheet.consumer.journal.client",
            "JournalError": "broadsheet.consumer.errors",
            "JournalSpec": "broadsheet.consumer.protocol.journal_pb2",
            "JsonStructType": "broadsheet.consumer.message.types",
            "JsonType": "broadsheet.consumer.message.types",
            "BearerAuth": "broadsheet.consumer.protocol.auth",
            "KeyColumn": "broadsheet.consumer.message.mapping",
            "KeyedAuth": "broadsheet.consumer.protocol.auth",
            "TrustConfig": "broadsheet.consumer.protocol.auth",
            "LabelSelector": "broadsheet.consumer.protocol.journal_pb2",
            "MappedJournal": "broadsheet.consumer.message.mapping",
            "MemberConfig": "broadsheet.consumer.config",
            "MessageBatch": "broadsheet.consumer.message.batch",
            "MessageProducer": "broadsheet.consumer.application",
            "SettlingMessages": "broadsheet.consumer.application",
            "MessageType": "broadsheet.consumer.message.batch",
            "Meta": "broadsheet.consumer.message.types",
            "NotAuthorizedError": "broadsheet.consumer.errors",
            "OpFuture": "broadsheet.consumer.op_future",
            "ProtobufType": "broadsheet.consumer.message.types",
            "Publisher": "broadsheet.consumer.message.publisher",
            "RecoveryClient": "broadsheet.consumer.client.recovery_client",
            "Resolution": "broadsheet.consumer.application",
            "Resolver": "broadsheet.consumer.application",
            "RpcFailedError": "broadsheet.consumer.errors",
            "ServiceRegistrar": "broadsheet.consumer.application",
            "Shard": "broadsheet.consumer.application",
            "ShardClient": "broadsheet.consumer.client.shard_client",
            "ShardTable": "broadsheet.consumer.client.shard_client",
            "ShardError": "broadsheet.consumer.errors",
            "ShardSpec": "broadsheet.consumer.protocol.shard_pb2",
            "StateClient": "broadsheet.consumer.client.state_client",
            "Status": "broadsheet.consumer.protocol.shard_pb2",
            "Store": "broadsheet.consumer.application",
            "SyncShardClient": "broadsheet.consumer.client.sync_client",
            "TlsConfig": "broadsheet.allocator.runtime.tls",
            "TransportPolicy": "broadsheet.consumer.journal.transport",
            "UnauthenticatedError": "broadsheet.consumer.errors",
            "claims_of": "broadsheet.consumer.rpc.guard",
            "modulo_mapping": "broadsheet.consumer.message.mapping",
            "open_channel": "broadsheet.consumer.journal.channels",
            "parse_endpoint": "broadsheet.consumer.journal.channels",
            "peer_identity": "broadsheet.allocator.runtime.certificates",
            "random_mapping": "broadsheet.consumer.message.mapping",
            "read_committed": "broadsheet.consumer.message.reader",
            "rendezvous_mapping": "broadsheet.consumer.message.mapping",
            "run_member": "broadsheet.consumer.member.service",
            "serving_shard": "broadsheet.consumer.rpc.shard_call",
        },
    )
