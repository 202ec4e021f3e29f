"""Parts of each gRPC server of ours: health, reflection and channelz.

Health and reflection are public: load balancers and Kubernetes' probes have no token, and what they learn (that a
process is up, which services it has) is in this repository. Their calls have bounds of their own, so that strangers
cannot take the places of other clients. Channelz shows who is connected, so it needs a token.

Names that health knows:

    ""                  SERVING once the process is ready, NOT_SERVING from when it starts to leave
    a gRPC service      the same
    "liveness"          SERVING as long as the process answers, also while it leaves
    "shard/ID"          SERVING while this member's replica is PRIMARY, or a standby that has caught up (STANDBY);
                        for callers whose token or certificate permits LIST of the shard, and absent for others

Source: gRPC health checking protocol, https://github.com/grpc/grpc/blob/master/doc/health-checking.md; gRFCs A14, A17.
"""

from __future__ import annotations

import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import DecodeError
from grpc._cython import cygrpc
from grpc_channelz.v1 import channelz_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2

from broadsheet.runtime.event_loop import Signal
from broadsheet.security.auth import Capability, Claims
from broadsheet.serving.metrics import Methods

ServingStatus: TypeAlias = int
"""A `HealthCheckResponse.ServingStatus`: the library ships no type of it."""
SERVING: Final[ServingStatus] = HealthCheckResponse.SERVING
NOT_SERVING: Final[ServingStatus] = HealthCheckResponse.NOT_SERVING
HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
CHANNELZ: Final = "grpc.channelz.v1.Channelz"
LIVENESS: Final = "liveness"
SHARD_PREFIX: Final = "shard/"
HEALTH_METHODS: Final = frozenset({f"/{HEALTH}/Check", f"/{HEALTH}/Watch"})
PUBLIC_METHODS: Final = HEALTH_METHODS | {f"/{REFLECTION}/ServerReflectionInfo"}
"""The methods that need no token: these alone, because an application may serve others under the same names."""

NO_CLAIMS: Final = Claims(capability=Capability(0))
"""Claims of a caller that was not asked for any, or has shown none."""

# `Any` in this module: messages and contexts of several services, for which gRPC has no common types.
Handler = Callable[[Any, Any], Awaitable[Any]]
Wrap = Callable[[Handler], Handler]


def is_public(method: str) -> bool:
    """Return whether a method, `/package.Service/Method`, needs no token."""
    return method in PUBLIC_METHODS


class Health:
    """Serving state of a process and its parts; watchers are told of each change."""

    def __init__(self) -> None:
        self.is_serving = False
        self.part_status: Callable[[str, Claims], ServingStatus | None] = lambda _name, _claims: (
            None
        )
        """Returns the status of a name that is no gRPC service; None if it does not exist, or the claims hide it."""
        self.services: frozenset[str] = frozenset()
        """gRPC services of the process, which serve when it does."""
        self._changed = Signal()
        self._is_closed = False

    def status_of(self, name: str, claims: Claims) -> ServingStatus | None:
        """Return the status of a service or part; None if there is none of that name that the claims cover."""
        if name == LIVENESS:
            return SERVING
        if not name or name in self.services:
            return SERVING if self.is_serving else NOT_SERVING
        return self.part_status(name, claims)

    def set_serving(self, is_serving: bool) -> None:
        """Record whether the process serves."""
        self.is_serving = is_serving
        self._changed.notify()

    def notify(self) -> None:
        """Let watchers look at their parts again."""
        self._changed.notify()

    def close(self) -> None:
        """Report NOT_SERVING and end all watches, because a server that stops waits for its streams. Idempotent."""
        self._is_closed = True
        self.set_serving(False)

    async def check(self, request: HealthCheckRequest, context: Any) -> HealthCheckResponse:
        """Serve `Check`."""
        status = self.status_of(request.service, _claims_in(context))
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service or shard of this name")
        return HealthCheckResponse(status=status)

    async def watch(self, request: HealthCheckRequest, context: Any) -> None:
        """Serve `Watch`: send the status, and each one that differs from the one before."""
        told: ServingStatus | None = None
        while True:
            # Nothing is awaited between a look that changed nothing and the wait, so no change is missed; changes
            # during a slow write are coalesced into the newest.
            status = self.status_of(request.service, _claims_in(context))
            if status is None:
                # Unlike Check, a watch stays open: the name may exist later.
                status = HealthCheckResponse.SERVICE_UNKNOWN
            if status != told:
                told = status
                await context.write(HealthCheckResponse(status=status))
            elif self._is_closed:
                return
            else:
                await self._changed.wait()


