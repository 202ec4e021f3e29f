"""Traces: spans of calls, appends and transactions, and the W3C trace context that joins them across processes.

    client ── traceparent in metadata ──► member: server span ─ resolve ── traceparent ──► primary: server span
    publisher ── traceparent in the message ──► transaction (parent and links) ── in its messages ──► the next shard
    append ── traceparent in metadata ──► broker: server span

Tracing is on where the process has an OpenTelemetry tracer provider: the application's own, or that of
`traces_exported`. Each client, server and shard looks once, when it is made (`tracing`); if there is none, nothing is
installed, and the library is not even imported. Only the trace context is propagated, never baggage: what a stranger
sends can name a trace, and nothing else.

Source: W3C Trace Context; OpenTelemetry semantic conventions (names of attributes).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from broadsheet.runtime.errors import ExtraMissingError, ValidationError
from broadsheet.runtime.installed_version import installed_version
from broadsheet.runtime.libraries import EXTRAS

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, SpanContext, TracerProvider

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
TRACEPARENT_CHARACTERS: Final = 55
"""Length of a context of version 00, the only one there is."""
TRACESTATE_CHARACTERS_MAX: Final = 512
"""Longest state of other tracing systems that is passed on, the length that the standard asks for."""
FLUSH_SECONDS_MAX: Final = 3.0
"""How long a process that ends waits until its last spans are exported."""
APPEND_METHOD: Final = "/protocol.Journal/Append"
"""Name of appends, also of those that share a stream."""
JOURNAL_ATTRIBUTE: Final = "messaging.destination.name"
NO_SPAN: Final = nullcontext()
"""Stands for a span where tracing is off."""
_EXPORTERS: Final = ("otlp", "console", "none")
_PROTOCOL: Final = "http/protobuf"
_STATUS_CHARACTERS_MAX: Final = 256

_log = structlog.get_logger()
Attributes = Mapping[str, str | int]
TRACES_VARIABLE: Final = "BROADSHEET_TRACES"


def tracing() -> Tracing | None:
    """Return the tracing of this process; None if it has no tracer provider."""
    # A provider is set by the library alone: as long as it is not imported, there is none.
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, get_tracer_provider

    provider = get_tracer_provider()
    if isinstance(provider, (ProxyTracerProvider, NoOpTracerProvider)) or _is_disabled():
        return None
    return Tracing(provider)


class Tracing:
    """Makes spans, and carries their context over gRPC and in messages. Methods may be called on any thread."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._context = context
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("broadsheet", installed_version())

    def calling(self, method: str, attributes: Attributes | None = None) -> _OpenSpan:
        """Return the block of a call to another process, whose span is the current one in it.

        Args:
            method: `/package.Service/Method`.
            attributes: Of the span, in addition.
        """
        kind = self._trace.SpanKind.CLIENT
        named = {**_call_attributes(method), **(attributes or {})}
        return self._opened(self._tracer.start_span(method[1:], kind=kind, attributes=named))

    def serving(
        self,
        method: str,
        metadata: Iterable[tuple[str, str | bytes]] | None,
        attributes: Attributes | None = None,
    ) -> _OpenSpan:
        """Return the block in which a call of another process is served, with its span.

        Args:
            method: `/package.Service/Method`.
            metadata: The call's. A malformed context in it is ignored: the span then begins a trace.
            attributes: Of the span, in addition.
        """
        span = self._tracer.start_span(
            method[1:],
            context=self._parent_in(metadata),
            kind=self._trace.SpanKind.SERVER,
            attributes={**_call_attributes(method), **(attributes or {})},
        )
        return self._opened(span)

    def serving_part(
        self,
        method: str,
        metadata: Iterable[tuple[str, str | bytes]] | None,
        attributes: Attributes | None = None,
    ) -> AbstractContextManager[object]:
        """Return the block of a call that is a part of a caller's trace; without a context, one without a span."""
        pairs = tuple(metadata or ())
        if self._span_context(self._parent_in(pairs)) is None:
            return NO_SPAN
        return self.serving(method, pairs, attributes)

    def step(self, name: str, attributes: Attributes | None = None) -> _OpenSpan:
        """Return the block of a step within this process, whose span is the current one in it."""
        return self._opened(self._tracer.start_span(name, attributes=attributes))

    def start_transaction(self, shard: str, contexts: Sequence[SpanContext]) -> Span:
        """Start the span of a shard's transaction, which another call ends.

        Args:
            shard: Its id.
            contexts: Of the messages that it consumes: the first is the parent, so that one trace has the whole way of
                a message, and all are links.
        """
        trace = self._trace
        parent = trace.NonRecordingSpan(contexts[0]) if contexts else trace.INVALID_SPAN
        return self._tracer.start_span(
            "Transaction",
            # Not the current context: that of the loop or the thread has nothing to do with the transaction.
            context=trace.set_span_in_context(parent, self._context.Context()),
            kind=trace.SpanKind.CONSUMER,
            attributes={"broadsheet.shard": shard},
            links=[trace.Link(each) for each in contexts],
        )

    def attached(self, span: Span | None) -> _Attached:
        """Return a block in which a span is the current one; None: no span is."""
        context = self._context.Context()
        return self.restored(
            context if span is None else self._trace.set_span_in_context(span, context)
        )

    def captured(self) -> Context | None:
        """Return the current context, for work that is done later; None if no span is current."""
        context = self._context.get_current()
        return None if self._span_context(context) is None else context

    def restored(self, context: Context | None) -> _Attached:
        """Return a block in which a captured context is the current one."""
        return _Attached(self, self._context.Context() if context is None else context)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata that carry the current context; none if no span is current."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return tuple(carrier.items())

    @property
    def has_current(self) -> bool:
        """Report whether a span is current."""
        return self._trace.get_current_span().get_span_context().is_valid

    def traceparent(self) -> str:
        """Return the context that a message carries: that of the current span if it is sampled, else nothing.

        A trace that is not sampled needs no bytes in a journal.
        """
        found = self._trace.get_current_span().get_span_context()
        if not (found.is_valid and found.trace_flags.sampled):
            return ""
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-01"

    def exemplar(self) -> dict[str, str] | None:
        """Return the labels of an exemplar that names the current span, if it is sampled."""
        return self.exemplar_of(self._trace.get_current_span())

    def exemplar_of(self, span: Span) -> dict[str, str] | None:
        """Return the labels of an exemplar that names a span, if it is sampled."""
        found = span.get_span_context()
        if not (found.is_valid and found.trace_flags.sampled):
            return None
        return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}

    def sampled_context(self, traceparent: str) -> SpanContext | None:
        """Return the context that a message carries; None if it is malformed, or its trace is not recorded."""
        context = self._parent_in(((TRACEPARENT, traceparent),))
        found = self._span_context(context)
        return found if found is not None and found.trace_flags.sampled else None

    def attach(self, context: Context) -> object:
        """Make a context the current one; return what `detach` needs."""
        return self._context.attach(context)

    def detach(self, token: object) -> None:
        """Undo `attach`."""
        self._context.detach(token)  # type: ignore[arg-type]  # Its class depends on the library's version.

    def fail(self, span: Span, error: BaseException) -> None:
        """Record that what a span shows has failed."""
        text = f"{type(error).__name__}: {error}"[:_STATUS_CHARACTERS_MAX]
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))

    def link(self, span: Span, context: SpanContext) -> None:
        """Link a span to a message that it consumes."""
        span.add_link(context)

    def _opened(self, span: Span) -> _OpenSpan:
        return _OpenSpan(self, span, self._trace.set_span_in_context(span))

    def _parent_in(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
        """Return the context in a call's metadata or a message, which anybody may have sent."""
        carrier: dict[str, str] = {}
        for key, value in metadata or ():
            if key in {TRACEPARENT, TRACESTATE} and isinstance(value, str):
                carrier.setdefault(key, value)
        empty = self._context.Context()
        # The bound comes before the parser, so that the longest text costs no more than the shortest.
        if len(carrier.get(TRACEPARENT, "")) != TRACEPARENT_CHARACTERS:
            return empty
        if len(carrier.get(TRACESTATE, "")) > TRACESTATE_CHARACTERS_MAX:
            del carrier[TRACESTATE]
        return self._propagator.extract(carrier, context=empty)

    def _span_context(self, context: Context) -> SpanContext | None:
        found = self._trace.get_current_span(context).get_span_context()
        return found if found.is_valid else None


class _Attached:
    """The block in which a context is the current one."""

    __slots__ = ("_context", "_token", "_tracing")

    def __init__(self, tracing: Tracing, context: Context) -> None:
        self._tracing = tracing
        self._context = context
        self._token: object = None

    def __enter__(self) -> None:
        self._token = self._tracing.attach(self._context)

    def __exit__(self, *_: object) -> None:
        self._tracing.detach(self._token)


class _OpenSpan:
    """The block that a span covers. It ends with the block; an error of the block is its status."""

    __slots__ = ("_attached", "_tracing", "span")

    def __init__(self, tracing: Tracing, span: Span, context: Context) -> None:
        self._tracing = tracing
        self._attached = _Attached(tracing, context)
        self.span = span

    def __enter__(self) -> Span:
        self._attached.__enter__()
        return self.span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self._attached.__exit__()
        if error is not None:
            self._tracing.fail(self.span, error)
        self.span.end()


def _call_attributes(method: str) -> dict[str, str | int]:
    _, service, name = method.split("/", 2)
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}


