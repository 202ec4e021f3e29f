"""Roster of living workers: each renews its own row, and the leader watches which rows move.

Source: awslabs/amazon-kinesis-client worker.metricstats (a row for each worker). Ours only show that workers live.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from broadsheet.allocator.runtime.clock import Clock
from broadsheet.consumer.leasing.facades.kcl import LeaseManager
from broadsheet.consumer.leasing.record import RecordConflictError, Versioned
from broadsheet.consumer.leasing.record_processor.held_lease import HeldLease, TellsDeadline
from broadsheet.consumer.leasing.store import RecordStore
from broadsheet.consumer.leasing.worker.leader.lock import (
    WORKER_PREFIX,
    check_rows,
    taken_row,
    worker_key,
)
from broadsheet.consumer.leasing.worker.lease_view import (
    LeaseScan,
    Memory,
    Viewer,
    WorkerView,
    outlook,
)
from broadsheet.consumer.leasing.worker.settings import WorkerSettings

_log = structlog.get_logger()

# Scans of a store by an observer that remembers its sightings.

NOBODY = ""
"""The name of an observer that is no worker, so that no lease is due to it."""


class StoreWatch:
    """One observer's memory of a store; every holder in the first scan counts as alive then."""

    def __init__(
        self,
        store: RecordStore,
        *,
        manager: LeaseManager,
        lease_seconds: float,
        asking_seconds: float,
        clock: Clock,
    ) -> None:
        """Start without sightings.

        Args:
            store: The records.
            manager: Of the store.
            lease_seconds: How long a holder may not move.
            asking_seconds: How long no other worker gets what was asked for.
            clock: Measures it.
        """
        self._manager = manager
        self._clock = clock
        self._memory: Mapping[str, Memory] = {}
        self.observer = Viewer(
            me=NOBODY,
            lease_seconds=lease_seconds,
            asking_seconds=asking_seconds,
            store_tells_who_lives=store.tells_who_lives,
        )
        """Whose memory it is."""

    async def look(self) -> tuple[LeaseScan, WorkerView]:
        """Scan the store; return the scan, and the view that follows from it."""
        began_seconds = self._clock.monotonic_seconds()
        found = await self._manager.list_leases()
        look = LeaseScan(
            found=found,
            began_seconds=began_seconds,
            ended_seconds=self._clock.monotonic_seconds(),
        )
        seen = outlook(self._memory, look, self.observer, held=())
        self._memory = seen.memory
        return look, seen

    def free_seconds(self, key: str, look: LeaseScan) -> float | None:
        """Return for how long a record has been free, as far as is known; None: it is held."""
        since_seconds = self._memory[key].free_since_seconds
        return None if since_seconds is None else look.began_seconds - since_seconds


class Presence:
    """A worker's own row."""

    def __init__(
        self,
        worker: str,
        fleet: RecordStore,
        *,
        manager: LeaseManager,
        settings: WorkerSettings,
        clock: Clock,
    ) -> None:
        """Create the row's keeper; `beat` writes the row.

        Args:
            worker: Its name.
            fleet: The store of the fleet's rows.
            manager: Of that.
            settings: The worker's.
            clock: The worker's.
        """
        self._worker = worker
        self._fleet = fleet
        self._manager = manager
        self._settings = settings
        self._clock = clock
        self._row: HeldLease | None = None

    async def beat(self) -> None:
        """Renew the worker's row, or create it.

        Raises:
            LeasingError: the store failed; try again.
        """
        if self._row is not None and await self._row.renew():
            return
        if self._row is not None:
            _log.warning("leasing.presence_lost", worker=self._worker)
        await self._enter()

    async def leave(self) -> None:
        """Delete the row, so that nothing is assigned to the worker any more.

        Raises:
            LeasingError: the store failed; the row does not move any more, which has the same effect a while later.
        """
        row, self._row = self._row, None
        if row is None or not row.is_held:
            return
        row.end()
        await self._manager.delete(worker_key(self._worker))

    async def _enter(self) -> None:
        asked_seconds = self._clock.monotonic_seconds()
        self._row = None
        taken = await taken_row(self._manager, worker_key(self._worker), self._worker)
        if taken is not None:
            self._row = HeldLease(
                self._manager,
                taken,
                lease_seconds=self._settings.lease_seconds,
                acquired_monotonic_seconds=asked_seconds,
                clock=self._clock,
                authority=self._fleet if isinstance(self._fleet, TellsDeadline) else None,
            )


class Roster:
    """The rows of all workers, as a leader sees them."""

    def __init__(
        self,
        fleet: RecordStore,
        *,
        manager: LeaseManager,
        settings: WorkerSettings,
        clock: Clock,
    ) -> None:
        """Start without sightings.

        Args:
            fleet: The store of the fleet's rows.
            manager: Of that.
            settings: The worker's.
            clock: The worker's.
        """
        self._fleet = fleet
        self._settings = settings
        self._watch = StoreWatch(
            fleet,
            manager=manager,
            lease_seconds=settings.lease_seconds,
            asking_seconds=settings.asking_seconds,
            clock=clock,
        )

    async def living(self) -> frozenset[str]:
        """Return the living workers that accept assignments; delete rows of workers gone for long.

        Raises:
            InvalidStateError: besides, there is something else in the fleet's store.
        """
        look, seen = await self._watch.look()
        check_rows(look.found)
        living = {view.key: view.held_by for view in seen.leases if view.held_by is not None}
        for found in look.found:
            free_seconds = self._watch.free_seconds(found.record.key, look)
            if free_seconds is not None and free_seconds > self._settings.leader_lease_seconds:
                await self._forget(found)
        return frozenset(name for key, name in living.items() if key == worker_key(name))

    async def _forget(self, seen: Versioned) -> None:
        if not seen.record.key.startswith(WORKER_PREFIX):
            return
        try:
            await self._fleet.delete(seen.record.key, seen)
        except RecordConflictError:
            _log.debug("leasing.worker_returned", key=seen.record.key)