def _claims_in(context: Any) -> Claims:
    """Return the claims that a caller has shown; a broker's handlers of health have none, and show no parts."""
    claims = getattr(context, "claims", None)
    return claims if isinstance(claims, Claims) else NO_CLAIMS


def standard_handlers(
    health: Health, services: Iterable[str], *, public: Wrap, private: Wrap
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of health, reflection and channelz, for `add_generic_rpc_handlers`.

    Args:
        health: Gets the names of all services.
        services: Names of the server's other services. One of ours among them is left to its registrant.
        public: Wraps the handlers that anybody may call.
        private: Wraps those that need a token.
    """
    theirs = frozenset(services)
    methods = {
        HEALTH: _health_methods(health, public),
        REFLECTION: _reflection_methods(theirs | {HEALTH, REFLECTION, CHANNELZ}, public),
        CHANNELZ: _channelz_methods(private),
    }
    health.services = theirs | methods.keys()
    return tuple(
        grpc.method_handlers_generic_handler(name, handlers)
        for name, handlers in methods.items()
        if name not in theirs
    )


def _parsing(parse: Callable[[bytes], Any], inner: Handler) -> Handler:
    """Return a handler of raw messages: gRPC would log a stack for each malformed one that a stranger sends."""

    async def parsing(message: bytes, context: Any) -> Any:
        return await inner(await _parsed(parse, message, context), context)

    return parsing


async def _parsed(parse: Callable[[bytes], Any], message: bytes, context: Any) -> Any:
    try:
        return parse(message)
    except DecodeError:
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "request: malformed")


def _health_methods(health: Health, public: Wrap) -> Methods:
    answer = HealthCheckResponse.SerializeToString
    check, watch = (
        public(_parsing(HealthCheckRequest.FromString, each))
        for each in (health.check, health.watch)
    )
    return {
        "Check": grpc.unary_unary_rpc_method_handler(check, None, answer),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, None, answer),
    }


def _reflection_methods(services: Iterable[str], public: Wrap) -> Methods:
    pool = Default()
    described = sorted(name for name in services if _is_described(name))
    servicer = reflection.aio.ReflectionServicer(described, pool=pool)

    async def answer_all(messages: AsyncIterator[bytes], context: Any) -> None:
        async def requests() -> AsyncIterator[Any]:
            parse = reflection_pb2.ServerReflectionRequest.FromString
            async for message in messages:
                yield await _parsed(parse, message, context)

        async for answer in servicer.ServerReflectionInfo(requests(), context):
            await context.write(answer)

    return {
        "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
            public(answer_all),
            None,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
    }


def _is_described(service: str) -> bool:
    """Return whether a service was generated from a .proto; others exist, but nothing describes them."""
    try:
        Default().FindServiceByName(service)
    except KeyError:
        return False
    return True


_CHANNELZ_CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    "GetTopChannels": ("start_channel_id",),
    "GetServers": ("start_server_id",),
    "GetServer": ("server_id",),
    "GetServerSockets": ("server_id", "start_socket_id", "max_results"),
    "GetChannel": ("channel_id",),
    "GetSubchannel": ("subchannel_id",),
    "GetSocket": ("socket_id",),
}
"""Fields of each request, in the order in which gRPC's core takes them."""


def _channelz_methods(private: Wrap) -> Methods:
    """Return our own handlers: the library's answer INTERNAL where its core tells fields that it does not know."""
    methods: Methods = {}
    for method in channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].methods:
        request = getattr(channelz_pb2, method.input_type.name)
        answer = getattr(channelz_pb2, method.output_type.name)
        words = re.findall("[A-Z][a-z]+", method.name)
        ask = getattr(cygrpc, f"channelz_{'_'.join(words).lower()}")
        serve = private(
            _parsing(request.FromString, _asking(ask, _CHANNELZ_CALLS[method.name], answer))
        )
        methods[method.name] = grpc.unary_unary_rpc_method_handler(
            serve, None, answer.SerializeToString
        )
    return methods


def _asking(ask: Callable[..., bytes], names: Sequence[str], answer: Callable[[], Any]) -> Handler:
    async def asking(request: Any, context: Any) -> Any:
        try:
            told = ask(*(getattr(request, name) for name in names))
        except ValueError:
            return await context.abort(grpc.StatusCode.NOT_FOUND, "nothing of this id")
        return json_format.Parse(told, answer(), ignore_unknown_fields=True)

    return asking
