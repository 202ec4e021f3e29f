"""The clock that stamps messages: wall time when it moves on, one microsecond a message when it does not.

A value is a count of 100 ns ticks since 1582-10-15, shifted left by 4 bits. It never decreases.

Source: gazette/core message/uuid.go (Clock).
"""

from __future__ import annotations

from typing import Final

UNIX_EPOCH_TICKS: Final = 122_192_928_000_000_000
"""100 ns ticks from the UUID epoch (1582-10-15) to the Unix epoch; RFC 4122 §4.1.4."""
CLOCK_UNITS_PER_SECOND: Final = 10_000_000 << 4
CLOCK_UNITS_PER_MESSAGE: Final = 10 << 4
"""One microsecond: a producer of more than a million messages a second runs ahead of wall time."""


def clock_at(unix_nanoseconds: int) -> int:
    """Return the clock of a wall time, nanoseconds since the Unix epoch, cut to 100 ns."""
    return (unix_nanoseconds // 100 + UNIX_EPOCH_TICKS) << 4


def unix_seconds_of(clock: int) -> float:
    """Return the wall time of a clock, seconds since the Unix epoch."""
    return ((clock >> 4) - UNIX_EPOCH_TICKS) / 10_000_000


class MessageClock:
    """Hands out strictly increasing clocks. Used by one thread at a time."""

    def __init__(self) -> None:
        self._value = 0

    @property
    def value(self) -> int:
        """The last clock handed out, or the wall time it was moved to."""
        return self._value

    def update(self, unix_seconds: float) -> None:
        """Move on to a wall time, seconds since the Unix epoch; never back."""
        self.update_nanoseconds(int(unix_seconds * 1e9))

    def update_nanoseconds(self, unix_nanoseconds: int) -> None:
        """Move on to a wall time, nanoseconds since the Unix epoch; never back."""
        self._value = max(self._value, clock_at(unix_nanoseconds))

    def tick(self) -> int:
        """Return the next clock."""
        self._value += CLOCK_UNITS_PER_MESSAGE
        return self._value
