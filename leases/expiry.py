"""Lease expiry, as an observer can tell it: an exchangeable part of the decision who may take a lease.

Source: vmware/vmware-go-kcl-v2 clientlibrary/checkpoint (a claim outlives its lease by a while, then it is void).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import RecordStore
from broadsheet.runtime.clock import Clock, SystemClock

LEASE_SECONDS = 10.0
"""Default length of a lease; that of the Kinesis Client Library.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSeen:
    """An observer's last sighting of a lease: a holder whose lease does not move for its length counts as dead.

    No clock is compared with another machine's: an observer measures, on its own monotonic clock, how long ago *it* saw
    a record move. So clock skew never makes it take a lease too early; it notices a death late, by at most the time
    until its next scan. A scan takes time: a move that it shows happened before its end, and a move that it does not
    show happened after its beginning. So a holder that stops a lease's length after it *sent* its last renewal has
    always stopped before an observer takes its lease.

    Source: awslabs/amazon-kinesis-client leases.Lease.isExpired, leases.dynamodb.DynamoDBLeaseTaker (first sights).
    """

    epoch: int
    counter: int
    moved_monotonic_seconds: float | None
    """When it was first seen in its present state; None: it was free when first seen, and has not moved since."""


def sighted(before: LastSeen | None, record: LeaseRecord, *, now_seconds: float) -> LastSeen:
    """Update the last sighting of a lease after a scan.

    Args:
        before: What was known; None at the first look.
        record: The lease.
        now_seconds: When the look *ended*, by the observer's monotonic clock.
    """
    if before is not None and (before.epoch, before.counter) == (record.epoch, record.counter):
        return before
    is_new_and_free = before is None and record.holder is None
    return LastSeen(
        epoch=record.epoch,
        counter=record.counter,
        moved_monotonic_seconds=None if is_new_and_free else now_seconds,
    )


def is_free(
    found: Versioned, sighting: LastSeen, *, now_seconds: float, lease_seconds: float
) -> bool:
    """Return whether a lease may be taken: it has no holder, or has not moved for longer than its length.

    Args:
        found: What the look showed.
        sighting: What is known since.
        now_seconds: When the look *began*, by the observer's monotonic clock.
        lease_seconds: Its length.
    """
    if found.record.holder is None or not found.fence:
        return True
    moved = sighting.moved_monotonic_seconds
    return moved is None or now_seconds - moved > lease_seconds


class LeaseObserver:
    """Observer of leases: remembers when each was seen to move. Scan at least twice in a lease's length."""

    def __init__(
        self,
        store: RecordStore,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        """Start without sightings: every holder in the first scan counts as alive then.

        Args:
            store: The records; stays the caller's.
            lease_seconds: How long a holder may not move; all workers must agree. Not used where the store itself
                tells who lives.
            clock: Measures it.
        """
        self._store = store
        self._lease_seconds = lease_seconds
        self._clock = clock or SystemClock()
        self._sighting_by_key: dict[str, LastSeen] = {}

    async def free_leases(self) -> tuple[Versioned, ...]:
        """Scan, and return the unfinished leases that may be taken, in the order of their keys."""
        asked_seconds = self._clock.monotonic_seconds()
        found = [each async for each in self._store.scan()]
        answered_seconds = self._clock.monotonic_seconds()
        before = self._sighting_by_key
        self._sighting_by_key = {
            each.record.key: sighted(
                before.get(each.record.key), each.record, now_seconds=answered_seconds
            )
            for each in found
        }
        return tuple(
            each
            for each in found
            if not each.record.is_finished and self._is_free(each, asked_seconds)
        )

    def _is_free(self, found: Versioned, now_seconds: float) -> bool:
        if self._store.tells_who_lives:
            return not found.fence
        return is_free(
            found,
            self._sighting_by_key[found.record.key],
            now_seconds=now_seconds,
            lease_seconds=self._lease_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExpiry:
    """Expiry of one lease."""

    is_free: bool
    """True if any worker may take it."""
    overdue_seconds: float
    """Minimum time since it ended; 0 or less: it lasts, or that is unknown."""


class Expiry(Protocol):
    """Port that judges whether leases have ended. One for each process, because it may remember sightings."""

    def standing(self, found: Versioned, *, asked_monotonic_seconds: float) -> LeaseExpiry:
        """Return the expiry of a lease.

        Args:
            found: What the store answered just now.
            asked_monotonic_seconds: When it was asked.
        """
        ...


class ObservedExpiry:
    """Expiry by observation: a holder that does not move for a lease's length counts as dead."""

    def __init__(self, *, lease_seconds: float = LEASE_SECONDS, clock: Clock | None = None) -> None:
        """Start without sightings: every holder in the first scan counts as alive then.

        Args:
            lease_seconds: How long a holder may not move; all workers must agree.
            clock: Measures it.
        """
        self._lease_seconds = lease_seconds
        self._clock = clock or SystemClock()
        self._seen_by_key: dict[str, tuple[object, float]] = {}

    def standing(self, found: Versioned, *, asked_monotonic_seconds: float) -> LeaseExpiry:
        """Judge a lease by when it was first seen in its present state."""
        record = found.record
        state = (record.epoch, record.counter, record.claim, found.fence)
        before = self._seen_by_key.get(record.key)
        if before is None or before[0] != state:
            before = (state, self._clock.monotonic_seconds())
            self._seen_by_key[record.key] = before
        overdue_seconds = asked_monotonic_seconds - before[1] - self._lease_seconds
        is_free = record.holder is None or not found.fence or overdue_seconds > 0
        return LeaseExpiry(is_free=is_free, overdue_seconds=overdue_seconds)