# Setting up the SDK, for processes whose application does not.

CommandT = TypeVar("CommandT", bound=Callable[..., object])


def traces_option(command: CommandT) -> CommandT:
    """Add `--traces` to a command that runs servers."""
    import click

    return click.option(
        "--traces",
        is_flag=True,
        envvar=TRACES_VARIABLE,
        show_envvar=True,
        help="Export traces, as the standard OTEL_* variables say.",
    )(command)


@contextmanager
def traces_exported(service: str, *, wanted: bool) -> Iterator[None]:
    """Export this process's spans during the block, as the standard `OTEL_*` environment variables say.

    A tracer provider that the application has set already is used as it is. One that is set here stays, because a
    process can have only one in its life; its spans are flushed at the end of the block.

    Args:
        service: The `service.name` of the process, unless the environment names another.
        wanted: If not, this does nothing.

    Raises:
        ExtraMissingError: the SDK is not installed.
        ValidationError: a variable names an exporter or a protocol that there is not.
    """
    if not wanted or _is_disabled():
        yield
        return
    try:
        from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    except ModuleNotFoundError as error:
        raise ExtraMissingError(
            "traces", *EXTRAS["opentelemetry"], module=error.name or ""
        ) from error
    if tracing() is None:
        _set_up(service)
    from opentelemetry.trace import get_tracer_provider

    try:
        yield
    finally:
        provider = get_tracer_provider()
        if isinstance(provider, SdkProvider):
            provider.force_flush(int(FLUSH_SECONDS_MAX * 1000))


def _set_up(service: str) -> None:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import set_tracer_provider

    exporter = _exporter()
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = SdkProvider(resource=Resource.create({} if is_named else {"service.name": service}))
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    set_tracer_provider(provider)
    _log.info("traces.on", service=service, exporter=type(exporter).__name__)


def _exporter() -> SpanExporter | None:
    """Return what `OTEL_TRACES_EXPORTER` names."""
    name = os.environ.get("OTEL_TRACES_EXPORTER", "") or _EXPORTERS[0]
    if name == "none":
        return None
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        # Standard output has lines that other programs wait for.
        return ConsoleSpanExporter(out=sys.stderr)
    if name != "otlp":
        raise ValidationError(
            "OTEL_TRACES_EXPORTER", f"expected one of {', '.join(_EXPORTERS)}, got {name!r}"
        )
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(variable, "") or _PROTOCOL
        if protocol != _PROTOCOL:
            # The exporter over gRPC would run gRPC's blocking client beside the asynchronous one of this process.
            raise ValidationError(variable, f"expected {_PROTOCOL}, got {protocol!r}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        raise ExtraMissingError(
            "traces", *EXTRAS["opentelemetry"], module=error.name or ""
        ) from error
    return OTLPSpanExporter()


def _is_disabled() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
