"""Distinguishes a shard that has stopped working from one that has nothing to do.

    there is work (input unread, or a callback, commit or acknowledgement under way), nothing moves
                                            ─► stalled, after `stall_seconds`
    something moves, or there is no work    ─► fine: a transaction that waits for its time has none

A primary may be assigned, healthy by every heartbeat, and yet stalled: a callback that waits for ever, a lock that is
never released, a query without an end. Only its lack of progress shows that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broadsheet.consumer.shard.transaction_events import Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSample:
    """Sample of a primary's progress at one moment. Offsets are bytes by journal."""

    read: Mapping[str, int]
    """How far its sources were read and sequenced."""
    committed: Mapping[str, int]
    """How far completed transactions have read."""
    deliveries: int
    """How often the application has come further so far: by a message, or by a batch where it takes batches."""
    activity: Activity
    """What its transactions wait for."""
    heads: Mapping[str, int]
    """The journals' write heads; those that could not be asked are absent."""

    @property
    def bytes_behind(self) -> int:
        """Input that no completed transaction has read, bytes."""
        return _behind(self.heads, self.committed)

    @property
    def has_work(self) -> bool:
        """Report whether there is work, so that progress is expected."""
        if self.activity is Activity.READING:
            return _behind(self.heads, self.read) > 0
        return self.activity is Activity.WORKING


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A shard that makes no progress though there is work."""

    seconds: float
    """For how long."""
    bytes_behind: int
    in_transaction: bool
    """It waits for the application, its store or an append; else for input that is there to be read."""


class StallDetector:
    """Examines one primary periodically."""

    def __init__(self, *, stall_seconds: float) -> None:
        """Set the time without progress that counts as a stall.

        Args:
            stall_seconds: How long there may be work without progress; above 0.
        """
        assert stall_seconds > 0, "a detector without patience calls everything stalled"
        self._stall_seconds = stall_seconds
        self._marker: object = None
        self._stuck_since: float | None = None

    def observed(self, look: ProgressSample, now_monotonic_seconds: float) -> Stall | None:
        """Process a sample; return the stall if there is one."""
        marker = (dict(look.read), dict(look.committed), look.deliveries)
        moved, self._marker = marker != self._marker, marker
        if not look.has_work:
            self._stuck_since = None
            return None
        if moved or self._stuck_since is None:
            self._stuck_since = now_monotonic_seconds
        seconds = now_monotonic_seconds - self._stuck_since
        if seconds < self._stall_seconds:
            return None
        return Stall(
            seconds=seconds,
            bytes_behind=look.bytes_behind,
            in_transaction=look.activity is Activity.WORKING,
        )


def _behind(heads: Mapping[str, int], offsets: Mapping[str, int]) -> int:
    return sum(max(0, head - offsets.get(journal, 0)) for journal, head in heads.items())
