r"""Consumer of one lease: waits for parents, delivers records, and releases the lease at the end.

    waiting -> initialized -> delivering -> ended -> released
                   \______________\____________> asked to stop -> shutdown_requested -> released -> lease_lost
                                   \___________> lease lost -> lease_lost

Records are delivered only while the lease is held by the holder's own clock. A lost lease is left as it is; every other
end releases it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import structlog

from broadsheet.leases.errors import LeasingError, ShutdownError, UnreadableLeaseError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.record_processor.calls import AnyProcessor, ProcessorCalls, calls_of
from broadsheet.leases.record_processor.checkpointer import Change
from broadsheet.leases.record_processor.held_lease import HeldLease
from broadsheet.leases.record_processor.processor import InitializeInput
from broadsheet.leases.record_processor.shard_progress import ShardProgress
from broadsheet.leases.rules import blocking_parents
from broadsheet.leases.worker.metrics import LeftWhy, WorkerMetrics
from broadsheet.leases.worker.pacing import EndedShards, wait_at_most
from broadsheet.leases.worker.settings import WorkerSettings
from broadsheet.leases.worker.source import RecordBatch, RecordSource
from broadsheet.leases.worker.stream_sync import StreamSync
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.task_group import TaskGroup

T = TypeVar("T")

_log = structlog.get_logger()


class _ProcessorFailedError(Exception):
    """The processor raised its cause."""


class EndReason(IntEnum):
    """Reason for a processor's end; only a greater one replaces another."""

    NONE = 0
    REQUESTED = 1
    LEASE_LOST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardParts:
    """Parts that a worker's consumers share."""

    manager: LeaseManager
    source: RecordSource
    sync: StreamSync
    settings: WorkerSettings
    metrics: WorkerMetrics
    threads: Executor
    """Threads of blocking processors."""
    new_processor: Callable[[], AnyProcessor]
    ended: EndedShards


