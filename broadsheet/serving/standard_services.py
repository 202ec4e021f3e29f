"""Parts of each gRPC server of ours: health, reflection, channelz, and metrics of its calls and its process.

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

import asyncio
import platform
import re
import time
from bisect import bisect_left
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from importlib.metadata import version
from itertools import accumulate
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf import json_format
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import DecodeError
from grpc._cython import cygrpc
from grpc_channelz.v1 import channelz_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Gauge,
    Histogram,
    Metric,
    delete_from_gateway,
    push_to_gateway,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import basic_auth_handler, default_handler
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from broadsheet.runtime.event_loop import Signal
from broadsheet.runtime.log_output import LOSSES, Loss
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Capability, Claims
from broadsheet.security.secret_url import SecretUrl

_log = structlog.get_logger()
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
Methods: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"
"""Quoted, because the class is generic in the stubs only."""


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


# Metrics.

CALL_BUCKETS_SECONDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""From a Stat answered from memory to one that waits for a transaction; streams last longer, and are told by `+Inf`."""
_CALL_BOUNDS: Final = (*map(str, CALL_BUCKETS_SECONDS), "+Inf")
LAG_BUCKETS_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_LOOK_SECONDS: Final = 0.5
"""Pause between two looks at how late the event loop is."""
_KINDS: Final = {
    (False, False): "unary",
    (True, False): "client_stream",
    (False, True): "server_stream",
    (True, True): "bidi_stream",
}
"""By whether requests and answers are streams."""
_CODES: Final = {
    code.value[0]: "".join(part.capitalize() for part in code.name.split("_"))
    for code in grpc.StatusCode
} | {grpc.StatusCode.OK.value[0]: "OK", grpc.StatusCode.CANCELLED.value[0]: "Canceled"}
"""Names of status codes as Go's gRPC has them."""
_CANCELLED: Final[int] = grpc.StatusCode.CANCELLED.value[0]
_UNKNOWN: Final[int] = grpc.StatusCode.UNKNOWN.value[0]


