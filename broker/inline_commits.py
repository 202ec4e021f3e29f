"""Inline commits: those that the event loop makes itself, because the disk is faster than another thread.

A commit on a thread wakes it, hands it the interpreter after each of its system calls, and wakes the loop. That takes
several milliseconds on busy processors, where a disk whose cache survives a power loss syncs within a quarter of one.
The loop makes a commit itself if the commit is small, if few others wait (threads would make those at the same time),
and if the disk has been fast so far. A slow commit blocks the whole broker once; then threads take over.
"""

from __future__ import annotations

from collections.abc import Callable

from broadsheet.runtime.clock import Clock

PENDING_MAX = 4
"""Most appends that wait for their commits, including those of the commit in question."""
TYPICAL_SECONDS_MAX = 0.002
"""Typical commit time of a fast disk: on busy processors, a commit to a disk that syncs within 0.25 ms takes up to 1
ms.
"""
RETRY_SECONDS = 1.0
"""Interval at which the loop retries a slow disk."""
STALL_SECONDS = 0.02
REST_PER_STALL = 50
"""After a stall, the loop makes no commit for this many times its duration, so that it spends at most 2 % of its
time in stalls.
"""
_WEIGHT = 1 / 32
"""Weight of the latest commit in the typical time."""


class InlineCommits:
    """Decisions on inline commits for all journals of a broker. Lives on the event loop."""

    def __init__(self, clock: Clock, *, bytes_max: int) -> None:
        """Begin with the assumption that the disk is fast.

        Args:
            clock: Tells how long commits take.
            bytes_max: Of a commit; 0 leaves all to threads.
        """
        self._clock = clock
        self._bytes_max = bytes_max
        self.pending = 0
        """Appends that wait for their commits; counted by those who wait."""
        self._typical_seconds = 0.0
        """Mean of the latest commit times, in which stalls count as at most `STALL_SECONDS`."""
        self._rests_until = 0.0
        """Time before which the loop makes no commit, on the monotonic clock, seconds."""

    def allow(self, length: int) -> bool:
        """Tell whether the loop should make a commit of this many bytes itself, now."""
        return (
            max(length, 1) <= self._bytes_max  # a commit without content confirms a loss.
            and self.pending <= PENDING_MAX
            and self._clock.monotonic_seconds() >= self._rests_until
        )

    def run(self, commit: Callable[[], None]) -> None:
        """Make a commit, and learn from its duration. Blocking; raises what it raises."""
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
