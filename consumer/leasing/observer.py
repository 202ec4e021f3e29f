"""Tells which leases may be taken, whatever kind of store they are in."""

from __future__ import annotations

from allocator.runtime.clock import Clock, SystemClock
from consumer.leasing.core.record import Versioned
from consumer.leasing.core.sighting import Sighting, is_free, sighted
from consumer.leasing.store import RecordStore

LEASE_SECONDS = 10.0
"""Default length of a lease; that of the Kinesis Client Library."""


class LeaseObserver:
    """Remembers when it saw each lease move. Look at least twice in a lease's length; every worker has its own."""

    def __init__(
        self,
        store: RecordStore,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        """Know nothing yet: what is held at the first look counts as alive then.

        Args:
            store: The records; stays the caller's.
            lease_seconds: How long a holder may not move; all workers must agree. Not used where the store itself
                tells who lives.
            clock: Measures it.
        """
        self._store = store
        self._lease_seconds = lease_seconds
        self._clock = clock or SystemClock()
        self._sighting_by_key: dict[str, Sighting] = {}

    async def free_leases(self) -> tuple[Versioned, ...]:
        """Look, and return the leases that may be taken, in the order of their keys; without finished ones."""
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
