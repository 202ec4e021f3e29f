"""The interceptor of every RPC of a member, including the application's own services.

A call is counted against the bounds (`broadsheet.consumer.rpc.call_limits`), the caller's token is verified, and the
handler gets its claims with the context; an exception of the handler becomes a status
(`broadsheet.consumer.rpc.grpc_status`), logged once if it is our fault. Handlers are coroutine functions or async
generators.

    async def Count(self, request, context):
        await self._work.put((request.shard, claims_of(context)))      # with the work, wherever it goes

Claims are always passed as an argument, and no task, thread or context variable holds any: code that was not given a
caller's claims cannot act for that caller.

Source: gazette/core auth/auth_service.go (verification before the handler, deadline at the token's expiry).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import grpc
import structlog
from prometheus_client import CollectorRegistry

from broadsheet.consumer.rpc.call_limits import CallLimits
from broadsheet.consumer.rpc.grpc_status import status_code_of, status_details_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.audit import AUDITED_METHODS, AuditRecord, audit_record, audited
from broadsheet.security.auth import Capability, Claims, TokenVerifier
from broadsheet.security.certificates import peer_identity
from broadsheet.security.errors import ClaimsMissingError, NotAuthorizedError, UnauthenticatedError
from broadsheet.serving.metrics import CallMetrics, MeasuredCall, shape_of
from broadsheet.serving.places import host_of
from broadsheet.serving.standard_services import HEALTH_METHODS, NO_CLAIMS, is_public
from broadsheet.serving.tracing import NO_SPAN, tracing

_log = structlog.get_logger()


class CallContext:
    """The context of a handler, with the caller's claims; delegates everything else to gRPC's context."""

    __slots__ = ("_context", "claims")

    def __init__(self, context: Any, claims: Claims) -> None:
        self._context = context
        self.claims = claims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def claims_of(context: Any) -> Claims:
    """Return the caller's claims, for `Resolver.resolve` and any other work of the call.

    Args:
        context: The handler's context. `Any`, because gRPC's and its wrappers have no common class.

    Raises:
        ClaimsMissingError: the call did not come through a member's server.
    """
    # Read by name, so that a wrapper that delegates unknown attributes works as well.
    claims = getattr(context, "claims", None)
    if not isinstance(claims, Claims):
        raise ClaimsMissingError(
            f"a {type(context).__name__} has no claims: no member's server has verified this call; add the service in "
            "register_services, and give the handler's context"
        )
    return claims


# `Any` in this module: requests and responses of services that we do not know.
Handler = Callable[[Any, Any], Any]
Guarding = Callable[[Any], AbstractAsyncContextManager[CallContext]]
"""Returns the block in which a call is served, given its context; the block yields the context with claims."""

SHARD_CAPABILITIES: Mapping[str, Capability] = {
    "/consumer.Shard/Stat": Capability.READ,
    "/consumer.Shard/List": Capability.LIST,
    "/consumer.Shard/Apply": Capability.APPLY,
    "/consumer.Shard/GetHints": Capability.READ,
    "/consumer.Shard/Unassign": Capability.APPLY,
    "/broadsheet.v1.AllocationService/Plan": Capability.LIST,
    "/broadsheet.v1.AllocationService/ApplyPlan": Capability.APPLY,
    "/broadsheet.v1.AllocationService/Explain": Capability.LIST,
    "/broadsheet.v1.AllocationService/ListMoves": Capability.LIST,
    "/broadsheet.v1.AllocationService/ListMembers": Capability.LIST,
    "/broadsheet.v1.AllocationService/ListOperations": Capability.LIST,
    "/broadsheet.v1.AllocationService/CordonMembers": Capability.APPLY,
    "/broadsheet.v1.KeyedService/DescribeKeyed": Capability.READ,
    "/broadsheet.v1.KeyedService/GetKeys": Capability.READ,
    "/broadsheet.v1.KeyedService/ListTimers": Capability.READ,
    "/broadsheet.v1.KeyedService/ScanKeys": Capability.READ,
    "/broadsheet.v1.KeyService/GetKeyTable": Capability.LIST,
    "/broadsheet.v1.KeyService/WatchKeyTable": Capability.LIST,
    "/broadsheet.v1.ElasticService/SplitShard": Capability.APPLY,
    "/broadsheet.v1.ElasticService/CancelSplit": Capability.APPLY,
    "/broadsheet.v1.ElasticService/ListSplits": Capability.LIST,
    "/broadsheet.v1.ElasticService/MergeShards": Capability.APPLY,
    "/broadsheet.v1.ElasticService/CancelMerge": Capability.APPLY,
    "/broadsheet.v1.ElasticService/ListMerges": Capability.LIST,
    "/broadsheet.v1.ElasticService/SplitJournal": Capability.APPLY,
    "/broadsheet.v1.ElasticService/ListJournalSplits": Capability.LIST,
    "/broadsheet.v1.ElasticService/LeaveJournal": Capability.APPLY,
    "/broadsheet.v1.ElasticService/SourceProgress": Capability.READ,
    "/broadsheet.v1.ElasticService/RollBackTransaction": Capability.APPLY,
    "/broadsheet.v1.ElasticService/PrepareFork": Capability.APPLY,
    "/broadsheet.v1.PeerService/Beat": Capability.LIST,
    "/broadsheet.v1.PeerService/Witness": Capability.LIST,
    "/broadsheet.v1.RecoveryService/PlanPrune": Capability.READ,
    "/broadsheet.v1.RecoveryService/Prune": Capability.APPLY,
    "/broadsheet.v1.RecoveryService/PlanRewind": Capability.READ,
    "/broadsheet.v1.RecoveryService/Rewind": Capability.APPLY,
    "/broadsheet.v1.RecoveryService/PlanResetSource": Capability.READ,
    "/broadsheet.v1.RecoveryService/ResetSource": Capability.APPLY,
    "/broadsheet.v1.StateService/ListReplicas": Capability.LIST,
    "/broadsheet.v1.StateService/DescribeState": Capability.READ,
    "/broadsheet.v1.StateService/ScanState": Capability.READ,
    "/broadsheet.v1.WatchService/WatchShards": Capability.LIST,
}
"""The capability that each method requires. Health and reflection require none; methods of the application's services
and of channelz require READ.
"""
GUARDED_METHODS_MAX = 1_024
"""Bound on the methods whose guarded handlers are kept."""
_NO_SHARE = nullcontext()
_UNTRACED = (
    "/broadsheet.v1.KeyService/WatchKeyTable",
    "/broadsheet.v1.PeerService/",
    "/broadsheet.v1.WatchService/",
    "/grpc.",
)
"""Prefixes of methods without spans: members call the first all the time, and watches last for hours."""


class RpcGuard(grpc.aio.ServerInterceptor):
    """The interceptor that verifies every request and translates every failure."""

    def __init__(
        self, verifier: TokenVerifier, limits: CallLimits, metrics: CallMetrics | None = None
    ) -> None:
        self._verifier = verifier
        self._limits = limits
        self._metrics = metrics or CallMetrics(CollectorRegistry())
        self._tracing = tracing()
        self._guarded_handlers: dict[str, tuple[Any, Any]] = {}
        """gRPC's handler and its guarded one, by method: gRPC asks with every call."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one method."""
        found = await continuation(handler_call_details)
        if found is None:
            return None
        method = str(handler_call_details.method)
        known, guarded = self._guarded_handlers.get(method, (None, None))
        if known is found:
            return guarded
        guarded = self._guard(found, method)
        # An application may serve any name that a caller invents; those are not kept.
        if method in self._guarded_handlers or len(self._guarded_handlers) < GUARDED_METHODS_MAX:
            self._guarded_handlers[method] = found, guarded
        return guarded

    def _guard(self, found: Any, method: str) -> Any:
        """Return a handler that admits calls of a method, and then performs them by the handler found."""
        require = None if is_public(method) else SHARD_CAPABILITIES.get(method, Capability.READ)
        kind, inner = shape_of(found)
        inner = _audited(inner, method)
        guarding = partial(self._guarded, found, method=method, require=require)
        parse = None if found.request_streaming else found.request_deserializer
        guarded = (
            _guard_stream(_parsing(inner, parse), guarding)
            if found.response_streaming and inspect.isasyncgenfunction(inner)
            else _guard_call(_parsing(inner, parse), guarding)
        )
        return kind(
            guarded,
            # A single request is parsed only once its caller is verified, because the parsed objects take many times
            # its length.
            request_deserializer=None if parse else found.request_deserializer,
            response_serializer=found.response_serializer,
        )

    @asynccontextmanager
    async def _guarded(
        self, found: Any, context: Any, *, method: str, require: Capability | None
    ) -> AsyncIterator[CallContext]:
        streams = found.request_streaming or found.response_streaming
        with self._metrics.measured(method, found, context) as measured:
            try:
                # Checked before anything expensive, so that refusing a client at its bounds costs only microseconds.
                with self._limits.taken(context.peer(), streams=streams, public=require is None):
                    claims = (
                        await self._claims_shown(context, method)
                        if require is None
                        else await self._claims_of(context, require)
                    )
                    with (
                        self._share(claims, context, streams=streams, public=require is None),
                        self._traced(method, found, context, measured),
                    ):
                        if claims.expires_at is None:
                            yield CallContext(context, claims)
                            return
                        async with asyncio.timeout(_seconds_left(claims.expires_at)):
                            yield CallContext(context, claims)
            except (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit):
                raise  # a decision already taken: the handler's own, or the caller's
            except Exception as error:
                await _abort(context, method, error)

    def _share(
        self, claims: Claims, context: Any, *, streams: bool, public: bool
    ) -> AbstractContextManager[object]:
        """Return the block in which a call counts against its caller's share; those of strangers have bounds anyway."""
        if public:
            return _NO_SHARE
        return self._limits.shared(claims.subject or host_of(context.peer()), streams=streams)

    def _traced(
        self, method: str, found: Any, context: Any, measured: MeasuredCall
    ) -> AbstractContextManager[object]:
        """Return the block of a call's span. It begins once the caller is verified: a stranger makes no spans."""
        if self._tracing is None or found.response_streaming or method.startswith(_UNTRACED):
            return NO_SPAN
        serving = self._tracing.serving(method, context.invocation_metadata())
        measured.exemplar = self._tracing.exemplar_of(serving.span)
        return serving

    async def _claims_shown(self, context: Any, method: str) -> Claims:
        """Return the claims of a caller who needs none: health tells of shards to who may list them."""
        if method not in HEALTH_METHODS:
            return NO_CLAIMS
        try:
            return await self._claims_of(context, Capability.LIST)
        except (UnauthenticatedError, NotAuthorizedError):
            return NO_CLAIMS

    async def _claims_of(self, context: Any, require: Capability) -> Claims:
        return await self._verifier.verify_call(
            context.invocation_metadata(),
            require,
            identity=lambda: peer_identity(context.auth_context()),
        )


