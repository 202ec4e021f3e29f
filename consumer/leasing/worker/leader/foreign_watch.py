"""Sees whether another program's leader lives: its row changes, by this worker's clock."""

from __future__ import annotations

from allocator.runtime.clock import Clock
from consumer.leasing.store import ForeignLeader, RecordStore, TellsForeignLeader


class ForeignWatch:
    """Remembers when each leader's row was seen to change."""

    def __init__(self, leases: RecordStore, clock: Clock) -> None:
        """Have seen nothing yet: a row that is there at the first look counts as one of the living.

        Args:
            leases: Their store.
            clock: Measures it.
        """
        self._leases = leases if isinstance(leases, TellsForeignLeader) else None
        self._clock = clock
        self._changed_seconds: dict[ForeignLeader, float] = {}

    async def living(self) -> ForeignLeader | None:
        """Return a leader that lives; None if there is none, or the store has no other programs' leases.

        Raises:
            LeasingError: the store failed.
        """
        if self._leases is None:
            return None
        asked_seconds = self._clock.monotonic_seconds()
        found = await self._leases.foreign_leaders()
        now_seconds = self._clock.monotonic_seconds()
        self._changed_seconds = {
            leader: self._changed_seconds.get(leader, now_seconds) for leader in found
        }
        for leader, changed_seconds in self._changed_seconds.items():
            if asked_seconds - changed_seconds <= leader.lease_seconds:
                return leader
        return None
