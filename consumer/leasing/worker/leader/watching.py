"""Looks at all records of a store, and remembers what it saw of each."""

from __future__ import annotations

from collections.abc import Mapping

from allocator.runtime.clock import Clock
from consumer.leasing.facades.kcl import LeaseManager
from consumer.leasing.store import RecordStore
from consumer.leasing.worker.core.outlook import Look, Memory, Observer, Outlook, outlook

NOBODY = ""
"""The name of an observer that is no worker: nothing is due to it."""


class StoreWatch:
    """One observer's memory; whoever holds a record at the first look counts as alive then."""

    def __init__(
        self,
        store: RecordStore,
        *,
        manager: LeaseManager,
        lease_seconds: float,
        asking_seconds: float,
        clock: Clock,
    ) -> None:
        """Have seen nothing yet.

        Args:
            store: The records.
            manager: Of the store.
            lease_seconds: How long a holder may not move.
            asking_seconds: How long nobody else gets what was asked for.
            clock: Measures it.
        """
        self._manager = manager
        self._clock = clock
        self._memory: Mapping[str, Memory] = {}
        self.observer = Observer(
            me=NOBODY,
            lease_seconds=lease_seconds,
            asking_seconds=asking_seconds,
            store_tells_who_lives=store.tells_who_lives,
        )
        """Whose memory it is."""

    async def look(self) -> tuple[Look, Outlook]:
        """Return what is there, and what is known of it."""
        began_seconds = self._clock.monotonic_seconds()
        found = await self._manager.list_leases()
        look = Look(
            found=found,
            began_seconds=began_seconds,
            ended_seconds=self._clock.monotonic_seconds(),
        )
        seen = outlook(self._memory, look, self.observer, held=())
        self._memory = seen.memory
        return look, seen

    def free_seconds(self, key: str, look: Look) -> float | None:
        """Return for how long nobody has held a record, as far as is known; None: somebody does."""
        since_seconds = self._memory[key].free_since_seconds
        return None if since_seconds is None else look.began_seconds - since_seconds
