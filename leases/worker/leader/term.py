"""A worker's terms as leader: it contends for the lock, and runs passes while it holds the lock.

A leader that fails several passes in a row steps down and does not contend for as many passes, so that another worker
may try. It also steps down when another program's leader assigns the same leases.

Source: awslabs/amazon-kinesis-client coordinator.assignment.LeaseAssignmentManager (passes, failures).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from broadsheet.leases.errors import DependencyError, LeasingError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.worker.context import WorkerContext
from broadsheet.leases.worker.leader.lock import ForeignWatch, LeaderLock
from broadsheet.leases.worker.leader.roster import Roster
from broadsheet.leases.worker.round_plan import AllLeases
from broadsheet.leases.worker.rounds import LeaseRounds, LeaseWatch

_log = structlog.get_logger()


class LeaderPasses:
    """The passes of one term: each assigns all leases to the workers that live."""

    def __init__(self, worker: WorkerContext, roster: Roster) -> None:
        """Start without sightings.

        Args:
            worker: The leader.
            roster: All workers.
        """
        self._roster = roster
        self._rounds = LeaseRounds(worker, LeaseWatch(worker.leases, worker.settings))
        self._rebalance_passes = worker.settings.rebalance_passes
        self._passes = 0

    async def run(self, *, leads: Callable[[], bool]) -> int:
        """Run one pass.

        Args:
            leads: Asked before each write.

        Returns:
            How many leases there are to assign, or were.

        Raises:
            LeasingError: the store failed, with some lease at least; what could be assigned was.
        """
        self._passes += 1
        mode = AllLeases(
            workers=await self._roster.living(),
            rebalances=self._passes % self._rebalance_passes == 0,
        )
        view = await self._rounds.run(lambda: mode, goes_on=leads)
        return len(view.leases)


class LeaderTerm:
    """The election and the passes of one worker, step by step."""

    def __init__(self, worker: WorkerContext, fleet: LeaseManager, lock: LeaderLock) -> None:
        """Start as a candidate.

        Args:
            worker: The candidate.
            fleet: Of the rows of leader and workers.
            lock: Its way to lead.
        """
        self._context = worker
        self._worker = worker.name
        self._settings = worker.settings
        self._metrics = worker.metrics
        self._clock = worker.clock
        self._fleet = fleet
        self._lock = lock
        self._foreign = ForeignWatch(worker.leases.store, worker.clock)
        self._passes: LeaderPasses | None = None
        self._failures = 0
        self._contends_at_seconds = -float("inf")

    @property
    def leads(self) -> bool:
        """True while the worker leads, by its own clock."""
        return self._lock.is_held

    async def step(self, *, goes_on: Callable[[], bool] = lambda: True) -> bool:
        """Contend for the lock, or run a pass.

        Args:
            goes_on: Asked before each write of a pass: whether the worker still works.

        Returns:
            Whether there was nothing to assign although the worker leads: leases may be about to be created.

        Raises:
            LeasingError: the store failed.
        """
        led = self._passes is not None
        try:
            if not await self._may_lead():
                return False
            return await self._pass(goes_on) == 0
        finally:
            if led or self.leads:
                self._metrics.on_leading(leads=self.leads)

    async def keep(self) -> None:
        """Renew the lock, if this worker leads.

        Raises:
            LeasingError: the store failed; the worker leads until the lock runs out.
        """
        await self._lock.renew()

    async def step_down(self) -> None:
        """Step down: stop leading, and release the lock.

        Raises:
            LeasingError: the store failed; others wait until the lock runs out.
        """
        if self._passes is not None:
            _log.info("leasing.leader_stepped_down", worker=self._worker)
            self._metrics.on_leading(leads=False)
        self._passes = None
        await self._lock.step_down()

    async def _may_lead(self) -> bool:
        """Tell whether the worker leads now; contend for the lock if it does not."""
        other = await self._foreign.living()
        if other is not None:
            _log.warning(
                "leasing.foreign_leader",
                worker=self._worker,
                leader=other.name,
                do="stop that program's workers, or set balancing to takers",
            )
            await self.step_down()
            return False
        if self._lock.is_held:
            return True
        if self._clock.monotonic_seconds() < self._contends_at_seconds:
            return False
        self._passes = None
        return await self._lock.contend()

    async def _pass(self, goes_on: Callable[[], bool]) -> int:
        if self._passes is None:
            # Each term starts without sightings: every holder counts as alive in its first pass.
            roster = Roster(self._fleet, self._settings)
            self._passes, self._failures = LeaderPasses(self._context, roster), 0
            _log.info("leasing.leader_elected", worker=self._worker)
        try:
            with self._metrics.round():
                count = await self._in_time(
                    self._passes.run(leads=lambda: self._lock.is_held and goes_on())
                )
        except LeasingError:
            # Another worker may reach the stores, so a leader that keeps failing gives way.
            self._failures += 1
            most = self._settings.failed_passes_max
            if self._failures >= most:
                now_seconds = self._clock.monotonic_seconds()
                self._contends_at_seconds = now_seconds + most * self._context.scan_seconds
                await self.step_down()
            raise
        self._failures = 0
        return count

    async def _in_time(self, running: Coroutine[object, object, int]) -> int:
        """Fail a pass that takes too long: its leader would stay alive, and no other worker could lead."""
        most_seconds = self._settings.leader_lease_seconds
        try:
            async with asyncio.timeout(most_seconds):
                return await running
        except TimeoutError as error:
            raise DependencyError(
                f"a pass took more than {most_seconds} s: a store does not answer"
            ) from error
