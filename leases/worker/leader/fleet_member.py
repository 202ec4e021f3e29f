"""A worker's part in a fleet with a leader: it shows its presence, and leads if elected.

beat        every third of a lease's length, the worker's own row
keep        every leader_heartbeat_seconds, the leader's
step        every two lengths of a lease (a tenth where the store tells who lives): contend, or assign
"""

from __future__ import annotations

import asyncio

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.worker.context import WorkerContext
from broadsheet.leases.worker.leader.lock import LeaderLock
from broadsheet.leases.worker.leader.roster import Presence
from broadsheet.leases.worker.leader.term import LeaderTerm
from broadsheet.leases.worker.pacing import retryable
from broadsheet.runtime.task_group import TaskGroup


class FleetMember:
    """Runs beside a worker's consumers."""

    def __init__(
        self, worker: WorkerContext, fleet: LeaseManager, *, leases_created: asyncio.Event
    ) -> None:
        """Describe it; `run` starts it.

        Args:
            worker: The worker.
            fleet: Of the rows of leader and workers, in another store than the leases.
            leases_created: Set when there are new leases, which a leader assigns at once.
        """
        self._worker = worker.name
        self._settings = worker.settings
        self._pacing = worker.pacing
        self._usual_seconds = worker.scan_seconds
        self.assigned = worker.pacing.new_bell()
        """Set when the worker, as the leader, has assigned leases: some may be its own."""
        self._leases_created = leases_created
        self._fleet = fleet
        self._presence = Presence(worker.name, fleet, worker.settings)
        lock = LeaderLock(worker.name, fleet, lease_seconds=worker.settings.leader_lease_seconds)
        self._leadership = LeaderTerm(worker, fleet, lock)

    @property
    def leads(self) -> bool:
        """True while the worker leads, by its own clock."""
        return self._leadership.leads

    async def run(self) -> None:
        """Take part until told to stop, then leave.

        Raises:
            InvalidStateError: a store is gone, or that of the fleet is none.
        """
        await self._fleet.store.join(self._worker)
        await self._fleet.create_store_if_not_exists()
        async with retryable("leasing.presence_failed", self._worker):
            await self._presence.beat()
        async with TaskGroup() as group:
            group.start_soon(self._beat(), name="show that the worker lives")
            group.start_soon(self._keep(), name="keep leading")
            while not self._pacing.is_stopping:
                self._leases_created.clear()
                seconds = await self._step()
                if self.leads:
                    self.assigned.set()
                await self._pacing.pause(seconds, bell=self._leases_created)
            group.stop()
        async with retryable("leasing.presence_failed", self._worker):
            await self._presence.leave()
        async with retryable("leasing.leading_failed", self._worker):
            await self._leadership.step_down()

    async def _step(self) -> float:
        """Contend, or assign; return the time to wait afterwards."""
        async with retryable("leasing.pass_failed", self._worker):
            # A stopping worker that leads must not assign the leases that it releases to itself.
            if await self._leadership.step(goes_on=lambda: not self._pacing.is_stopping):
                return min(self._usual_seconds, self._settings.renew_every_seconds)
        return self._usual_seconds

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.renew_every_seconds)
            async with retryable("leasing.presence_failed", self._worker):
                await self._presence.beat()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._settings.leader_heartbeat_seconds)
            async with retryable("leasing.leading_failed", self._worker):
                await self._leadership.keep()
