"""Rounds of balancing leases: look, plan, perform.

    look      one scan of the leases, and the view that follows from it and from earlier scans
    plan      `plan_round`: pure, in one of four modes
    perform   the plan's actions, one performer for all modes

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseTaker (look, expire by observation, take, steal),
leases.dynamodb.DynamoDBLeaseDiscoverer, coordinator.assignment.LeaseAssignmentManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.record import Versioned
from broadsheet.leases.worker.context import WorkerContext
from broadsheet.leases.worker.lease_view import LeaseScan, Memory, Viewer, WorkerView, outlook
from broadsheet.leases.worker.performer import OnTaken, Performance, Performer
from broadsheet.leases.worker.round_plan import RoundMode, plan_round
from broadsheet.leases.worker.settings import WorkerSettings

NOBODY = ""
"""The name of an observer that is no worker, so that no lease is due to it."""


class LeaseWatch:
    """One observer's memory of a store; every holder in the first scan counts as alive then."""

    def __init__(
        self,
        manager: LeaseManager,
        settings: WorkerSettings,
        *,
        me: str = NOBODY,
        owned_only: bool = False,
    ) -> None:
        """Start without sightings.

        Args:
            manager: Of the records; its clock measures how long they do not move.
            settings: Tell how long a holder may not move, and how long no other worker gets what was asked for.
            me: The observer.
            owned_only: Whether it looks at the observer's own records only.
        """
        self._manager = manager
        self._owned_only = owned_only
        self._memory: Mapping[str, Memory] = {}
        self._observer = Viewer(
            me=me,
            lease_seconds=settings.lease_seconds,
            asking_seconds=settings.asking_seconds,
            store_tells_who_lives=manager.store.tells_who_lives,
        )

    async def look(self, *, held: Collection[str] = ()) -> tuple[LeaseScan, WorkerView]:
        """Scan the store; return the scan, and the view that follows from it.

        Args:
            held: Keys of the leases that the observer processes.

        Raises:
            LeasingError: the store failed.
        """
        began_seconds = self._manager.clock.monotonic_seconds()
        found = await self._scan()
        scan = LeaseScan(
            found=found,
            began_seconds=began_seconds,
            ended_seconds=self._manager.clock.monotonic_seconds(),
        )
        view = outlook(self._memory, scan, self._observer, held=held)
        self._memory = view.memory
        return scan, view

    async def _scan(self) -> tuple[Versioned, ...]:
        # An index of owners that lags is harmless: each lease is read again, and taken only if unchanged since.
        if self._owned_only:
            return await self._manager.list_leases_of(self._observer.me)
        return await self._manager.list_leases()


def _leave(taken: Versioned, sent_seconds: float) -> None:
    raise AssertionError(
        f"the round took {taken.record.key} at {sent_seconds}: nobody processes it"
    )


def _always() -> bool:
    return True


class LeaseRounds:
    """The rounds of a worker; or of a leader, in one term."""

    def __init__(self, worker: WorkerContext, watch: LeaseWatch) -> None:
        self._worker = worker
        self._watch = watch
        self._performer = Performer(worker)
        self.is_asking = False
        """Whether the worker waits for a lease that it asked for, as of the last round."""

    async def run(
        self,
        mode: Callable[[], RoundMode],
        *,
        held: Collection[str] = (),
        on_taken: OnTaken = _leave,
        goes_on: Callable[[], bool] = _always,
    ) -> WorkerView:
        """Run one round; each lease is taken, asked for or assigned once.

        Args:
            mode: Returns the mode; called after the look, during which a processor may fail, or a worker may go.
            held: Keys of the leases that the worker processes.
            on_taken: Called as each lease is taken.
            goes_on: Asked before each action.

        Returns:
            What the look showed.

        Raises:
            LeasingError: the store failed: the look, or an action as `Performer.perform` says.
        """
        scan, view = await self._watch.look(held=held)
        plan = plan_round(view, self._worker.settings, mode(), self._worker.random.random)
        self.is_asking = view.is_asking
        if plan.share is not None:
            self._worker.metrics.on_look(view.leases, share=plan.share)
        if plan.workers is not None:
            self._worker.metrics.on_fleet(plan.workers)
        performance = Performance(plan, scan, on_taken, goes_on)
        try:
            await self._performer.perform(performance)
        finally:
            self.is_asking |= performance.has_asked
        return view