class ShardConsumer:
    """Consumer of a shard during one acquisition of its lease."""

    def __init__(self, lease: HeldLease, parts: ShardParts) -> None:
        """Prepare the consumer; `run` starts it.

        Args:
            lease: Just taken.
            parts: The worker's.
        """
        self.lease = lease
        """The acquisition."""
        self.failed = False
        """Whether it ended because the processor raised, or its source cannot be read."""
        self._parts = parts
        self._settings = parts.settings
        self._metrics = parts.metrics
        self._key = lease.record.key
        self._progress = ShardProgress(lease.record.checkpoint or parts.settings.start)
        self._calls: ProcessorCalls | None = None
        self._reason = EndReason.NONE
        self._over = asyncio.Event()
        self._calling = asyncio.Lock()

    @property
    def left_why(self) -> LeftWhy:
        """Reason for its end, once it ended."""
        if self.failed:
            return LeftWhy.FAILED
        if self._progress.is_ended:
            return LeftWhy.ENDED
        return LeftWhy.REQUESTED if self.lease.given_up else LeftWhy.LOST

    def request(self, reason: EndReason) -> None:
        """Ask it to stop, for a reason. Idempotent."""
        if reason is EndReason.LEASE_LOST:
            self.lease.end()
        self._reason = max(self._reason, reason)
        if self._reason is not EndReason.NONE:
            self._over.set()

    async def run(self) -> None:
        """Process until the shard ends, a stop is requested, or the processor fails."""
        try:
            async with TaskGroup() as group:
                group.start_soon(self._serve(), name=f"serve {self._key}")
                await self._over.wait()
                await self._finish()
                group.stop()
        except ShutdownError:
            self.request(EndReason.LEASE_LOST)
        except (_ProcessorFailedError, LeasingError):
            # Records since the last commit are delivered again, here or elsewhere.
            self.failed = True
            _log.exception("leasing.processor_failed", key=self._key)
        await self._let_go()

    async def _serve(self) -> None:
        await self._wait_for_parents()
        await self._initialize()
        await self._deliver_all()
        await self._end_shard()
        self._over.set()

    async def _wait_for_parents(self) -> None:
        """Wait until the parents are finished; the lease is renewed meanwhile."""
        while True:
            ended = self._parts.ended.next
            if not await self._blocking_parents():
                return
            # Parents may end in another process, so check again even if none ends here.
            await wait_at_most(self._settings.parent_poll_seconds, ended)

    async def _blocking_parents(self) -> tuple[str, ...]:
        record = self.lease.record
        parents = {}
        for key in sorted(record.parents):
            found = await self._retried(lambda key=key: self._parts.manager.get_lease(key))  # type: ignore[misc]
            if found is not None:
                parents[key] = found.record
        return blocking_parents(record, parents)

    async def _initialize(self) -> None:
        record = self.lease.record
        calls = calls_of(
            self._parts.new_processor(), self._progress, self._write, self._parts.threads
        )
        async with self._calling:
            self._calls = calls
            given = InitializeInput(
                shard_id=self._key,
                position=self._progress.bounds.committed,
                pending_checkpoint=record.pending,
                pending_checkpoint_state=record.pending_state,
                epoch=record.epoch,
            )
            await _called(calls.initialize(given))

    async def _deliver_all(self) -> None:
        """Deliver until the shard ends, resuming after failed reads."""
        backoff = Backoff()
        while True:
            position = self._progress.bounds.delivered or self._settings.start
            try:
                await self._deliver_from(position, backoff)
                return
            except LeasingError as error:
                if not error.retryable:
                    raise
                _log.warning("leasing.read_failed", key=self._key, cause=str(error))
            await backoff.sleep()

    async def _deliver_from(self, position: Position, backoff: Backoff) -> None:
        """Deliver the batches of one read, to the end of the shard."""
        async with aclosing(self._parts.source.read_records(self._key, position)) as batches:
            async for batch in batches:
                backoff.reset()
                await self._deliver(batch)

    async def _deliver(self, batch: RecordBatch) -> None:
        async with self._calling:
            calls = self._held_calls()
            if batch.millis_behind_latest is not None:
                self._metrics.on_behind(self._key, batch.millis_behind_latest / 1000)
            records = self._progress.deliver(batch.records)
            if records:
                with self._metrics.processing(self._key, records):
                    await _called(calls.process_records(records, batch.millis_behind_latest))

    async def _end_shard(self) -> None:
        """Create the children's leases, and call the processor until it commits the end."""
        await self._retried(lambda: self._parts.sync.create_children(self._key))
        self._progress.reach_end()
        while True:
            async with self._calling:
                await _called(self._held_calls().shard_ended())
            if self._progress.is_ended:
                self._parts.ended.announce()
                return
            _log.warning("leasing.shard_end_not_checkpointed", key=self._key)
            await asyncio.sleep(self._settings.end_retry_seconds)

    async def _write(self, change: Change) -> LeaseRecord:
        """Write a checkpoint."""
        return await self._metrics.checkpointed(lambda: self.lease.update(change))

    def _held_calls(self) -> ProcessorCalls:
        if not self.lease.is_held or self._calls is None:
            raise ShutdownError(f"lease {self._key} is not held any more: nothing is delivered")
        return self._calls

    async def _finish(self) -> None:
        """Wait for the running call, then let the processor checkpoint if it still may; both with a time limit."""
        try:
            async with asyncio.timeout(self._settings.graceful_seconds):
                await self._calling.acquire()  # The end is final: nothing is delivered any more.
                if self._reason is EndReason.REQUESTED and self.lease.is_held and self._calls:
                    await self._tell(self._calls.shutdown_requested())
        except TimeoutError:
            _log.warning("leasing.processor_shutdown_timed_out", key=self._key)

    async def _let_go(self) -> None:
        """Release the lease before telling the processor, so that no worker waits for the processor."""
        is_finished = self._progress.is_ended
        if self._reason is not EndReason.LEASE_LOST:
            await self._give_up()
        if self._calls is not None and not is_finished:
            await self._tell(self._calls.lease_lost())

    async def _give_up(self) -> None:
        try:
            await self.lease.give_up()
        except LeasingError as error:
            _log.warning("leasing.release_failed", key=self._key, cause=str(error))

    async def _tell(self, call: Awaitable[None]) -> None:
        """Make a call of the processor, and only log its failure."""
        try:
            await call
        except Exception:
            _log.exception("leasing.processor_shutdown_failed", key=self._key)

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the store or the source, with retries, and return the result."""
        backoff = Backoff(initial_seconds=0.2)
        while True:
            try:
                return await call()
            except LeasingError as error:
                # Only this shard waits until an operator has restored or deleted the row.
                if not error.retryable and not isinstance(error, UnreadableLeaseError):
                    raise
                _log.warning("leasing.shard_blocked", key=self._key, cause=str(error))
            await backoff.sleep()


async def _called(call: Awaitable[None]) -> None:
    """Call the processor, marking its errors to distinguish them from the source's."""
    try:
        await call
    except ShutdownError:
        raise
    except Exception as error:
        raise _ProcessorFailedError from error
