"""Time as a port, so that tests and the simulator can supply their own."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Two clocks: a monotonic one, and the wall clock."""

    def monotonic_seconds(self) -> float:
        """Return seconds from an arbitrary start; only differences are meaningful."""
        ...

    def wall_seconds(self) -> float:
        """Return seconds since the Unix epoch; may step."""
        ...


BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that runs on while the machine is suspended, if the system has one: leases end meanwhile, and a process
that wakes up must see that they did. `CLOCK_MONOTONIC`, which the event loop's timers use, stops meanwhile."""


class SystemClock:
    """The machine's clocks."""

    # Not methods, because a row asks a member and a broker 60 times.
    monotonic_seconds = staticmethod(partial(time.clock_gettime, BOOT_CLOCK))
    """The time since the machine's start, suspension included, seconds."""
    wall_seconds = staticmethod(time.time)
    """Seconds since the Unix epoch."""
