"""A lease worker: one of any number of processes that share the shards of a stream by leases.

    async with EtcdRecordStore(etcd, "/my-application") as store:
        worker = LeaseWorker("host-1", store=store, source=source, new_processor=MyProcessor)
        await worker.run()  # until worker.stop()

It scans all leases from time to time, takes free ones up to its share, and asks other workers for what it lacks; renews
the leases that it holds; runs a processor on each; and synchronises the leases with the shards of the stream. All
workers do the same. With `Balancing.LEADER`, an elected one assigns the leases, and all take what they are assigned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from random import Random

import structlog

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.metrics import LeaseMetrics
from broadsheet.leases.record import Versioned
from broadsheet.leases.record_processor.calls import AnyProcessor
from broadsheet.leases.record_processor.held_lease import HeldLease
from broadsheet.leases.store import RecordStore, WritesLeaseLength
from broadsheet.leases.worker.context import WorkerContext
from broadsheet.leases.worker.leader.fleet_member import FleetMember
from broadsheet.leases.worker.metrics import WorkerMetrics
from broadsheet.leases.worker.pacing import EndedShards, Pacing, retryable
from broadsheet.leases.worker.renewer import Renewer
from broadsheet.leases.worker.round_plan import AssignedOnly, GivingBack, OwnShare, RoundMode
from broadsheet.leases.worker.rounds import LeaseRounds, LeaseWatch
from broadsheet.leases.worker.settings import Balancing, WorkerSettings
from broadsheet.leases.worker.shard_consumer import EndReason, ShardConsumer, ShardParts
from broadsheet.leases.worker.source import RecordSource
from broadsheet.leases.worker.stream_sync import StreamSync
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.logs import guard_unconfigured_logs
from broadsheet.runtime.task_group import TaskGroup

EXPIRY_CHECKS_PER_LEASE = 20
"""Checks of its leases' deadlines that a worker makes in a lease's length."""

_log = structlog.get_logger()


class LeaseWorker:
    """Runs record processors on the leases that it acquires."""

    def __init__(
        self,
        name: str,
        *,
        store: RecordStore,
        source: RecordSource,
        new_processor: Callable[[], AnyProcessor],
        fleet: RecordStore | None = None,
        settings: WorkerSettings | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        metrics: LeaseMetrics | None = None,
    ) -> None:
        """Describe the worker; `run` starts it.

        Args:
            name: Unique among the workers that live; one that comes back under its name takes its leases again.
            store: The leases. Stays the caller's.
            source: The shards and their records.
            new_processor: Returns a processor; called for each lease, whenever it is taken.
            fleet: With `Balancing.LEADER`, where it is written who leads and who is there: a separate store, the same
                for all workers. Stays the caller's.
            settings: The same for all workers of the application.
            clock: Measures leases; asyncio's timers must run with it.
            random: Decides what is tried first.
            metrics: Where it counts, under its name; None: in a private registry.

        Raises:
            ValidationError: there is no store for the fleet, or one that is not used, or that of the leases; or the
                store of the leases was told another `lease_seconds` than the settings.
        """
        self.name = name
        self._settings = settings or WorkerSettings()
        self._store = store
        if isinstance(store, WritesLeaseLength):
            store.lease_lasts(self._settings.lease_seconds)
        self._clock = clock or SystemClock()
        self.metrics = metrics or LeaseMetrics()
        self._counts = WorkerMetrics(self.metrics, name, self._clock)
        self._manager = LeaseManager(store, clock=self._clock, metrics=self.metrics)
        random = random or Random()
        self._pacing = Pacing(random)
        self._context = WorkerContext(
            name=name,
            settings=self._settings,
            leases=self._manager,
            metrics=self._counts,
            pacing=self._pacing,
            random=random,
        )
        self._leases_created = self._pacing.new_bell()
        self._sync = StreamSync(
            source,
            start=self._settings.start,
            manager=self._manager,
            metrics=self._counts,
            on_created=self._leases_created.set,
        )
        self._threads = ThreadPoolExecutor(
            self._settings.threads, thread_name_prefix=f"processor of {name}"
        )
        self._parts = ShardParts(
            manager=self._manager,
            source=source,
            sync=self._sync,
            settings=self._settings,
            metrics=self._counts,
            threads=self._threads,
            new_processor=new_processor,
            ended=EndedShards(),
        )
        self._consumers: dict[str, ShardConsumer] = {}
        self._left_alone: dict[str, float] = {}
        self._renewer = Renewer(self._context, self._consumers)
        self._member = self._new_member(fleet)
        self._rounds = LeaseRounds(
            self._context,
            LeaseWatch(self._manager, self._settings, me=name, owned_only=self._member is not None),
        )
        self._was_run = False

    def _new_member(self, fleet: RecordStore | None) -> FleetMember | None:
        """Return the worker's part in a fleet that is led; None if each takes for itself."""
        led = self._settings.balancing is Balancing.LEADER
        if led != (fleet is not None) or fleet is self._store:
            raise ValidationError(
                "worker.fleet",
                "expected a store that is not that of the leases if balancing is leader, else none:"
                " pass the one in which all workers of the application find each other",
            )
        if fleet is None:
            return None
        manager = LeaseManager(fleet, clock=self._clock, metrics=self.metrics)
        return FleetMember(self._context, manager, leases_created=self._leases_created)

    @property
    def leads(self) -> bool:
        """True while it leads and assigns all leases, by its own clock."""
        return self._member is not None and self._member.leads

    @property
    def held(self) -> Mapping[str, int]:
        """The leases that it processes now, with their epochs."""
        return {key: each.lease.record.epoch for key, each in sorted(self._consumers.items())}

    def stop(self) -> None:
        """Stop: every processor may checkpoint, leases are released, and `run` returns. Idempotent."""
        self._pacing.stop()

    async def run(self) -> None:
        """Work until told to stop. A worker runs once; if it was stopped before, it touches nothing.

        Raises:
            RuntimeError: it ran before, or runs.
            InvalidStateError: the store is gone.
            Exception: what the source raises that is not to be retried.
        """
        if self._was_run:
            raise RuntimeError(
                f"worker {self.name} was started before: a worker runs once, create another"
            )
        self._was_run = True
        guard_unconfigured_logs()
        if self._pacing.is_stopping:
            return
        try:
            await self._store.join(self.name)
            await self._manager.create_store_if_not_exists()
            async with TaskGroup() as keeping:
                keeping.start_soon(self._renew(), name="renew leases")
                keeping.start_soon(self._end_expired(), name="end expired leases")
                async with TaskGroup() as working:
                    working.start_soon(self._follow_stream(), name="sync leases with the stream")
                    if self._member is not None:
                        working.start_soon(self._member.run(), name="be led, or lead")
                    working.start_soon(self._balance(working), name="take leases")
                    await self._pacing.until_stopped()
                    self._request_all()
                await self._give_back()
                keeping.stop()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _give_back(self) -> None:
        if self._member is not None:
            async with retryable("leasing.release_failed", self.name):
                await self._rounds.run(GivingBack)

    def _request_all(self) -> None:
        for consumer in tuple(self._consumers.values()):
            consumer.request(EndReason.REQUESTED)

    async def _renew(self) -> None:
        while True:
            began_seconds = self._clock.monotonic_seconds()
            await self._renewer.renew_all()
            spent_seconds = self._clock.monotonic_seconds() - began_seconds
            await asyncio.sleep(max(0.0, self._settings.renew_every_seconds - spent_seconds))

    async def _end_expired(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_seconds / EXPIRY_CHECKS_PER_LEASE)
            self._renewer.end_expired()

    async def _follow_stream(self) -> None:
        """Synchronise the leases with the shards; the first time at once, because everything else depends on it."""
        while not self._pacing.is_stopping:
            async with retryable("leasing.sync_failed", self.name):
                await self._sync.create_missing()
                await self._sync.delete_done()
            await self._pacing.pause(self._settings.sync_seconds)

    async def _balance(self, group: TaskGroup) -> None:
        """Run rounds, and start the consumers of the leases that they take."""
        led = self._member
        bell = self._leases_created if led is None else led.assigned
        failed = "leasing.round_failed" if led is None else "leasing.discovery_failed"
        # With a leader, its passes are the rounds that are timed.
        timed = self._counts.round if led is None else nullcontext[None]
        while not self._pacing.is_stopping:
            bell.clear()
            async with retryable(failed, self.name):
                with timed():
                    await self._rounds.run(
                        self._mode,
                        held=self._consumers.keys(),
                        on_taken=lambda lease, sent_seconds: self._start(
                            group, lease, sent_seconds
                        ),
                    )
            await self._pause(bell)

    def _mode(self) -> RoundMode:
        left_alone = self._keys_left_alone()
        if self._member is None:
            return OwnShare(me=self.name, left_alone=left_alone)
        return AssignedOnly(left_alone=left_alone)

    async def _pause(self, bell: asyncio.Event) -> None:
        """Wait until the next round."""
        if self._member is not None:
            seconds = self._settings.discover_every_seconds(
                store_tells_who_lives=self._store.tells_who_lives
            )
            await self._pacing.wait(seconds, bell=bell)
            return
        seconds = self._context.scan_seconds
        if self._rounds.is_asking:
            # A holder that was asked releases the lease at its next renewal.
            seconds = min(seconds, self._settings.renew_every_seconds)
        await self._pacing.pause(seconds, bell=bell)

    def _start(self, group: TaskGroup, taken: Versioned, sent_seconds: float) -> None:
        lease = HeldLease(
            self._manager,
            taken,
            lease_seconds=self._settings.lease_seconds,
            acquired_monotonic_seconds=sent_seconds,
        )
        consumer = ShardConsumer(lease, self._parts)
        self._consumers[taken.record.key] = consumer
        self._counts.on_held(len(self._consumers))
        group.start_soon(self._consume(consumer), name=f"consume {taken.record.key}")
        if self._pacing.is_stopping:
            consumer.request(EndReason.REQUESTED)

    async def _consume(self, consumer: ShardConsumer) -> None:
        key = consumer.lease.record.key
        _log.info(
            "leasing.lease_taken", worker=self.name, key=key, epoch=consumer.lease.record.epoch
        )
        try:
            await consumer.run()
        finally:
            del self._consumers[key]
            self._counts.on_held(len(self._consumers))
            self._counts.on_left(key, consumer.left_why)
        if consumer.failed:
            self._left_alone[key] = self._clock.monotonic_seconds() + self._settings.retry_seconds
        _log.info(
            "leasing.lease_left", worker=self.name, key=key, epoch=consumer.lease.record.epoch
        )

    def _keys_left_alone(self) -> frozenset[str]:
        now = self._clock.monotonic_seconds()
        self._left_alone = {key: until for key, until in self._left_alone.items() if until > now}
        return frozenset(self._left_alone)
