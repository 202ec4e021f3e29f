"""A leader's pass: scan workers and leases, plan, and write the assignments.

The records may have changed before the writes. A free lease is assigned only if it has not changed since it was seen; a
hand-off is begun, or forced, only if its owners are the same. So a paused leader that does not know of its successor
takes nothing from a living worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from random import Random

import structlog

from broadsheet.allocator.runtime.clock import Clock
from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.consumer.errors import LeasingError
from broadsheet.consumer.leasing import rules
from broadsheet.consumer.leasing.compare_and_swap import compare_and_swap, verdict_of_taker
from broadsheet.consumer.leasing.facades.kcl import LeaseManager
from broadsheet.consumer.leasing.record import Versioned
from broadsheet.consumer.leasing.store import RecordStore
from broadsheet.consumer.leasing.worker.assignments import (
    AssignmentLimits,
    GivenHow,
    LeaseAssignment,
    plan_assignments,
    standings,
)
from broadsheet.consumer.leasing.worker.leader.roster import Roster, StoreWatch
from broadsheet.consumer.leasing.worker.lease_view import LeaseScan
from broadsheet.consumer.leasing.worker.metrics import WorkerMetrics
from broadsheet.consumer.leasing.worker.settings import WorkerSettings

_log = structlog.get_logger()


class Assigner:
    """Assigner of one term of a leader: remembers sightings, and counts its passes."""

    def __init__(
        self,
        leases: RecordStore,
        roster: Roster,
        *,
        manager: LeaseManager,
        metrics: WorkerMetrics,
        settings: WorkerSettings,
        clock: Clock,
        random: Random,
    ) -> None:
        """Start a term without sightings.

        Args:
            leases: Their store.
            roster: The workers.
            manager: Of the leases.
            metrics: The worker's.
            settings: The worker's.
            clock: The worker's.
            random: Decides which of a worker's leases move.
        """
        self._leases = leases
        self._roster = roster
        self._manager = manager
        self._metrics = metrics
        self._settings = settings
        self._random = random
        self._limits = AssignmentLimits(
            leases_max=settings.leases_max, moves_max=settings.steals_max
        )
        self._watch = StoreWatch(
            leases,
            manager=manager,
            lease_seconds=settings.lease_seconds,
            asking_seconds=settings.asking_seconds,
            clock=clock,
        )
        self._last_holder: Mapping[str, str] = {}
        self._passes = 0

    async def run_pass(self, *, leads: Callable[[], bool]) -> int:
        """Run one pass.

        Args:
            leads: Asked before each write.

        Returns:
            How many leases there are to assign, or were.

        Raises:
            LeasingError: the store failed, with some lease at least; what could be assigned was.
        """
        self._passes += 1
        workers = await self._roster.living()
        look, plan = await self._plan(workers)
        found = {each.record.key: each for each in look.found}
        errors: list[LeasingError] = []
        queue = iter(plan)
        async with TaskGroup() as group:
            for number in range(min(self._settings.renewals_at_once, len(plan))):
                group.start_soon(
                    self._write_some(queue, found, leads, errors), name=f"assign {number}"
                )
        if errors:
            raise errors[0]
        return sum(not each.record.is_finished for each in look.found)

    async def _plan(self, workers: frozenset[str]) -> tuple[LeaseScan, tuple[LeaseAssignment, ...]]:
        look, seen = await self._watch.look()
        self._last_holder = _last_holders(look, self._last_holder)
        leases = standings(seen, look, self._watch.observer, last_holder=self._last_holder)
        fleet = workers | {lease.held_by for lease in leases if lease.held_by is not None}
        share = math.ceil(len(leases) / max(1, len(fleet)))
        self._metrics.on_look(seen.leases, share=share)
        self._metrics.on_fleet(len(fleet))
        plan = plan_assignments(
            leases,
            workers=workers,
            limits=self._limits,
            rebalances=self._passes % self._settings.rebalance_passes == 0,
            dice=self._random.random,
        )
        return look, plan

    async def _write_some(
        self,
        queue: Iterator[LeaseAssignment],
        found: Mapping[str, Versioned],
        leads: Callable[[], bool],
        errors: list[LeasingError],
    ) -> None:
        for assignment in queue:
            if not leads():
                return
            try:
                written = await self._write(assignment, found[assignment.key])
            except LeasingError as error:
                errors.append(error)
                _log.warning(
                    "leasing.assignment_failed",
                    key=assignment.key,
                    worker=assignment.worker,
                    cause=str(error),
                )
                continue
            if written is not None:
                self._metrics.on_assigned(assignment.how)
                _log.info(
                    "leasing.lease_assigned",
                    key=assignment.key,
                    worker=assignment.worker,
                    how=assignment.how.value,
                )

    async def _write(self, assignment: LeaseAssignment, seen: Versioned) -> Versioned | None:
        """Write one assignment; return None if the record has changed, because the next pass scans again."""
        worker = assignment.worker
        if assignment.how is GivenHow.FREE:
            return await compare_and_swap(
                self._leases, seen, lambda record: rules.take(record, worker), verdict_of_taker
            )
        graceful = assignment.how is GivenHow.HAND_OFF
        return await self._manager.assign(seen, worker, graceful=graceful)


def _last_holders(look: LeaseScan, before: Mapping[str, str]) -> dict[str, str]:
    holders = {
        found.record.key: found.record.holder or before.get(found.record.key)
        for found in look.found
    }
    return {key: holder for key, holder in holders.items() if holder is not None}
