"""The gRPC server of members and brokers; no bytes of a stranger end it, and its end is noticed.

    HEADERS ─► path of a registered method ─► interceptors ─► message arrives ─► handler
          └──► any other path: UNIMPLEMENTED, and the path is never decoded
                                    └─ no message within `request_seconds_max`, or `unread_calls_max` newer calls:
                                       the call is refused

`grpc.aio` decodes the path of an unregistered method as UTF-8, in its only loop, and an error there ends the
server of a process that lives on. So every method is registered with gRPC's core, which compares bytes, and this module
takes over the loop's share of the work: one task per method takes its calls. That also spares gRPC's wait for one
future of every method with each call, a tenth of a short call with 25 methods.

Source: grpcio 1.84 to 1.85, `grpc/_cython/_cygrpc/aio/server.pyx.pxi` (`_server_main_loop`).
"""

# ruff: noqa: SLF001  # gRPC's loop has no public parts; tests show that what this module uses is there.

from __future__ import annotations

import asyncio
import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server as grpc_aio_server
from prometheus_client import CollectorRegistry

from broadsheet.runtime.errors import (
    CannotListenError,
    ServerEndedError,
    ValidationError,
    os_error_text,
)
from broadsheet.security.tls import TlsConfig, add_port
from broadsheet.serving.metrics import CertificateMetrics, IntakeMetrics

# `Any` in this module: gRPC's core has no types, and handlers have those of their services.

CHECK_SECONDS: Final = 0.5
"""Pause between two checks that the server still runs, beside the events that say that it ended."""
SPARE_STREAMS: Final = 64
"""Streams of a connection beyond its bound of calls, so that a call beyond the bound is refused with its reason."""
PENDING_CALLS_MIN: Final = 1_000
"""Calls of one method that wait until the event loop takes them; gRPC's own bound, which cancels calls beyond it."""
Handler = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeBounds:
    """Bounds of calls that a handler does not know yet."""

    calls_per_connection_max: int = 4_096
    """Calls under way on one connection; the transport lets a client begin a few more, and then makes it wait."""
    unread_calls_max: int = 4_096
    """Calls whose request has not arrived; a further one takes the place of the oldest of them."""
    ping_seconds_min: float = 5.0
    """Shortest interval of a connection's pings while nothing is sent to it; a client that pings more often is cut off,
    with its calls. gRPC's own bound is five minutes, and peers ping every ten seconds."""
    request_seconds_max: float = 30.0
    """Time for the request of a call to arrive. Handlers of calls with a stream of requests bound these themselves."""


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """Place of a server's metrics."""

    registry: CollectorRegistry
    prefix: str
    """Of the names; a member and a broker may share a registry."""


