"""A worker's terms as leader: it contends for the lock, and runs passes while it holds the lock.

A leader that fails several passes in a row steps down and does not contend for as many passes, so that another worker
may try. It also steps down when another program's leader assigns the same leases.

Source: awslabs/amazon-kinesis-client coordinator.assignment.LeaseAssignmentManager (passes, failures).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from broadsheet.allocator.runtime.clock import Clock
from broadsheet.consumer.errors import DependencyError, LeasingError
from broadsheet.consumer.leasing.worker.leader.assigner import Assigner
from broadsheet.consumer.leasing.worker.leader.lock import ForeignWatch, LeaderLock
from broadsheet.consumer.leasing.worker.metrics import WorkerMetrics

_log = structlog.get_logger()


class LeaderTerm:
    """The election and the passes of one worker, step by step."""

    def __init__(
        self,
        worker: str,
        lock: LeaderLock,
        *,
        foreign: ForeignWatch,
        new_assigner: Callable[[], Assigner],
        metrics: WorkerMetrics,
        failed_passes_max: int,
        pass_seconds_max: float,
        stand_back_seconds: float,
        clock: Clock,
    ) -> None:
        """Start as a candidate.

        Args:
            worker: Its name.
            lock: Its way to lead.
            foreign: Other programs' leaders.
            new_assigner: Returns the assigner of a term; each starts without sightings.
            metrics: The worker's.
            failed_passes_max: After how many failed passes in a row it steps down.
            pass_seconds_max: How long a pass may take.
            stand_back_seconds: How long it does not contend then.
            clock: The worker's.
        """
        self._worker = worker
        self._lock = lock
        self._foreign = foreign
        self._new_assigner = new_assigner
        self._metrics = metrics
        self._failed_passes_max = failed_passes_max
        self._pass_seconds_max = pass_seconds_max
        self._stand_back_seconds = stand_back_seconds
        self._clock = clock
        self._assigner: Assigner | None = None
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
        led = self._assigner is not None
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
        if self._assigner is not None:
            _log.info("leasing.leader_stepped_down", worker=self._worker)
            self._metrics.on_leading(leads=False)
        self._assigner = None
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
        self._assigner = None
        return await self._lock.contend()

    async def _pass(self, goes_on: Callable[[], bool]) -> int:
        if self._assigner is None:
            self._assigner, self._failures = self._new_assigner(), 0
            _log.info("leasing.leader_elected", worker=self._worker)
        try:
            with self._metrics.round():
                count = await self._in_time(
                    self._assigner.run_pass(leads=lambda: self._lock.is_held and goes_on())
                )
        except LeasingError:
            # Another worker may reach the stores, so a leader that keeps failing gives way.
            self._failures += 1
            if self._failures >= self._failed_passes_max:
                now_seconds = self._clock.monotonic_seconds()
                self._contends_at_seconds = now_seconds + self._stand_back_seconds
                await self.step_down()
            raise
        self._failures = 0
        return count

    async def _in_time(self, running: Coroutine[object, object, int]) -> int:
        """Fail a pass that takes too long: its leader would stay alive, and no other worker could lead."""
        try:
            async with asyncio.timeout(self._pass_seconds_max):
                return await running
        except TimeoutError as error:
            raise DependencyError(
                f"a pass took more than {self._pass_seconds_max} s: a store does not answer"
            ) from error
