"""Time as a port, so that tests and the simulator bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that never steps, one that people read."""

    def monotonic_seconds(self) -> float:
        """Return seconds from an arbitrary start; only differences mean anything."""
        ...

    def wall_seconds(self) -> float:
        """Return seconds since the Unix epoch; may step."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_seconds(self) -> float:
        """Return `time.monotonic()`, seconds."""
        return time.monotonic()

    def wall_seconds(self) -> float:
        """Return `time.time()`, seconds since the Unix epoch."""
        return time.time()
