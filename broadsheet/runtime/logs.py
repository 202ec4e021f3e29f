"""Configuration of logs, for every process of ours: member, broker, `shardctl`, and a task of Spark's.

    structlog event ──► level ──► event rate ──► rendered on the caller's thread ──► `log_output.LineWriter`
    record of `logging` (gRPC, asyncio, libraries) ──────────────────────────────────────┘

Neither rendering nor writing raises into the caller or makes it wait. Each event has a rate of its own: what a caller
makes a server log, once a request, stays within `EVENT_BURST` lines and `EVENTS_PER_SECOND`, and cannot push the other
events out.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TextIO

import structlog

from broadsheet.runtime.log_output import (
    LOSSES,
    LineWriter,
    Loss,
    descriptor_of,
    line_writer,
    plain_notice,
)

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
EVENT_BURST: Final = 1_000
"""Lines of one event that are written at once: a member that takes hundreds of shards logs each of them."""
EVENTS_PER_SECOND: Final = 10.0
"""Lines of one event a second, in the long run: about 0.25 GB a day."""
EVENT_NAMES_MAX: Final = 1_024
"""Events of each form of name with rates of their own; all others of the form share one. An application may put values
into the names of its events: such texts must not take the rates of ours, which are dotted nouns.
"""
EVENT_NAME_CHARACTERS_MAX: Final = 200
"""Characters by which events are told apart: libraries log texts of any length."""
UNBOUNDED_PREFIX: Final = "audit."
"""Events of any rate: each change that a caller was allowed to make leaves one, and none may hide another."""
TEXT_CHARACTERS_MAX: Final = 32 << 10
"""Longest text in a line: a long traceback, but no request of megabytes."""
_DOTTED: Final = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")
_STANDARD_DESCRIPTORS: Final = (1, 2)
LOST_EVENT: Final = "log.lines_lost"

Render = Callable[[structlog.typing.EventDict], str]


class EventRates:
    """Decides which events are logged, by how often each was lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with a full burst for each event.

        Args:
            clock: Seconds; only differences matter.
        """
        self._clock = clock
        self._buckets: dict[str, tuple[float, float, int]] = {}
        """By event: lines that it may still write, as of when, and how many were left out since the last one."""
        self._known: Counter[str] = Counter()
        """Number of events, by the name under which further ones of their form share a rate."""

    def admit(self, event: str) -> int | None:
        """Return how many lines of this event were left out before this one; None if this one is left out, too."""
        now = self._clock()
        event = event[:EVENT_NAME_CHARACTERS_MAX]
        if event not in self._buckets:
            others = "." if _DOTTED.fullmatch(event) else ""
            if self._known[others] >= EVENT_NAMES_MAX:
                event = others
            else:
                self._known[others] += 1
        tokens, since, left_out = self._buckets.get(event, (float(EVENT_BURST), now, 0))
        tokens = min(float(EVENT_BURST), tokens + (now - since) * EVENTS_PER_SECOND)
        if tokens < 1:
            self._buckets[event] = (tokens, now, left_out + 1)
            LOSSES.add(Loss.TOO_OFTEN)
            return None
        self._buckets[event] = (tokens - 1, now, 0)
        return left_out


def json_or_console(stream: TextIO) -> structlog.typing.Processor:
    """Return a renderer: lines for people if the stream is a terminal, JSON for programs otherwise."""
    if stream.isatty():
        # The traceback is text by then; structlog before 26 warns of that unless the formatter is the plain one.
        return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return structlog.processors.JSONRenderer()


def log_to_stderr(
    level: str = "info",
    *,
    renderer: structlog.typing.Processor | None = None,
    foreign_level: int | None = None,
    fields: Mapping[str, object] | None = None,
) -> None:
    """Send every event of `level` and above to standard error.

    Args:
        level: One of `LOG_LEVELS`.
        renderer: The format of a line; see `json_or_console` if None.
        foreign_level: Least level of records of `logging` that are logged too; None: their way stays as it is. An
            application that has set `logging` up keeps its settings.
        fields: In each line.
    """
    render = _Renderer(renderer or json_or_console(sys.stderr))
    output = _Output(sys.stderr, render)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, _Admission(), render],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=False,
    )
    if foreign_level is not None:
        logging.basicConfig(handlers=[_Handler(output, render)], level=foreign_level)
    if fields:
        structlog.contextvars.bind_contextvars(**fields)


def guard_unconfigured_logs() -> None:
    """Make logs of a program that has not configured structlog never raise. Idempotent.

    It is for programs that run members, brokers or workers of ours inside of them. Format and place stay structlog's
    defaults: lines for people, on standard output. A program's own configuration stays, also a later one.
    """
    if structlog.is_configured():
        return
    # For each line, as structlog's own default does: the program, or a test, may replace the stream. By the stream
    # itself, because the program prints to it as well, and a thread's lines would fall between parts of its own.
    defaults = _DefaultLines(structlog.get_config()["processors"])
    structlog.configure(processors=[defaults], logger_factory=lambda *_: _Output(sys.stdout))


class _DefaultLines:
    """structlog's default processors as one: an event to a line for people, and an event of its own if that fails."""

    def __init__(self, processors: Sequence[structlog.typing.Processor]) -> None:
        self._processors = processors

    def __call__(self, logger: object, method: str, event: structlog.typing.EventDict) -> str:
        # Texts of errors are ours: structlog before 26 warns of them, which raises where warnings are errors.
        fields = dict(event)
        trace = fields.pop("exception", None)
        try:
            line = self._rendered(logger, method, fields)
        except structlog.DropEvent:
            raise
        except Exception as error:
            line = f"{_name_of(event)} unrendered={type(error).__name__}"
        return line if trace is None else f"{line}\n{trace}"

    def _rendered(self, logger: object, method: str, event: structlog.typing.EventDict) -> str:
        found: object = event
        for step in self._processors:
            found = step(logger, method, found)  # type: ignore[arg-type]  # only the last returns no event
        return str(found)


