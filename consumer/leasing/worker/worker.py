"""A worker of an application: one of any number of processes that share the shards of a stream by leases.

    async with EtcdRecordStore(etcd, "/my-application") as store:
        worker = LeaseWorker("host-1", store=store, source=source, new_processor=MyProcessor)
        await worker.run()  # until worker.stop()

It looks at all leases from time to time, takes what is free and its share, and asks others for what it lacks; renews
what it holds; runs a processor on each; and keeps the leases like the shards of the stream. Every worker does the same,
and none is special.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from random import Random

import structlog

from allocator.runtime.clock import Clock, SystemClock
from allocator.runtime.task_group import TaskGroup
from consumer.errors.leasing import LeasingError
from consumer.leasing.core.record import Versioned
from consumer.leasing.manager import LeaseManager
from consumer.leasing.metrics import LeaseMetrics
from consumer.leasing.record_processor.calls import AnyProcessor
from consumer.leasing.record_processor.held_lease import HeldLease, TellsDeadline
from consumer.leasing.store import RecordStore
from consumer.leasing.worker.metrics import WorkerMetrics
from consumer.leasing.worker.renewer import Renewer
from consumer.leasing.worker.settings import WorkerSettings
from consumer.leasing.worker.shard_consumer import Reason, ShardConsumer, ShardParts
from consumer.leasing.worker.source import RecordSource
from consumer.leasing.worker.stream_sync import StreamSync
from consumer.leasing.worker.taker import Taker

EXPIRY_CHECKS_PER_LEASE = 20
"""How often in a lease's length a worker compares its leases' deadlines with its clock."""
JITTER_RATIO = 0.2
"""By which part of it the time between looks varies, so that workers do not look together."""

_log = structlog.get_logger()


class LeaseWorker:
    """Runs record processors on the leases that it gets."""

    def __init__(
        self,
        name: str,
        *,
        store: RecordStore,
        source: RecordSource,
        new_processor: Callable[[], AnyProcessor],
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
            settings: The same for all workers of the application.
            clock: Measures leases; asyncio's timers must run with it.
            random: Decides what is tried first.
            metrics: Where it counts, under its name; None: in a registry of its own.
        """
        self.name = name
        self._settings = settings or WorkerSettings()
        self._store = store
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self.metrics = metrics or LeaseMetrics()
        self._counts = WorkerMetrics(self.metrics, name, self._clock)
        self._manager = LeaseManager(store, clock=self._clock, metrics=self.metrics)
        self._sync = StreamSync(store, source, start=self._settings.start, manager=self._manager)
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
        )
        self._consumers: dict[str, ShardConsumer] = {}
        self._left_alone: dict[str, float] = {}
        self._stopping = asyncio.Event()
        self._renewer = Renewer(
            store,
            self._consumers,
            manager=self._manager,
            metrics=self._counts,
            worker=name,
            at_once=self._settings.renewals_at_once,
            clock=self._clock,
        )
        self._taker = Taker(
            name,
            store,
            manager=self._manager,
            metrics=self._counts,
            settings=self._settings,
            clock=self._clock,
            dice=self._random.random,
        )

    @property
    def held(self) -> Mapping[str, int]:
        """The leases that it processes now, and their epochs."""
        return {key: each.lease.record.epoch for key, each in sorted(self._consumers.items())}

    def stop(self) -> None:
        """Let every processor checkpoint, release the leases, and let `run` return. Idempotent."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until told to stop.

        Raises:
            InvalidStateError: the store is gone.
            Exception: what the source raises that is not to be retried.
        """
        await self._store.join(self.name)
        await self._manager.create_store_if_not_exists()
        try:
            async with TaskGroup() as keeping:
                keeping.start_soon(self._renew(), name="renew leases")
                keeping.start_soon(self._end_expired(), name="end expired leases")
                async with TaskGroup() as working:
                    working.start_soon(self._follow_stream(), name="sync leases with the stream")
                    working.start_soon(self._take(working), name="take leases")
                    await self._stopping.wait()
                    self._request_all()
                keeping.stop()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _request_all(self) -> None:
        for consumer in tuple(self._consumers.values()):
            consumer.request(Reason.REQUESTED)

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
        """Keep the leases like the shards; at first at once, for all else depends on it."""
        while not self._stopping.is_set():
            async with _retryable("leasing.sync_failed", self.name):
                await self._sync.create_missing()
                await self._sync.delete_done()
            await self._pause(self._settings.sync_seconds)

    async def _take(self, group: TaskGroup) -> None:
        """Take leases, and start their consumers."""
        usual_seconds = self._settings.take_every_seconds(
            store_tells_who_lives=self._store.tells_who_lives
        )
        while not self._stopping.is_set():
            async with _retryable("leasing.round_failed", self.name):
                with self._counts.round():
                    await self._taker.round(
                        held=self._consumers.keys(),
                        left_alone=self._keys_left_alone(),
                        on_taken=lambda lease, asked_seconds: self._start(
                            group, lease, asked_seconds
                        ),
                    )
            # A holder that was asked lets go at its next renewal.
            most = self._settings.renew_every_seconds if self._taker.is_asking else usual_seconds
            await self._pause(min(usual_seconds, most))

    async def _pause(self, seconds: float) -> None:
        """Wait about so long, or until told to stop."""
        jitter = self._random.uniform(1 - JITTER_RATIO, 1 + JITTER_RATIO)
        try:
            async with asyncio.timeout(seconds * jitter):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _start(self, group: TaskGroup, taken: Versioned, asked_seconds: float) -> None:
        lease = HeldLease(
            self._manager,
            taken,
            lease_seconds=self._settings.lease_seconds,
            acquired_monotonic_seconds=asked_seconds,
            clock=self._clock,
            authority=self._store if isinstance(self._store, TellsDeadline) else None,
        )
        consumer = ShardConsumer(lease, self._parts)
        self._consumers[taken.record.key] = consumer
        self._counts.on_held(len(self._consumers))
        group.start_soon(self._consume(consumer), name=f"consume {taken.record.key}")
        if self._stopping.is_set():
            consumer.request(Reason.REQUESTED)

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


@asynccontextmanager
async def _retryable(event: str, worker: str) -> AsyncIterator[None]:
    """Log what fails and may succeed the next time."""
    try:
        yield
    except LeasingError as error:
        if not error.retryable:
            raise
        _log.warning(event, worker=worker, cause=str(error))
