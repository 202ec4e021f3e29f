"""Standard gRPC services of a member and a broker: health, reflection and channelz.

Health and reflection are public: load balancers and Kubernetes' probes have no token, and what they learn (that a
process is up, which services it has) is in this repository. Their calls have bounds of their own, so that strangers
cannot take the places of other clients. Channelz shows who is connected, so it needs a token.

Names that health knows:

    ""                  SERVING once the process is ready, NOT_SERVING from when it starts to leave
    a gRPC service      the same
    "liveness"          SERVING as long as the process answers, also while it leaves
    "shard/ID"          SERVING while this member's replica is PRIMARY, or a standby that has caught up (STANDBY)

Source: gRPC health checking protocol, https://github.com/grpc/grpc/blob/master/doc/health-checking.md; gRFCs A14, A17.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.descriptor_pool import Default
from grpc_channelz.v1 import channelz, channelz_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2

from broadsheet.consumer.broker.signal import Signal

ServingStatus: TypeAlias = int
"""A `HealthCheckResponse.ServingStatus`: the library ships no type of it."""
SERVING: Final[ServingStatus] = HealthCheckResponse.SERVING
NOT_SERVING: Final[ServingStatus] = HealthCheckResponse.NOT_SERVING
HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
CHANNELZ: Final = "grpc.channelz.v1.Channelz"
LIVENESS: Final = "liveness"
SHARD_PREFIX: Final = "shard/"
PUBLIC_PREFIXES: Final = (f"/{HEALTH}/", f"/{REFLECTION}/")
"""Prefixes of the methods that need no token."""

# `Any` in this module: messages and contexts of several services, for which gRPC has no common types.
Handler = Callable[[Any, Any], Awaitable[Any]]
Wrap = Callable[[Handler], Handler]
Methods: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"
"""Quoted, because the class is generic in the stubs only."""


def is_public(method: str) -> bool:
    """Return whether a method, `/package.Service/Method`, needs no token."""
    return method.startswith(PUBLIC_PREFIXES)


class Health:
    """Serving state of a process and its parts; watchers are told of each change."""

    def __init__(self) -> None:
        self.is_serving = False
        self.part_status: Callable[[str], ServingStatus | None] = lambda _: None
        """Returns the status of a name that is no gRPC service; None if it does not exist."""
        self.services: frozenset[str] = frozenset()
        """gRPC services of the process, which serve when it does."""
        self._changed = Signal()
        self._is_closed = False

    def status_of(self, name: str) -> ServingStatus | None:
        """Return the status of a service or part; None if there is none of that name."""
        if name == LIVENESS:
            return SERVING
        if not name or name in self.services:
            return SERVING if self.is_serving else NOT_SERVING
        return self.part_status(name)

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
        status = self.status_of(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service or shard of this name")
        return HealthCheckResponse(status=status)

    async def watch(self, request: HealthCheckRequest, context: Any) -> None:
        """Serve `Watch`: send the status, and each one that differs from the one before."""
        told: ServingStatus | None = None
        while True:
            # Nothing is awaited between a look that changed nothing and the wait, so no change is missed; changes
            # during a slow write are coalesced into the newest.
            status = self.status_of(request.service)
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


def standard_handlers(
    health: Health, services: Iterable[str], *, public: Wrap, private: Wrap
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of health, reflection and channelz, for `add_generic_rpc_handlers`.

    Args:
        health: Gets the names of all services.
        services: Names of the server's other services. One of ours among them is left to whoever registered it.
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


def _health_methods(health: Health, public: Wrap) -> Methods:
    request, answer = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
    return {
        "Check": grpc.unary_unary_rpc_method_handler(public(health.check), request, answer),
        "Watch": grpc.unary_stream_rpc_method_handler(public(health.watch), request, answer),
    }


def _reflection_methods(services: Iterable[str], public: Wrap) -> Methods:
    pool = Default()
    described = sorted(name for name in services if _is_described(name))
    servicer = reflection.aio.ReflectionServicer(described, pool=pool)

    async def answer_all(requests: AsyncIterator[Any], context: Any) -> None:
        async for answer in servicer.ServerReflectionInfo(requests, context):
            await context.write(answer)

    return {
        "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
            public(answer_all),
            reflection_pb2.ServerReflectionRequest.FromString,
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


def _channelz_methods(private: Wrap) -> Methods:
    described = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"]
    servicer = channelz.aio.ChannelzServicer
    methods: Methods = {}
    for method in described.methods:
        request = getattr(channelz_pb2, method.input_type.name)
        answer = getattr(channelz_pb2, method.output_type.name)
        methods[method.name] = grpc.unary_unary_rpc_method_handler(
            private(getattr(servicer, method.name)), request.FromString, answer.SerializeToString
        )
    return methods


class NamedServices(grpc.aio.Server):
    """A server that notes the names of the services that are added to it, and delegates everything."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self.names: set[str] = set()

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        """Add services."""
        handlers = tuple(generic_rpc_handlers)
        for handler in handlers:
            if isinstance(handler, grpc.ServiceRpcHandler):
                self.names.add(handler.service_name())
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Add the methods of one service."""
        self.names.add(service_name)
        self._server.add_registered_method_handlers(service_name, method_handlers)

    def add_insecure_port(self, address: str) -> int:
        """Add a port without TLS."""
        return self._server.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Add a port with TLS."""
        return self._server.add_secure_port(address, server_credentials)

    async def start(self) -> None:
        """Start serving."""
        await self._server.start()

    async def stop(self, grace: float | None) -> None:
        """Stop serving."""
        await self._server.stop(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped."""
        return await self._server.wait_for_termination(timeout)