def _guard_call(inner: Handler, guarding: Guarding) -> Handler:
    async def guarded(request: Any, context: Any) -> Any:
        async with guarding(context) as verified:
            return await inner(request, verified)

    return guarded


def _guard_stream(inner: Handler, guarding: Guarding) -> Handler:
    async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
        async with guarding(context) as verified:
            async for response in inner(request, verified):
                yield response

    return guarded


def _audited(inner: Handler, method: str) -> Handler:
    """Return a handler that logs what it changes; the same handler for a method that changes nothing."""
    if method not in AUDITED_METHODS:
        return inner

    def record_of(request: Any, context: Any) -> AuditRecord | None:
        return audit_record(method, request, claims_of(context), context)

    def code_of(error: BaseException) -> str:
        return status_code_of(error).name

    async def answering(request: Any, context: Any) -> Any:
        with audited(record_of(request, context), code_of) as answered:
            response = await inner(request, context)
            answered(response)
            return response

    async def streaming(request: Any, context: Any) -> AsyncIterator[Any]:
        with audited(record_of(request, context), code_of) as answered:
            async for response in inner(request, context):
                answered(response)
                yield response

    return streaming if inspect.isasyncgenfunction(inner) else answering


def _parsing(inner: Handler, parse: Callable[[bytes], Any] | None) -> Handler:
    """Return a handler of raw bytes; the same handler if there is nothing to parse."""
    if parse is None:
        return inner

    def parsing(message: bytes, context: Any) -> Any:
        try:
            request = parse(message)
        except Exception as error:  # Each deserializer of an application raises its own errors.
            raise ValidationError("request", f"malformed: {error}") from error
        return inner(request, context)

    return parsing


async def _abort(context: Any, method: str, error: Exception) -> None:
    code = status_code_of(error)
    incident_id = uuid4().hex[:12]
    # An INTERNAL status of the process behind us is logged there.
    if code is grpc.StatusCode.INTERNAL and not isinstance(error, grpc.aio.AioRpcError):
        _log.error("rpc.failed", method=method, incident_id=incident_id, exc_info=error)
    else:
        _log.debug("rpc.refused", method=method, code=code.name, error=str(error))
    await context.abort(code, status_details_of(error, incident_id=incident_id))


def _seconds_left(expires_at: datetime) -> float:
    return max(0.0, (expires_at - datetime.now(UTC)).total_seconds())