class _Admission:
    """The processor that leaves out events that are logged too often."""

    def __init__(self) -> None:
        self._rates = EventRates()

    def __call__(
        self, _: object, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        name = _name_of(event)
        # An operator who chose to see `debug` wants all of it.
        if method == "debug" or name.startswith(UNBOUNDED_PREFIX):
            return event
        left_out = self._rates.admit(name)
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event["left_out_before"] = left_out
        return event


class _Renderer:
    """The last processor: an event to one line. An event that cannot be rendered is told without its fields."""

    def __init__(self, renderer: structlog.typing.Processor) -> None:
        self._steps: tuple[structlog.typing.Processor, ...] = (
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _bound_texts,
            renderer,
        )

    def __call__(self, logger: object, method: str, event: structlog.typing.EventDict) -> str:
        try:
            return self._rendered(logger, method, dict(event))
        except Exception as error:
            plain = {"event": _name_of(event), "unrendered": type(error).__name__}
            return self._rendered(logger, method, plain)

    def _rendered(self, logger: object, method: str, event: structlog.typing.EventDict) -> str:
        found: object = event
        for step in self._steps:
            found = step(logger, method, found)  # type: ignore[arg-type]  # only the last returns no event
        return str(found)


def _name_of(event: structlog.typing.EventDict) -> str:
    name = event.get("event")
    return name if isinstance(name, str) else "log.unnamed"


def _bound_texts(
    _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    for name, value in event.items():
        if isinstance(value, str | bytes) and len(value) > TEXT_CHARACTERS_MAX:
            more = f"… ({len(value) - TEXT_CHARACTERS_MAX} more)"
            event[name] = f"{value[:TEXT_CHARACTERS_MAX]!s}{more}"
    return event


class _Output:
    """The logger beneath structlog's: takes rendered lines under each name of a level."""

    def __init__(self, stream: TextIO, render: _Renderer | None = None) -> None:
        """Bind to a stream.

        Args:
            stream: Where lines go.
            render: Makes the line that tells of lost ones, where a thread writes; without it the caller writes.
        """
        self._stream = stream
        self._render = render
        self._writer: LineWriter | None = None
        descriptor = descriptor_of(stream)
        if render is not None and descriptor in _STANDARD_DESCRIPTORS:
            self._writer = line_writer(descriptor)
            self._writer.notice = self._notice

    def msg(self, line: str) -> None:
        """Write one line."""
        if self._writer is not None:
            self._writer.write(f"{line}\n".encode(errors="backslashreplace"))
            return
        # The stream of a test, of a notebook or of a program around us.
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except (OSError, ValueError, AttributeError):
            # Closed, or None: Python has no stream where the descriptor was closed.
            LOSSES.add(Loss.NOT_WRITTEN)

    debug = info = warning = warn = error = err = exception = critical = fatal = log = failure = msg

    def _notice(self, lines: int) -> str:
        assert self._render is not None, "set together"
        try:
            return self._render(None, "warning", {"event": LOST_EVENT, "lines": lines})
        except Exception:
            return plain_notice(lines)


class _Handler(logging.Handler):
    """Sends records of `logging` the same way."""

    def __init__(self, output: _Output, render: _Renderer) -> None:
        super().__init__()
        self._output = output
        self._render = render
        self._rates = EventRates()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; never raises."""
        # By what the program says, not by what is filled in.
        left_out = self._rates.admit(f"{record.name}:{record.msg}")
        if left_out is None:
            return
        event: dict[str, object] = {"event": _message_of(record), "logger": record.name}
        if left_out:
            event["left_out_before"] = left_out
        if record.exc_info:
            event["exc_info"] = record.exc_info
        try:
            event = {**structlog.contextvars.get_contextvars(), **event}
            self._output.msg(self._render(None, record.levelname.lower(), event))
        except Exception:
            LOSSES.add(Loss.NOT_WRITTEN)


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        return str(record.msg)
