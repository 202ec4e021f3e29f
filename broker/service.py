"""Registration of the handlers under the service's literal name, with raw bytes for bulk content.

The generated registration would parse and build a message for every chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from broadsheet.broker.admission import Admission
from broadsheet.broker.append import AppendHandler
from broadsheet.broker.append_stream import AppendStreamHandler
from broadsheet.broker.fragment_deletion import DeletionHandler
from broadsheet.broker.fragment_verification import VerifyHandler
from broadsheet.broker.fragments_api import FragmentsHandler, QuarantineHandler, SumsHandler
from broadsheet.broker.list_apply import ApplyHandler, ListHandler
from broadsheet.broker.read import ReadHandler
from broadsheet.journals.wire import APPEND_SERVICE, serialize
from broadsheet.security.auth import Capability
from broadsheet.serving.metrics import Methods
from broadsheet.serving.standard_services import Health, standard_handlers
from broadsheet.wire.fragments_pb2 import (
    DeleteFragmentsRequest,
    FragmentSumsRequest,
    ListQuarantineRequest,
    PurgeQuarantineRequest,
    VerifyJournalRequest,
)
from broadsheet.wire.journal_pb2 import (
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
    sums: SumsHandler
    verifications: VerifyHandler


def _measured(handlers: Handlers, service: str, methods: Methods) -> grpc.GenericRpcHandler:
    measured = handlers.admission.metrics.metered(service, methods)
    return grpc.method_handlers_generic_handler(service, measured)


def fragment_handler(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the fragment service, which Gazette's brokers do not have, for a server."""
    admit = handlers.admission.call
    # `Any`, because the methods differ in their messages.
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "DeleteFragments": grpc.unary_unary_rpc_method_handler(
            # The right to delete a whole journal includes the right to delete a part of it.
            admit(
                handlers.deletions.delete,
                Capability.APPLY,
                DeleteFragmentsRequest.FromString,
                changes=f"/{FRAGMENT_SERVICE}/DeleteFragments",
            ),
            None,
            serialize,
        ),
        "VerifyJournal": grpc.unary_stream_rpc_method_handler(
            admit(
                handlers.verifications.verify,
                Capability(0),
                VerifyJournalRequest.FromString,
                changes=f"/{FRAGMENT_SERVICE}/VerifyJournal",
            ),
            None,
            serialize,
        ),
        "FragmentSums": grpc.unary_unary_rpc_method_handler(
            admit(handlers.sums.sums, Capability.READ, FragmentSumsRequest.FromString),
            None,
            serialize,
        ),
        "ListQuarantine": grpc.unary_unary_rpc_method_handler(
            admit(handlers.quarantine.list, Capability.LIST, ListQuarantineRequest.FromString),
            None,
            serialize,
        ),
        "PurgeQuarantine": grpc.unary_unary_rpc_method_handler(
            admit(
                handlers.quarantine.purge,
                Capability.APPLY,
                PurgeQuarantineRequest.FromString,
                changes=f"/{FRAGMENT_SERVICE}/PurgeQuarantine",
            ),
            None,
            serialize,
        ),
    }
    return _measured(handlers, FRAGMENT_SERVICE, methods)


def append_stream_handler(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the append-stream service for a server."""
    stream: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        # Without a deserializer, because gRPC answers its failures with UNKNOWN.
        handlers.admission.stream(handlers.append_streams.serve),
        None,
        serialize,
    )
    return _measured(handlers, APPEND_SERVICE, {"AppendStream": stream})


def standard_services(handlers: Handlers, health: Health) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return health, reflection and channelz for a server."""
    return standard_handlers(
        health,
        (SERVICE, FRAGMENT_SERVICE, APPEND_SERVICE),
        public=handlers.admission.public,
        private=handlers.admission.private,
    )


def generic_handler(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the journal service for a server."""
    admit = handlers.admission.call
    # `Any`, because the methods differ in their messages.
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "List": grpc.unary_stream_rpc_method_handler(
            admit(handlers.lists.list, Capability.LIST, ListRequest.FromString), None, serialize
        ),
        "Apply": grpc.unary_unary_rpc_method_handler(
            # The bound is higher because specs have many labels, and a transaction has many specs.
            admit(
                handlers.applies.apply,
                Capability.APPLY,
                ApplyRequest.FromString,
                bound="message_bytes_max",
                changes=f"/{SERVICE}/Apply",
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
    return _measured(handlers, SERVICE, methods)