class CallMetrics(Collector):
    """Counts and times of a server's calls; plain numbers, made into metrics at collection, so that calls pay little.

    Source: go-grpc-prometheus, which Gazette's servers use (names and labels).
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._series: dict[str, _CallSeries] = {}
        registry.register(self)

    def measured(self, method: str, handler: Any, context: Any) -> MeasuredCall:
        """Return the block in which a call is served, on the event loop.

        Args:
            method: `/package.Service/Method`, which the server has.
            handler: gRPC's handler of the method, which tells the kind of call.
            context: Of the call.
        """
        series = self._series.get(method)
        if series is None:
            kind = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
            _, service, name = method.split("/", 2)
            series = self._series[method] = _CallSeries((kind, service, name))
        return MeasuredCall(series, context)

    def collect(self) -> Iterator[Metric]:
        """Return the present metrics."""
        labels = ("grpc_type", "grpc_service", "grpc_method")
        started = CounterMetricFamily("grpc_server_started", "Calls that began.", labels=labels)
        handled = CounterMetricFamily(
            "grpc_server_handled", "Calls that ended, by status.", labels=(*labels, "grpc_code")
        )
        seconds = HistogramMetricFamily(
            "grpc_server_handling_seconds",
            "Time from a call's beginning to its end.",
            labels=labels,
        )
        # Copies, because Prometheus collects on a separate thread.
        for series in tuple(self._series.values()):
            started.add_metric(series.labels, series.started)
            for code, count in tuple(series.ended.items()):
                handled.add_metric((*series.labels, _CODES[code]), count)
            counts = accumulate(tuple(series.buckets))
            seconds.add_metric(
                series.labels,
                [
                    (bound, count) if exemplar is None else (bound, count, exemplar)
                    for bound, count, exemplar in zip(
                        _CALL_BOUNDS, counts, tuple(series.exemplars), strict=True
                    )
                ],
                series.seconds,
            )
        yield from (started, handled, seconds)

    def metered(self, service: str, methods: Methods) -> Methods:
        """Return handlers, all coroutine functions, whose calls are measured."""
        return {
            name: self._metered(f"/{service}/{name}", handler) for name, handler in methods.items()
        }

    def _metered(self, method: str, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        make, inner = shape_of(handler)

        async def measured(request: Any, context: Any) -> Any:
            with self.measured(method, handler, context):
                return await inner(request, context)

        made: grpc.RpcMethodHandler[Any, Any] = make(
            measured, handler.request_deserializer, handler.response_serializer
        )
        return made


def shape_of(handler: Any) -> tuple[Any, Any]:
    """Return gRPC's factory of handlers of this kind, and the handler's function."""
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler, handler.stream_stream
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler, handler.stream_unary
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler, handler.unary_stream
    return grpc.unary_unary_rpc_method_handler, handler.unary_unary


@dataclass(slots=True)
class _CallSeries:
    """Numbers of one method."""

    labels: tuple[str, str, str]
    started: int = 0
    seconds: float = 0.0
    ended: dict[int, int] = field(default_factory=dict)
    """By status."""
    buckets: list[int] = field(default_factory=lambda: [0] * len(_CALL_BOUNDS))
    """Calls that took at most a bound, and more than the one before."""
    exemplars: list[Exemplar | None] = field(default_factory=lambda: [None] * len(_CALL_BOUNDS))
    """The last traced call of each bucket."""


class MeasuredCall:
    """The block in which one call is served."""

    __slots__ = ("_began", "_context", "_series", "exemplar")

    def __init__(self, series: _CallSeries, context: Any) -> None:
        self._series = series
        self._context = context
        self._began = 0.0
        self.exemplar: dict[str, str] | None = None
        """Labels that name the call's trace, if it is traced."""

    def __enter__(self) -> MeasuredCall:
        self._series.started += 1
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        series, seconds, code = self._series, time.perf_counter() - self._began, self._code(kind)
        series.seconds += seconds
        bucket = bisect_left(CALL_BUCKETS_SECONDS, seconds)
        series.buckets[bucket] += 1
        if self.exemplar is not None:
            series.exemplars[bucket] = Exemplar(self.exemplar, seconds, time.time())
        series.ended[code] = series.ended.get(code, 0) + 1

    def _code(self, kind: type[BaseException] | None) -> int:
        if kind is not None and issubclass(kind, (asyncio.CancelledError, GeneratorExit)):
            return _CANCELLED
        code = self._context.code()
        number = code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0)
        # gRPC answers UNKNOWN for an error without a status.
        return _UNKNOWN if kind is not None and not number else number


class ProcessMetrics:
    """The build, the lateness of the event loop, and lost log lines."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._build = Gauge(
            "broadsheet_build_info",
            "1, labelled with versions and the kind of process.",
            ("kind", "version", "python", "grpc"),
            registry=registry,
        )
        self._lag = Histogram(
            "broadsheet_event_loop_lag_seconds",
            "How late the event loop runs what is due; nothing else in the process runs meanwhile.",
            registry=registry,
            buckets=LAG_BUCKETS_SECONDS,
        )
        registry.register(_LogMetrics())

    def set_build(self, kind: str) -> None:
        """Show the versions.

        Args:
            kind: `member` or `broker`.
        """
        self._build.labels(
            kind, version("broadsheet"), platform.python_version(), grpc.__version__
        ).set(1)

    async def watch_loop(self) -> None:
        """Measure the event loop's lag until cancelled."""
        while True:
            due = time.perf_counter() + LAG_LOOK_SECONDS
            await asyncio.sleep(LAG_LOOK_SECONDS)
            self._lag.observe(max(0.0, time.perf_counter() - due))


