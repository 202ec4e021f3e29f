"""A worker's taking round: it scans all leases, takes free and due ones, and asks others for what it lacks.

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseTaker (look, expire by observation, take, steal).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import structlog

from broadsheet.allocator.runtime.clock import Clock
from broadsheet.consumer.leasing.facades.kcl import LeaseManager
from broadsheet.consumer.leasing.record import Versioned
from broadsheet.consumer.leasing.store import RecordStore
from broadsheet.consumer.leasing.worker.acquirer import Acquirer, OnTaken, ask_for
from broadsheet.consumer.leasing.worker.fair_share import ShareLimits, plan_shares
from broadsheet.consumer.leasing.worker.lease_view import (
    LeaseScan,
    Memory,
    Viewer,
    WorkerView,
    outlook,
)
from broadsheet.consumer.leasing.worker.metrics import TakenHow, WorkerMetrics
from broadsheet.consumer.leasing.worker.settings import StealWay, WorkerSettings

_log = structlog.get_logger()


class Taker:
    """Takes leases for one worker, and remembers its sightings of each."""

    def __init__(
        self,
        worker: str,
        store: RecordStore,
        *,
        manager: LeaseManager,
        metrics: WorkerMetrics,
        attempts: Acquirer,
        settings: WorkerSettings,
        clock: Clock,
        dice: Callable[[], float],
    ) -> None:
        """Start without sightings: every holder in the first scan counts as alive then.

        Args:
            worker: Who takes.
            store: The leases.
            manager: Of the store.
            metrics: The worker's.
            attempts: Takes and asks.
            settings: The worker's.
            clock: Measures how long leases do not move.
            dice: Returns numbers in [0, 1).
        """
        self._worker = worker
        self._store = store
        self._manager = manager
        self._metrics = metrics
        self._attempts = attempts
        self._settings = settings
        self._clock = clock
        self._dice = dice
        self._limits = ShareLimits(
            leases_max=settings.leases_max,
            steals_max=settings.steals_max,
            overdue_seconds=settings.overdue_seconds,
        )
        self._memory: Mapping[str, Memory] = {}
        self.is_asking = False
        """Whether the worker waits for a lease that it asked for, as of the last round."""

    async def round(
        self,
        *,
        held: Collection[str],
        left_alone: Callable[[], Collection[str]],
        on_taken: OnTaken,
    ) -> None:
        """Run one round: take and ask once.

        Args:
            held: Keys of the leases that the worker processes.
            left_alone: Returns the keys that it does not take now; asked after the look, during which one may fail.
            on_taken: Called as each lease is taken.

        Raises:
            LeasingError: the store failed: the look, or still a lease's length after it; or it is gone.
        """
        look = await self._look()
        self._attempts.begin_round(look.ended_seconds)
        seen = self._outlook(look, held)
        alone = left_alone()
        found = {each.record.key: each for each in look.found if each.record.key not in alone}
        for key in seen.due:
            if key in found:
                await self._attempts.take(found[key], on_taken, TakenHow.DUE)
        shares = plan_shares(
            [lease for lease in seen.leases if lease.key not in alone],
            me=self._worker,
            limits=self._limits,
            dice=self._dice,
        )
        self._metrics.on_look(seen.leases, share=shares.target)
        room = shares.take_max
        for key in shares.to_take:
            if not room:
                break
            room -= await self._attempts.take(found[key], on_taken, TakenHow.FREE)
        for key in shares.to_steal:
            await self._steal(found[key], on_taken)

    async def _look(self) -> LeaseScan:
        began_seconds = self._clock.monotonic_seconds()
        found = await self._manager.list_leases()
        return LeaseScan(
            found=found,
            began_seconds=began_seconds,
            ended_seconds=self._clock.monotonic_seconds(),
        )

    def _outlook(self, look: LeaseScan, held: Collection[str]) -> WorkerView:
        observer = Viewer(
            me=self._worker,
            lease_seconds=self._settings.lease_seconds,
            asking_seconds=self._settings.asking_seconds,
            store_tells_who_lives=self._store.tells_who_lives,
        )
        seen = outlook(self._memory, look, observer, held=held)
        self._memory = seen.memory
        self.is_asking = seen.is_asking
        return seen

    async def _steal(self, seen: Versioned, on_taken: OnTaken) -> None:
        """Get a lease from its holder, in the configured way."""
        way = self._settings.steal
        if way is StealWay.AT_ONCE:
            await self._attempts.take(seen, on_taken, TakenHow.STOLEN)
            return
        asked = await self._attempts.make(
            seen.record.key, lambda: ask_for(self._store, seen, self._worker, way)
        )
        if asked is None:
            return
        self.is_asking = True
        self._metrics.on_asked_for(way.value)
        _log.info(
            "leasing.lease_requested",
            worker=self._worker,
            key=seen.record.key,
            holder=seen.record.holder,
            way=way.value,
        )
