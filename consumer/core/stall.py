"""Tells a shard that has stopped working from one that has nothing to do.

    there is work (input unread, or a transaction begun), nothing moves ─► stalled, after `stall_seconds`
    something moves, or there is no work                                 ─► fine

A primary may be assigned, healthy by every heartbeat, and yet stand still: a callback that waits for ever, a lock that
nobody releases, a query without an end. Only its lack of progress tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is seen of a primary at one moment. Offsets are bytes by journal."""

    read: Mapping[str, int]
    """How far its sources were read and sequenced."""
    committed: Mapping[str, int]
    """How far completed transactions have read."""
    deliveries: int
    """Batches that the application has consumed so far."""
    in_transaction: bool
    """A transaction has begun and is not complete."""
    heads: Mapping[str, int]
    """The journals' write heads; those that could not be asked are absent."""

    @property
    def bytes_behind(self) -> int:
        """Input that no completed transaction has read."""
        return _behind(self.heads, self.committed)

    @property
    def has_work(self) -> bool:
        """Whether something should be moving."""
        return self.in_transaction or _behind(self.heads, self.read) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A shard that stands still though there is work."""

    seconds: float
    """For how long."""
    bytes_behind: int
    in_transaction: bool


class StallDetector:
    """Looks at one primary now and then."""

    def __init__(self, *, stall_seconds: float) -> None:
        """Set the patience.

        Args:
            stall_seconds: How long there may be work without progress; above 0.
        """
        assert stall_seconds > 0, "a detector without patience calls everything stalled"
        self._stall_seconds = stall_seconds
        self._marker: object = None
        self._stuck_since: float | None = None

    def observed(self, look: Look, now_monotonic_seconds: float) -> Stall | None:
        """Take in a look; return the stall if there is one."""
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
            seconds=seconds, bytes_behind=look.bytes_behind, in_transaction=look.in_transaction
        )


def _behind(heads: Mapping[str, int], offsets: Mapping[str, int]) -> int:
    return sum(max(0, head - offsets.get(journal, 0)) for journal, head in heads.items())
