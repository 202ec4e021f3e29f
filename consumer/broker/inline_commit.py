"""Which commits the event loop makes itself, because it waits for the disk no longer than for another thread.

A commit on a thread wakes it, hands it the interpreter after each of its system calls, and wakes the loop: several
milliseconds on busy processors, where a disk whose cache survives a loss of power syncs within a quarter of one. The
loop makes a commit itself if it is small, if few others wait, which threads would make at the same time, and if the
disk has been quick so far. One that takes long holds up all that the broker does, once; then threads have their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from allocator.runtime.clock import Clock

PENDING_MAX = 4
"""Appends that wait for their commits, those of the commit in question included."""
TYPICAL_SECONDS_MAX = 0.002
"""Of disks that are quick: on busy processors, a commit to one that syncs within 0.25 ms takes up to 1 ms."""
RETRY_SECONDS = 1.0
"""How often the loop tries a disk that is not."""
STALL_SECONDS = 0.02
REST_PER_STALL = 50
"""After a stall, the loop makes no commit for so many times as long: it spends 2 % of its time in stalls at most."""
_WEIGHT = 1 / 32
"""Of the latest commit in what is typical."""


class DirectCommits:
    """Of all journals of a broker. Lives on the event loop."""

    def __init__(self, clock: Clock, *, bytes_max: int) -> None:
        """Take the disk for quick.

        Args:
            clock: Tells how long commits take.
            bytes_max: Of a commit; 0 leaves all to threads.
        """
        self._clock = clock
        self._bytes_max = bytes_max
        self._pending = 0
        self._typical_seconds = 0.0
        """Mean of the latest, stalls counted as no longer than `STALL_SECONDS`."""
        self._rests_until = 0.0
        """The loop makes no commit before, on the monotonic clock, seconds."""

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Count an append that waits for its commit, while the context lasts."""
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1

    def allow(self, length: int) -> bool:
        """Tell whether the loop should make a commit of so many bytes itself, now."""
        return (
            max(length, 1) <= self._bytes_max  # One without content confirms a loss.
            and self._pending <= PENDING_MAX
            and self._clock.monotonic_seconds() >= self._rests_until
        )

    def run(self, commit: Callable[[], None]) -> None:
        """Make a commit, and learn from how long it takes. Blocking; raises what it raises."""
        began = self._clock.monotonic_seconds()
        try:
            commit()
        finally:
            self._learn(began, self._clock.monotonic_seconds())

    def _learn(self, began: float, ended: float) -> None:
        seconds = ended - began
        self._typical_seconds += (min(seconds, STALL_SECONDS) - self._typical_seconds) * _WEIGHT
        if seconds > STALL_SECONDS:
            self._rests_until = ended + REST_PER_STALL * seconds
        elif self._typical_seconds > TYPICAL_SECONDS_MAX:
            self._rests_until = ended + RETRY_SECONDS