class GrpcServer(grpc.aio.Server):
    """A server of methods that are known before it starts."""

    def __init__(
        self,
        *,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        options: Iterable[tuple[str, Any]] = (),
        bounds: IntakeBounds | None = None,
        metrics: ServerMetrics | None = None,
    ) -> None:
        """Create a server without ports.

        Args:
            interceptors: Of all calls, the first outermost.
            options: Of gRPC's channels.
            bounds: Of calls that no handler knows yet.
            metrics: Of its calls and certificate; none are shown if absent.
        """
        bounds = bounds or IntakeBounds()
        self._intake = _Intake(bounds)
        pending = max(PENDING_CALLS_MIN, bounds.unread_calls_max)
        ours = (
            (
                "grpc.max_concurrent_streams",
                bounds.calls_per_connection_max + SPARE_STREAMS,
            ),
            ("grpc.http2.min_ping_interval_without_data_ms", int(1_000 * bounds.ping_seconds_min)),
            # Idle connections may be kept alive, too.
            ("grpc.keepalive_permit_without_calls", 1),
            # Otherwise a burst within our bounds, or a loop that was busy for a moment, costs honest clients their
            # calls, and the status, CANCELLED, does not say why.
            ("grpc.server.max_pending_requests", pending),
            ("grpc.server.max_pending_requests_hard_limit", 3 * pending),
        )
        self.core = _Core((self._intake, *interceptors), (*options, *ours))
        """gRPC's own server."""
        self._methods: dict[str, Any] = {}
        self._is_stopping = False
        self._changed = asyncio.Event()
        self.core.on_crash = self._changed.set
        self.names: set[str] = set()
        """Services that were added."""
        self._metrics = metrics
        if metrics is not None:
            metrics.registry.register(IntakeMetrics(self, prefix=metrics.prefix))

    @property
    def unread_calls(self) -> int:
        """Calls whose request has not arrived."""
        return len(self._intake.waiting)

    @property
    def refused_unread_calls(self) -> int:
        """Calls that were refused because their request did not arrive, since the start."""
        return self._intake.refused

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        """Add services.

        Raises:
            ValidationError: a handler does not name its methods in advance.
        """
        for handler in generic_rpc_handlers:
            # gRPC's own class of such handlers has no public way to its methods.
            methods = getattr(handler, "_method_handlers", None)
            if not isinstance(handler, grpc.ServiceRpcHandler) or not isinstance(methods, dict):
                raise ValidationError(
                    "generic_rpc_handlers",
                    f"{type(handler).__name__} does not name its methods in advance; register services by generated "
                    "code, or with grpc.method_handlers_generic_handler",
                )
            self._add(handler.service_name(), methods)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Add a service."""
        named = {f"/{service_name}/{name}": each for name, each in method_handlers.items()}
        self._add(service_name, named)

    def _add(self, service: str, methods: Mapping[str, Any]) -> None:
        self.names.add(service)
        # The first handler of a name stays: generated code adds each service twice, as older gRPC needs it.
        self._methods = {**methods, **self._methods}

    def bind(self, address: str, tls: TlsConfig | None) -> int:
        """Bind the server to `host:port`, with TLS if there is a certificate; return the port.

        Raises:
            CannotListenError: the address cannot be bound.
            ValidationError: a file of `tls` cannot be used; the field's path begins with `tls`.
        """
        try:
            port = add_port(self, address, tls)
        except OSError as error:
            raise CannotListenError(address, os_error_text(error)) from error
        except RuntimeError as error:
            raise CannotListenError(
                address, "is the port in use, and the host this machine's?"
            ) from error
        except ValidationError as error:
            raise error.under("tls") from None
        if self._metrics is not None and tls is not None and tls.serves:
            self._metrics.registry.register(CertificateMetrics(tls, prefix=self._metrics.prefix))
        return port

    def add_insecure_port(self, address: str) -> int:
        """Add a port without TLS; raise RuntimeError if it cannot be bound."""
        return _bound(address, self.core.add_insecure_port(address.encode()))

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Add a port with TLS; raise RuntimeError if it cannot be bound."""
        return _bound(address, self.core.add_secure_port(address.encode(), server_credentials))

    async def start(self) -> None:
        """Start serving."""
        self.core.serve(self._methods)
        await self.core.start()

    async def stop(self, grace: float | None) -> None:
        """Stop serving: at once, or when calls under way have ended, but at the latest after `grace` seconds."""
        self._is_stopping = True
        self._changed.set()
        self._intake.close()
        await self.core.shutdown(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped; return True if it has not within `timeout` seconds."""
        return bool(await self.core.wait_for_termination(timeout))

    async def watch(self) -> None:
        """Return once the server is stopped.

        Raises:
            ServerEndedError: it has ended, and `stop` was not called.
        """
        while not self._is_stopping:
            if self.core.crash is not None or not self.core.is_running():
                raise ServerEndedError(self.core.crash)
            # gRPC says when its loop fails; whatever else may end a server shows in its state.
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._changed.wait()


def _bound(address: str, port: int) -> int:
    if not port:
        raise RuntimeError(f"cannot bind {address}")
    return port


class _Core(cygrpc.AioServer):  # type: ignore[misc]  # gRPC's core has no types
    """gRPC's server, with one task per method in place of its one loop for all."""

    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Iterable[tuple[str, Any]],
    ) -> None:
        self._loop_of_server = asyncio.get_running_loop()
        self._chain = tuple(interceptors)
        self._resolver = cygrpc._MethodResolver([], {})
        self.crash: BaseException | None = None
        self.on_crash: Callable[[], None] = lambda: None
        arguments = grpc_aio_server._augment_channel_arguments(tuple(options), None)
        super().__init__(self._loop_of_server, None, (), (), arguments, None)

    def serve(self, methods: Mapping[str, Any]) -> None:
        """Set the methods, by path, before the start."""
        self._resolver = cygrpc._MethodResolver([], dict(methods))
        self.add_registered_method_handlers(dict(methods))

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Task[None]:
        """Return what gRPC's loop waits for: the task that takes all calls of a method.

        Args:
            method: Its path; None: all paths that are not registered.
        """
        taking = self._take_unknown() if method is None else self._take(method)
        return self._loop_of_server.create_task(taking, name=f"calls of {method!r}")

    async def _take(self, method: bytes) -> None:
        await self._take_all(
            partial(self._request_registered_call, method), method.decode(), self._resolver
        )

    async def _take_unknown(self) -> None:
        await self._take_all(self._request_call, "unknown", cygrpc._MethodResolver([], {}))

    async def _take_all(self, request: Callable[[], Any], name: str, resolver: Any) -> None:
        loop, tasks = self._loop_of_server, set[asyncio.Task[None]]()
        while True:
            try:
                state = await request()
            except cygrpc._RequestCallError:
                # A call that ended before it was taken; or all of them, because the server stops.
                if not self.is_running():
                    raise
                continue
            call = cygrpc._handle_rpc(name, resolver, self._chain, state, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(call, state, loop, name))
            # The loop itself holds tasks only weakly.
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def _serving_task_crash_handler(self, task: asyncio.Task[None]) -> None:
        """Note that gRPC's loop has ended. Called by gRPC."""
        if not task.cancelled() and task.exception() is not None and not self.crash:
            self.crash = task.exception()
            self.on_crash()
        super()._serving_task_crash_handler(task)


