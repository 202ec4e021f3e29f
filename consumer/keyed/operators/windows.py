"""Windows over event time: declarations, and the windows that a row is in.

A window is [start, end). It closes when the watermark reaches its end, and is forgotten when the watermark reaches its
end plus the allowed lateness; from then on its rows are late.

Source: Spark's TimeWindow and Flink's TimeWindow (start = floor((t − offset) / slide) · slide + offset, also before the
epoch); late by the end of the window, not by the row's time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadsheet.consumer.keyed.event_times import Times
from broadsheet.consumer.keyed.operators.durations import Duration, duration_ms, shown_duration
from broadsheet.runtime.errors import ValidationError

_WINDOWS_PER_ROW_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of a size, one beginning every slide. Tumbling ones slide by their size. Milliseconds."""

    size: int
    slide: int
    offset: int = 0

    @property
    def pane(self) -> int:
        """The longest stretch of time whose rows are always in the same windows."""
        return math.gcd(self.size, self.slide)

    @property
    def per_row(self) -> int:
        """Windows that a row is in, at most."""
        return -(-self.size // self.slide)

    def panes(self, times: Times) -> Times:
        """Return the start of the pane of each row."""
        found: Times = (times - self.offset) // self.pane * self.pane + self.offset
        return found

    def last_ends(self, times: Times) -> Times:
        """Return the end of the last window that each row is in."""
        found: Times = (times - self.offset) // self.slide * self.slide + self.offset + self.size
        return found

    def windows_of(self, panes: Times) -> tuple[NDArray[np.int64], Times]:
        """Return (position in `panes`, start) of each window that each pane is in."""
        last = self.last_ends(panes) - self.size
        at = np.arange(len(panes))
        starts = [last - step * self.slide for step in range(self.per_row)]
        positions = np.concatenate([at] * self.per_row)
        every = np.concatenate(starts)
        # If the slide does not divide the size, some rows are in one window fewer.
        inside = every + self.size > panes[positions]
        return positions[inside], every[inside]

    def __str__(self) -> str:
        after = f" offset {shown_duration(self.offset)}" if self.offset else ""
        if self.size == self.slide:
            return f"tumbling {shown_duration(self.size)}{after}"
        return f"hopping {shown_duration(self.size)} every {shown_duration(self.slide)}{after}"


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Windows that last until no row came for a gap, milliseconds."""

    gap: int

    def __str__(self) -> str:
        return f"session gap {shown_duration(self.gap)}"


@dataclass(frozen=True, slots=True)
class Spanning:
    """Windows whose start and end are columns of the rows."""

    start: str
    end: str

    def __str__(self) -> str:
        return f"spanning {self.start} to {self.end}"


Window = Hopping | SessionWindow | Spanning


def tumbling(size: Duration, *, offset: Duration = 0) -> Hopping:
    """Return windows that follow each other: `tumbling("10m")`.

    Args:
        size: Length of a window.
        offset: Of their starts from the Unix epoch.

    Raises:
        ValidationError: a length is none.
    """
    length = duration_ms("window.size", size, least=1)
    return Hopping(length, length, _offset(offset, length))


def hopping(size: Duration, slide: Duration, *, offset: Duration = 0) -> Hopping:
    """Return windows that overlap: `hopping("10m", "1m")` begins one every minute.

    Args:
        size: Length of a window.
        slide: Time from the start of one to the next, at most the size.
        offset: Of their starts from the Unix epoch.

    Raises:
        ValidationError: a length is none, or a row would be in more than 10,000 windows.
    """
    length = duration_ms("window.size", size, least=1)
    step = duration_ms("window.slide", slide, least=1)
    if step > length:
        raise ValidationError(
            "window.slide", f"expected at most the size, {shown_duration(length)}, got {slide!r}"
        )
    if length // step > _WINDOWS_PER_ROW_MAX:
        raise ValidationError(
            "window.slide",
            f"expected at most {_WINDOWS_PER_ROW_MAX} windows a row, got {length // step}",
        )
    return Hopping(length, step, _offset(offset, step))


def session(gap: Duration) -> SessionWindow:
    """Return windows of activity: a row extends the window of its key until `gap` after it.

    Rows that are exactly a gap apart are in one window.

    Raises:
        ValidationError: the gap is no length of time.
    """
    return SessionWindow(duration_ms("window.gap", gap, least=1))


def spanning(start: str, end: str) -> Spanning:
    """Return windows that rows name: those with the same key, start and end are in one.

    Of rows that a window emitted, `spanning("window_start", "window_end")` is that window again.

    Args:
        start: Column of the start, a timestamp or integer milliseconds.
        end: Column of the end, not inside the window.
    """
    return Spanning(start, end)


def _offset(offset: Duration, slide: int) -> int:
    return duration_ms("window.offset", offset) % slide


class StageTime(NamedTuple):
    """The times by which an operator judges, epoch milliseconds."""

    late: int
    """Watermark up to which earlier transactions closed windows: what belongs before it is late."""
    watermark: int
    """Watermark of this transaction: what ends by it is closed after its rows."""


def is_window(given: Any) -> bool:
    """Tell whether something declares windows."""
    return isinstance(given, Hopping | SessionWindow | Spanning)
