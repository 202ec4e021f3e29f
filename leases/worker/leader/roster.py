"""Roster of living workers: each renews its own row, and the leader watches which rows move.

Source: awslabs/amazon-kinesis-client worker.metricstats (a row for each worker). Ours only show that workers live.
"""

from __future__ import annotations

import structlog

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.record import RecordConflictError, Versioned
from broadsheet.leases.record_processor.held_lease import HeldLease
from broadsheet.leases.worker.leader.lock import WORKER_PREFIX, check_rows, taken_row, worker_key
from broadsheet.leases.worker.rounds import LeaseWatch
from broadsheet.leases.worker.settings import WorkerSettings

_log = structlog.get_logger()


class Presence:
    """A worker's own row."""

    def __init__(self, worker: str, fleet: LeaseManager, settings: WorkerSettings) -> None:
        """Create the row's keeper; `beat` writes the row.

        Args:
            worker: Its name.
            fleet: Of the fleet's rows; its clock is the worker's.
            settings: The worker's.
        """
        self._worker = worker
        self._manager = fleet
        self._settings = settings
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
        asked_seconds = self._manager.clock.monotonic_seconds()
        self._row = None
        taken = await taken_row(self._manager, worker_key(self._worker), self._worker)
        if taken is not None:
            self._row = HeldLease(
                self._manager,
                taken,
                lease_seconds=self._settings.lease_seconds,
                acquired_monotonic_seconds=asked_seconds,
            )


class Roster:
    """The rows of all workers, as a leader sees them."""

    def __init__(self, fleet: LeaseManager, settings: WorkerSettings) -> None:
        """Start without sightings.

        Args:
            fleet: Of the fleet's rows.
            settings: The worker's.
        """
        self._store = fleet.store
        self._settings = settings
        self._watch = LeaseWatch(fleet, settings)

    async def living(self) -> frozenset[str]:
        """Return the living workers that accept assignments; delete rows of workers gone for long.

        Raises:
            InvalidStateError: besides, there is something else in the fleet's store.
        """
        scan, view = await self._watch.look()
        check_rows(scan.found)
        free_seconds = {row.key: row.free_seconds for row in view.leases if row.held_by is None}
        for found in scan.found:
            if free_seconds.get(found.record.key, 0.0) > self._settings.leader_lease_seconds:
                await self._forget(found)
        return frozenset(
            row.held_by
            for row in view.leases
            if row.held_by is not None and row.key == worker_key(row.held_by)
        )

    async def _forget(self, seen: Versioned) -> None:
        if not seen.record.key.startswith(WORKER_PREFIX):
            return
        try:
            await self._store.delete(seen.record.key, seen)
        except RecordConflictError:
            _log.debug("leasing.worker_returned", key=seen.record.key)
