"""Registers the handlers under the service's literal name, with raw bytes where bulk flows.

The generated registration would parse and build a message for every chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from consumer.journal.append_messages import decode_appends
from consumer.journal.broker.append import AppendHandler
from consumer.journal.broker.append_stream import AppendStreamHandler
from consumer.journal.broker.delete_fragments import DeletionHandler
from consumer.journal.broker.fragments_api import FragmentsHandler
from consumer.journal.broker.list_apply import ApplyHandler, ListHandler
from consumer.journal.broker.quarantine_api import QuarantineHandler
from consumer.journal.broker.read import ReadHandler
from consumer.journal.broker.verify_api import VerifyHandler
from consumer.journal.wire import APPEND_SERVICE, serialize
from consumer.protocol.fragments_pb2 import (
    DeleteFragmentsRequest,
    ListQuarantineRequest,
    PurgeQuarantineRequest,
    VerifyJournalRequest,
)
from consumer.protocol.journal_pb2 import (
    ApplyRequest,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    ListRequest,
    ReadRequest,
)

SERVICE = "protocol.Journal"
FRAGMENT_SERVICE = "broadsheet.v1.FragmentService"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """One handler object per group of methods. Replicate has none: gRPC answers UNIMPLEMENTED."""

    appends: AppendHandler
    append_streams: AppendStreamHandler
    reads: ReadHandler
    lists: ListHandler
    applies: ApplyHandler
    fragments: FragmentsHandler
    deletions: DeletionHandler
    quarantine: QuarantineHandler
    verifications: VerifyHandler


def fragment_handler(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the service of what Gazette's brokers do not have, for a server."""
    # `Any`: the methods differ in their messages.
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "DeleteFragments": grpc.unary_unary_rpc_method_handler(
            handlers.deletions.delete, DeleteFragmentsRequest.FromString, serialize
        ),
        "VerifyJournal": grpc.unary_stream_rpc_method_handler(
            handlers.verifications.verify, VerifyJournalRequest.FromString, serialize
        ),
        "ListQuarantine": grpc.unary_unary_rpc_method_handler(
            handlers.quarantine.list, ListQuarantineRequest.FromString, serialize
        ),
        "PurgeQuarantine": grpc.unary_unary_rpc_method_handler(
            handlers.quarantine.purge, PurgeQuarantineRequest.FromString, serialize
        ),
    }
    return grpc.method_handlers_generic_handler(FRAGMENT_SERVICE, methods)


def append_stream_handler(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the service of appends in streams of many, for a server."""
    stream = grpc.stream_stream_rpc_method_handler(
        handlers.append_streams.serve, decode_appends, serialize
    )
    return grpc.method_handlers_generic_handler(APPEND_SERVICE, {"AppendStream": stream})


def generic_handler(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the journal service for a server."""
    # `Any`: the methods differ in their messages.
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "List": grpc.unary_stream_rpc_method_handler(
            handlers.lists.list, ListRequest.FromString, serialize
        ),
        "Apply": grpc.unary_unary_rpc_method_handler(
            handlers.applies.apply, ApplyRequest.FromString, serialize
        ),
        "Read": grpc.unary_stream_rpc_method_handler(
            handlers.reads.read, ReadRequest.FromString, serialize
        ),
        "Append": grpc.stream_unary_rpc_method_handler(handlers.appends.append, None, serialize),
        "ListFragments": grpc.unary_unary_rpc_method_handler(
            handlers.fragments.list_fragments, FragmentsRequest.FromString, serialize
        ),
        "FragmentStoreHealth": grpc.unary_unary_rpc_method_handler(
            handlers.fragments.health, FragmentStoreHealthRequest.FromString, serialize
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)
