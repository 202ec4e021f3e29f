"""Detection of messages whose clocks are ahead of the reader's wall clock.

Each producer is reported once, and its messages are refused if so configured. Such a clock loses nothing by itself, but
the machine that wrote it has the wrong time.

Times come in as values; only `ClockWatch` reads clocks, counts and logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from broadsheet.journals.errors import ClockAheadError
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import clock_at, unix_seconds_of
from broadsheet.runtime.clock import Clock

CLOCK_AHEAD_SECONDS: Final = 3600.0
"""The default bound on how far a clock may be ahead: machines with a time service differ by less than a second."""
WARNING_REST_SECONDS: Final = 1.0
"""Minimum time between two warnings: a fleet of producers with wrong clocks must not fill the log."""
TOLD_PRODUCERS_MAX: Final = 10_000
"""Reported producers that are remembered, some hundred bytes each; beyond that all are reported once more."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClockAhead:
    """A message whose clock is ahead of the reader's wall clock."""

    journal: str
    offset: int
    """Offset of its first byte."""
    producer: int
    """48-bit id."""
    ahead_seconds: float

    @property
    def producer_hex(self) -> str:
        """The producer's id as 12 hexadecimal digits."""
        return f"{self.producer:012x}"

    @property
    def fields(self) -> dict[str, str | int | float]:
        """The fields of the warning."""
        return {
            "journal": self.journal,
            "producer": self.producer_hex,
            "offset": self.offset,
            "ahead_seconds": round(self.ahead_seconds, 3),
        }

    @property
    def error(self) -> ClockAheadError:
        """The error that refuses the message."""
        return ClockAheadError(
            self.journal,
            offset=self.offset,
            producer=self.producer_hex,
            ahead_seconds=self.ahead_seconds,
        )


def latest_clock(wall_seconds: float, *, ahead_seconds: float) -> int:
    """Return the greatest clock that is at most `ahead_seconds` ahead of a wall time."""
    return clock_at(int((wall_seconds + ahead_seconds) * 1e9))


def first_ahead(batch: MessageBatch, latest: int) -> int | None:
    """Return the index of the first message whose clock is past `latest`; None if there is none."""
    if not len(batch) or batch.clocks.max() <= latest:
        return None
    return int((batch.clocks > latest).argmax())


def clock_ahead(batch: MessageBatch, index: int, *, wall_seconds: float) -> ClockAhead:
    """Return the report on one message whose clock is ahead."""
    return ClockAhead(
        batch.journal,
        int(batch.begins[index]),
        int(batch.producers[index]),
        unix_seconds_of(int(batch.clocks[index])) - wall_seconds,
    )


class ToldProducers:
    """The producers whose clocks were reported already."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()
        self._not_before_seconds = float("-inf")

    def to_tell(self, found: Iterable[ClockAhead], *, now_seconds: float) -> ClockAhead | None:
        """Return the message to report now, if any: one of a producer not reported yet.

        The other producers are reported with a later message of theirs.

        Args:
            found: Messages of producers whose clocks are ahead.
            now_seconds: By a clock that never steps.
        """
        if now_seconds < self._not_before_seconds:
            return None
        for each in found:
            key = (each.journal, each.producer)
            if key not in self._told:
                if len(self._told) >= TOLD_PRODUCERS_MAX:
                    self._told.clear()
                self._told.add(key)
                self._not_before_seconds = now_seconds + WARNING_REST_SECONDS
                return each
        return None


class ClockWatch:
    """The watch over the clocks of all that one reader reads: a warning a producer, and a count of messages."""

    def __init__(self, clock: Clock, *, ahead_seconds: float, count: Callable[[int], None]) -> None:
        """Bind the watch.

        Args:
            clock: The reader's own.
            ahead_seconds: The bound on how far a message's clock may be ahead.
            count: Counts messages beyond it.
        """
        self._clock = clock
        self._ahead_seconds = ahead_seconds
        self._count = count
        self._told = ToldProducers()

    def on_read(self, batch: MessageBatch) -> None:
        """Examine messages that were read."""
        wall_seconds = self._clock.wall_seconds()
        latest = latest_clock(wall_seconds, ahead_seconds=self._ahead_seconds)
        if first_ahead(batch, latest) is None:
            return
        indices = (batch.clocks > latest).nonzero()[0].tolist()
        self._count(len(indices))
        found = (clock_ahead(batch, i, wall_seconds=wall_seconds) for i in indices)
        told = self._told.to_tell(found, now_seconds=self._clock.monotonic_seconds())
        if told is not None:
            _log.warning(
                "sequencer.clock_ahead", allowed_seconds=self._ahead_seconds, **told.fields
            )