class _LogMetrics(Collector):
    """Lost log lines, which no line can tell of as long as none can be written."""

    def collect(self) -> Iterator[Metric]:
        """Return the present counts."""
        lost = CounterMetricFamily(
            "broadsheet_log_lines_lost",
            "Lines of this process's logs that were not written, by reason.",
            labels=["reason"],
        )
        for why in Loss:
            lost.add_metric([why.value], LOSSES.count(why))
        yield lost


class AllMetrics(Collector):
    """Metrics of a registry and of the default one, where applications and libraries put theirs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Return the present metrics."""
        names: set[str] = set()
        for metric in self._registry.collect():
            names.add(metric.name)
            yield metric
        if self._registry is not REGISTRY:
            # A name must not occur twice: scrapers refuse the whole text.
            yield from (metric for metric in REGISTRY.collect() if metric.name not in names)


PUSH_SECONDS: Final = 15.0
"""Pause between two pushes; the usual interval of a scrape."""
PUSH_SECONDS_MAX: Final = 5.0
"""Time of one push, for which a process that ends may wait, too."""
DELETE_SECONDS_MAX: Final = 2.0
"""Time of the deletion, for which a process that leaves waits."""
PUSH_JOB: Final = "broadsheet"


@asynccontextmanager
async def pushed_metrics(
    url: str | SecretUrl,
    instance: str,
    registry: CollectorRegistry,
    *,
    pause_seconds: float = PUSH_SECONDS,
) -> AsyncIterator[None]:
    """Push metrics to a Pushgateway during the block, and delete them there at its end.

    It is for processes that cannot be scraped, such as executors whose ports are closed or not known.

    Args:
        url: Of the gateway; its user and password are sent as HTTP knows them.
        instance: Label of this process's metrics.
        registry: Of its metrics; those of prometheus_client's default registry are added.
        pause_seconds: Between two pushes.
    """
    key = {"instance": instance}
    gateway = _gateway(SecretUrl.of(url))
    try:
        async with TaskGroup() as group:
            pushing = _push(gateway, key, AllMetrics(registry), pause_seconds)
            group.start_soon(pushing, name="push metrics")
            yield
            group.stop()
    finally:
        try:
            await asyncio.to_thread(
                delete_from_gateway,
                gateway.address,
                PUSH_JOB,
                key,
                timeout=DELETE_SECONDS_MAX,
                handler=gateway.handler,
            )
        except _PUSH_ERRORS as error:
            _log.info("metrics.not_deleted", cause=gateway.url.hidden_in(str(error)))


_PUSH_ERRORS: Final = (OSError, HTTPException, ValueError)
"""Of urllib; the last two are of an address that only it finds wrong."""


@dataclass(frozen=True, slots=True)
class _Gateway:
    url: SecretUrl
    address: str
    """The URL without user and password, which urllib would take for a part of the host's name."""
    handler: Any
    """Of prometheus_client."""


def _gateway(url: SecretUrl) -> _Gateway:
    scheme, separator, rest = url.reveal().partition("://")
    authority, slash, path = rest.partition("/")
    credentials, at, host = authority.rpartition("@")
    handler: Any = default_handler
    if at:
        name, _, password = credentials.partition(":")
        handler = partial(basic_auth_handler, username=unquote(name), password=unquote(password))
    return _Gateway(url, f"{scheme}{separator}{host}{slash}{path}", handler)


async def _push(
    gateway: _Gateway, key: dict[str, str], metrics: AllMetrics, pause_seconds: float
) -> None:
    is_failing = False
    while True:
        try:
            await asyncio.to_thread(
                push_to_gateway,
                gateway.address,
                PUSH_JOB,
                metrics,
                key,
                timeout=PUSH_SECONDS_MAX,
                handler=gateway.handler,
            )
            is_failing = False
        except _PUSH_ERRORS as error:  # HTTP errors are among these.
            # Once, because a gateway may be away for long.
            if not is_failing:
                _log.warning("metrics.push_failed", cause=gateway.url.hidden_in(str(error)))
            is_failing = True
        await asyncio.sleep(pause_seconds)
