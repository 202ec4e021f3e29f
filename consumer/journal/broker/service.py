"""Registers the handlers under the service's literal name, with raw bytes where bulk flows.

The generated registration would parse and build a message for every chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from consumer.journal.append_messages import decode_appends
from consumer.journal.broker.admission import Admission
from consumer.journal.broker.append import AppendHandler
from consumer.journal.broker.append_stream import AppendStreamHandler
from consumer.journal.broker.delete_fragments import DeletionHandler
from consumer.journal.broker.fragments_api import FragmentsHandler
from consumer.journal.broker.list_apply import ApplyHandler, ListHandler
from consumer.journal.broker.quarantine_api import QuarantineHandler
from consumer.journal.broker.read import ReadHandler
from consumer.journal.broker.verify_api import VerifyHandler
from consumer.journal.wire import APPEND_SERVICE, serialize
from consumer.protocol.auth import Capability
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

    admission: Admission
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
    admit = handlers.admission.call
    # `Any`: the methods differ in their messages.
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "DeleteFragments": grpc.unary_unary_rpc_method_handler(
            # Who may delete the whole journal may delete a part of it.
            admit(handlers.deletions.delete, Capability.APPLY, DeleteFragmentsRequest.FromString),
            None,
            serialize,
        ),
        "VerifyJournal": grpc.unary_stream_rpc_method_handler(
            admit(handlers.verifications.verify, Capability(0), VerifyJournalRequest.FromString),
            None,
            serialize,
        ),
        "ListQuarantine": grpc.unary_unary_rpc_method_handler(
            admit(handlers.quarantine.list, Capability.LIST, ListQuarantineRequest.FromString),
            None,
            serialize,
        ),
        "PurgeQuarantine": grpc.unary_unary_rpc_method_handler(
            admit(handlers.quarantine.purge, Capability.APPLY, PurgeQuarantineRequest.FromString),
            None,
            serialize,
        ),
    }
    return grpc.method_handlers_generic_handler(FRAGMENT_SERVICE, methods)


def append_stream_handler(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the service of appends in streams of many, for a server."""
    stream = grpc.stream_stream_rpc_method_handler(
        handlers.admission.stream(handlers.append_streams.serve), decode_appends, serialize
    )
    return grpc.method_handlers_generic_handler(APPEND_SERVICE, {"AppendStream": stream})


def generic_handler(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the journal service for a server."""
    admit = handlers.admission.call
    # `Any`: the methods differ in their messages.
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "List": grpc.unary_stream_rpc_method_handler(
            admit(handlers.lists.list, Capability.LIST, ListRequest.FromString), None, serialize
        ),
        "Apply": grpc.unary_unary_rpc_method_handler(
            # Specs have many labels, and a transaction has many specs.
            admit(
                handlers.applies.apply,
                Capability.APPLY,
                ApplyRequest.FromString,
                bound="message_bytes_max",
            ),
            None,
            serialize,
        ),
        "Read": grpc.unary_stream_rpc_method_handler(
            admit(handlers.reads.read, Capability.READ, ReadRequest.FromString), None, serialize
        ),
        "Append": grpc.stream_unary_rpc_method_handler(
            handlers.admission.stream(handlers.appends.append), None, serialize
        ),
        "ListFragments": grpc.unary_unary_rpc_method_handler(
            admit(handlers.fragments.list_fragments, Capability.READ, FragmentsRequest.FromString),
            None,
            serialize,
        ),
        "FragmentStoreHealth": grpc.unary_unary_rpc_method_handler(
            admit(
                handlers.fragments.health, Capability.READ, FragmentStoreHealthRequest.FromString
            ),
            None,
            serialize,
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)