class _Waiting:
    """A call whose request has not arrived.

    gRPC enters the handler of a call with one request only when the request is there. Until then nothing of ours knows
    the call, and its headers cost memory. So such calls are served as calls with a stream of requests, whose handlers
    are entered at once, and `_Intake` receives the request.
    """

    __slots__ = ("code", "deadline", "details", "task")

    def __init__(self, task: asyncio.Task[Any], deadline: float) -> None:
        self.task = task
        self.deadline = deadline
        self.code: grpc.StatusCode | None = None
        """Of its refusal; None if it is not refused."""
        self.details = ""

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        """End the wait."""
        self.code, self.details = code, details
        self.task.cancel()


class _Intake(grpc.aio.ServerInterceptor):
    """Receives the requests of calls, within bounds of time and number. The outermost interceptor."""

    def __init__(self, bounds: IntakeBounds) -> None:
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._receiving: dict[str, tuple[Any, Any]] = {}
        """The handler of each method, and the one that receives its request: gRPC asks with every call."""
        self.waiting: dict[_Waiting, None] = {}
        """Oldest first."""
        self.refused = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return a handler that receives the request itself, if there is one request."""
        found = await continuation(handler_call_details)
        if found is None or found.request_streaming:
            return found
        method = str(handler_call_details.method)
        known, receiving = self._receiving.get(method, (None, None))
        if known is not found:
            receiving = self._handler(found)
            self._receiving[method] = found, receiving
        return receiving

    def _handler(self, found: Any) -> Any:
        if not found.response_streaming:
            kind, receiving = grpc.stream_unary_rpc_method_handler, self._answering(found)
        elif inspect.isasyncgenfunction(found.unary_stream):
            kind, receiving = grpc.stream_stream_rpc_method_handler, self._generating(found)
        else:
            kind, receiving = grpc.stream_stream_rpc_method_handler, self._writing(found)
        return kind(
            receiving,
            request_deserializer=found.request_deserializer,
            response_serializer=found.response_serializer,
        )

    def _answering(self, found: Any) -> Handler:
        inner = found.unary_unary

        async def receiving(requests: object, context: Any) -> Any:
            del requests  # read from the context, because that can be cut off
            return await inner(await self._receive(context), context)

        return receiving

    def _writing(self, found: Any) -> Handler:
        inner = found.unary_stream

        async def receiving(requests: object, context: Any) -> None:
            del requests
            await inner(await self._receive(context), context)

        return receiving

    def _generating(self, found: Any) -> Handler:
        inner = found.unary_stream

        async def receiving(requests: object, context: Any) -> AsyncIterator[Any]:
            del requests
            async for response in inner(await self._receive(context), context):
                yield response

        return receiving

    async def _receive(self, context: Any) -> Any:
        call = self._begin()
        try:
            request = await context.read()
        except asyncio.CancelledError:
            if call.code is None:
                raise
            call.task.uncancel()
            await context.abort(call.code, call.details)
        finally:
            self.waiting.pop(call, None)
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "request: expected a message")
        return request

    def _begin(self) -> _Waiting:
        """Let a call wait, in place of the oldest if there are too many.

        The oldest, because the requests of calls that mean it follow their headers closely.
        """
        task = asyncio.current_task()
        assert task is not None, "gRPC runs handlers in tasks"
        call = _Waiting(task, self._loop.time() + self._bounds.request_seconds_max)
        if len(self.waiting) >= self._bounds.unread_calls_max:
            self._refuse_oldest(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"its request has not arrived, and {self._bounds.unread_calls_max} calls began after it",
            )
        self.waiting[call] = None
        if self._timer is None:
            self._timer = self._loop.call_at(call.deadline, self._refuse_late)
        return call

    def _refuse_oldest(self, code: grpc.StatusCode, details: str) -> None:
        oldest = next(iter(self.waiting))
        del self.waiting[oldest]
        self.refused += 1
        oldest.refuse(code, details)

    def _refuse_late(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self.waiting:
            oldest = next(iter(self.waiting))
            if oldest.deadline > now:
                self._timer = self._loop.call_at(oldest.deadline, self._refuse_late)
                return
            self._refuse_oldest(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"no request within {self._bounds.request_seconds_max:g} s of the call's headers",
            )

    def close(self) -> None:
        """Refuse no more calls, because the server ends them all."""
        if self._timer is not None:
            self._timer.cancel()
