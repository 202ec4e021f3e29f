"""Registration of the handlers under the service's literal name, with raw bytes for bulk content.

The generated registration would parse and build a message for every chunk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from broadsheet.broker.append import AppendHandler
from broadsheet.broker.append_stream import AppendStreamHandler
from broadsheet.broker.faults import Context, answered, fault_of, malformed_fault
from broadsheet.broker.fragments_api import (
    DeletionHandler,
    FragmentsHandler,
    QuarantineHandler,
    SumsHandler,
    VerifyHandler,
)
from broadsheet.broker.limits import BrokerLimits
from broadsheet.broker.list_apply import ApplyHandler, ListHandler
from broadsheet.broker.read import ReadHandler
from broadsheet.broker.resolution import JournalResolver
from broadsheet.journals.wire import APPEND_SERVICE, serialize
from broadsheet.security.audit import audit_record, audited
from broadsheet.security.auth import Capability, Claims
from broadsheet.serving.places import host_of
from broadsheet.serving.standard_services import (
    CallMetrics,
    Handler,
    Health,
    Methods,
    standard_handlers,
)
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

# Admission of a call: first its place among the others, then its token, then the size of its
# message.
#
# Messages arrive as raw bytes and are parsed last, because the objects made from a hostile message
# take many times its length.

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Admission:
    """Admission control of calls."""

    def __init__(
        self, resolver: JournalResolver, limits: BrokerLimits, metrics: CallMetrics
    ) -> None:
        self._resolver = resolver
        self._limits = limits
        self.metrics = metrics

    @contextmanager
    def _place(self, context: Context) -> Iterator[None]:
        """Hold a call's place among all, and among those of its connection and its host."""
        peer = context.peer()
        with (
            self._limits.calls.taken(peer),
            self._limits.calls_of_hosts.taken(host_of(peer)),
        ):
            yield

    def call(
        self,
        inner: Callable[[Request, Claims, Context], Awaitable[Answer]],
        require: Capability,
        parse: Callable[[bytes], Request],
        *,
        bound: str = "request_bytes_max",
        changes: str = "",
    ) -> Callable[[bytes, Context], Awaitable[Answer]]:
        """Return the handler of a method with one request.

        Args:
            inner: Serves a request of a caller with these claims.
            require: What the caller's token must permit.
            parse: Decodes the request from its wire form.
            bound: Of the request's length.
            changes: The method, `/package.Service/Method`, if it changes something, which is logged then.
        """

        async def admitted(message: bytes, context: Context) -> Answer:
            async with answered(context):
                with self._place(context):
                    claims = await self._resolver.authorize(context, require)
                    bounds = self._limits.bounds
                    self._limits.refusals.require(len(message), bounds, bound, "request")
                    request = _parsed(message, parse)
                    if not changes:
                        return await inner(request, claims, context)
                    record = audit_record(changes, request, claims, context)
                    with audited(record, _code_of) as told:
                        answer = await inner(request, claims, context)
                        if answer is not None:
                            told(answer)
                        return answer
            raise AssertionError("an aborted call has ended")

        return admitted

    def stream(
        self, inner: Callable[[object, Context], Awaitable[Answer]]
    ) -> Callable[[Any, Context], Awaitable[Answer]]:
        """Return the handler of a method with a stream of requests, which authorizes and parses them itself."""

        async def admitted(requests: Any, context: Context) -> Answer:
            async with answered(context):
                with self._place(context):
                    return await inner(requests, context)
            raise AssertionError("an aborted call has ended")

        return admitted

    def public(self, inner: Handler) -> Handler:
        """Return the handler of a method that anybody may call; it has bounds of its own."""

        async def admitted(request: object, context: Context) -> object:
            async with answered(context):
                with self._limits.public_calls.taken(context.peer()):
                    return await inner(request, context)
            raise AssertionError("an aborted call has ended")

        return admitted

    def private(self, inner: Handler) -> Handler:
        """Return the handler of a method that shows the broker's inside; it needs READ."""

        async def admitted(request: object, context: Context) -> object:
            async with answered(context):
                with self._place(context):
                    await self._resolver.authorize(context, Capability.READ)
                    return await inner(request, context)
            raise AssertionError("an aborted call has ended")

        return admitted


def _code_of(error: BaseException) -> str:
    fault = fault_of(error) if isinstance(error, Exception) else None
    return "UNKNOWN" if fault is None else fault.code.name


def _parsed(message: bytes, parse: Callable[[bytes], Request]) -> Request:
    try:
        return parse(message)
    except DecodeError as error:
        raise malformed_fault(f"request: {error}") from error


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
