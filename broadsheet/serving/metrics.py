"""Metrics that every server process has, of its calls, its event loop and its logs; and pushing them to a gateway."""

from __future__ import annotations

import asyncio
import platform
import time
from bisect import bisect_left
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from http.client import HTTPException
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import unquote

import grpc
import structlog
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Gauge,
    Histogram,
    Metric,
    delete_from_gateway,
    push_to_gateway,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import basic_auth_handler, default_handler
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from broadsheet.runtime.installed_version import installed_version
from broadsheet.runtime.log_output import LOSSES, Loss
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.secret_url import SecretUrl
from broadsheet.security.tls import TlsConfig, tls_files

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_log = structlog.get_logger()

# `Any`: messages and contexts of several services, for which gRPC has no common types.
Methods: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"
"""Handlers by the method's name. Quoted, because the class is generic in the stubs only."""
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
            kind, installed_version(), platform.python_version(), grpc.__version__
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


class CertificateMetrics(Collector):
    """Collects the time at which a server's certificate expires."""

    def __init__(self, tls: TlsConfig, *, prefix: str) -> None:
        """Create the collector.

        Args:
            tls: The server's files.
            prefix: Of the name; a member and a broker may share a registry.
        """
        self._tls = tls
        self._name = f"{prefix}_certificate_expiry_timestamp_seconds"

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the present sample; it has none if the certificate's form is unknown."""
        gauge = self._gauge()
        expires_at = tls_files(self._tls).present().expires_at
        if expires_at is not None:
            gauge.add_metric((), expires_at.timestamp())
        yield gauge

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the name alone, so that registering reads nothing."""
        yield self._gauge()

    def _gauge(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            self._name,
            "When the certificate that is served expires, seconds of Unix time.",
            labels=(),
        )


class Intake(Protocol):
    """A server with calls whose request has not arrived."""

    @property
    def unread_calls(self) -> int:
        """Their present number."""
        ...

    @property
    def refused_unread_calls(self) -> int:
        """Number that was refused since the start."""
        ...


class IntakeMetrics(Collector):
    """Collects the calls of a server whose request has not arrived."""

    def __init__(self, server: Intake, *, prefix: str) -> None:
        """Create the collector.

        Args:
            server: Has the calls.
            prefix: Of the names; a member and a broker may share a registry.
        """
        self._server = server
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        """Yield the present samples."""
        yield GaugeMetricFamily(
            f"{self._prefix}_unread_calls",
            "Calls whose request has not arrived.",
            value=self._server.unread_calls,
        )
        yield CounterMetricFamily(
            f"{self._prefix}_unread_calls_refused",
            "Calls refused because their request did not arrive in time, or too many others waited for theirs.",
            value=self._server.refused_unread_calls,
        )


class BoundMetrics(Collector):
    """Use of a server's bounds by its clients; the label `bound` is the name of a field of the bounds.

    The numbers are read at each scrape, so that calls pay nothing for them.
    """

    def __init__(
        self,
        prefix: str,
        bounds: DataclassInstance,
        *,
        in_use: Callable[[], Mapping[str, int]],
        refused: Callable[[], Mapping[str, int]],
    ) -> None:
        """Create the collector.

        Args:
            prefix: Of the names; a member and a broker may share a registry.
            bounds: A number in each field.
            in_use: Returns what is held of some bounds, by name.
            refused: Returns how often bounds were reached since the start, by name.
        """
        self._prefix = prefix
        self._bounds = bounds
        self._in_use = in_use
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        bounds = GaugeMetricFamily(
            f"{self._prefix}_bound", "Bounds that the process was started with.", labels=["bound"]
        )
        in_use = GaugeMetricFamily(
            f"{self._prefix}_in_use",
            "Calls, streams, reads or bytes that clients hold of a bound.",
            labels=["bound"],
        )
        refused = CounterMetricFamily(
            f"{self._prefix}_refused",
            "Requests refused, and calls cut off, because a bound was reached.",
            labels=["bound"],
        )
        for each in fields(self._bounds):
            bounds.add_metric([each.name], getattr(self._bounds, each.name))
        for family, counts in ((in_use, self._in_use()), (refused, self._refused())):
            for name, count in counts.items():
                family.add_metric([name], count)
        yield from (bounds, in_use, refused)


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
