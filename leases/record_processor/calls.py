"""Calls to a record processor from an event loop, whether the processor blocks or not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Protocol, TypeVar, cast

from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.record_processor.checkpointer import (
    Change,
    LeaseCheckpointer,
    SyncLeaseCheckpointer,
)
from broadsheet.leases.record_processor.processor import (
    AsyncRecordProcessor,
    InitializeInput,
    LeaseLostInput,
    ProcessorRecord,
    ProcessRecordsInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from broadsheet.leases.record_processor.shard_progress import ShardProgress

AnyProcessor = RecordProcessor | AsyncRecordProcessor
InputT = TypeVar("InputT")


class ProcessorCalls(Protocol):
    """The five calls. Each returns when the processor returns, and raises its errors."""

    async def initialize(self, initialize_input: InitializeInput) -> None:
        """Begin a shard."""
        ...

    async def process_records(
        self, records: tuple[ProcessorRecord, ...], millis_behind_latest: int | None
    ) -> None:
        """Process a batch of records."""
        ...

    async def lease_lost(self) -> None:
        """Stop: another worker may process the shard."""
        ...

    async def shard_ended(self) -> None:
        """Finish the shard."""
        ...

    async def shutdown_requested(self) -> None:
        """Checkpoint for the last time."""
        ...


def calls_of(
    processor: AnyProcessor,
    progress: ShardProgress,
    write: Callable[[Change], Coroutine[object, object, LeaseRecord]],
    threads: Executor,
) -> ProcessorCalls:
    """Wrap a processor in the calls of one assignment.

    Args:
        processor: Its methods are coroutines, or block.
        progress: Of the assignment.
        write: `HeldLease.update` of the assignment.
        threads: Where blocking methods run; not the event loop's own, which their checkpoints may need.
    """
    if inspect.iscoroutinefunction(processor.process_records):
        # The protocols differ only in whether methods are coroutines, which types cannot tell at run time.
        not_blocking = cast("AsyncRecordProcessor", processor)
        return _AsyncCalls(not_blocking, LeaseCheckpointer(progress, write))
    blocking = cast("RecordProcessor", processor)
    loop = asyncio.get_running_loop()

    def write_on_loop(change: Change) -> LeaseRecord:
        return asyncio.run_coroutine_threadsafe(write(change), loop).result()

    return _ThreadCalls(blocking, SyncLeaseCheckpointer(progress, write_on_loop), threads)


class _AsyncCalls:
    """Awaits each method."""

    def __init__(self, processor: AsyncRecordProcessor, checkpointer: LeaseCheckpointer) -> None:
        self._processor = processor
        self._checkpointer = checkpointer

    async def initialize(self, initialize_input: InitializeInput) -> None:
        await self._processor.initialize(initialize_input)

    async def process_records(
        self, records: tuple[ProcessorRecord, ...], millis_behind_latest: int | None
    ) -> None:
        await self._processor.process_records(
            ProcessRecordsInput(
                records=records,
                checkpointer=self._checkpointer,
                millis_behind_latest=millis_behind_latest,
            )
        )

    async def lease_lost(self) -> None:
        await self._processor.lease_lost(LeaseLostInput())

    async def shard_ended(self) -> None:
        await self._processor.shard_ended(ShardEndedInput(checkpointer=self._checkpointer))

    async def shutdown_requested(self) -> None:
        await self._processor.shutdown_requested(
            ShutdownRequestedInput(checkpointer=self._checkpointer)
        )


class _ThreadCalls:
    """Runs each method on a thread."""

    def __init__(
        self, processor: RecordProcessor, checkpointer: SyncLeaseCheckpointer, threads: Executor
    ) -> None:
        self._processor = processor
        self._checkpointer = checkpointer
        self._threads = threads

    async def initialize(self, initialize_input: InitializeInput) -> None:
        await self._run(self._processor.initialize, initialize_input)

    async def process_records(
        self, records: tuple[ProcessorRecord, ...], millis_behind_latest: int | None
    ) -> None:
        await self._run(
            self._processor.process_records,
            ProcessRecordsInput(
                records=records,
                checkpointer=self._checkpointer,
                millis_behind_latest=millis_behind_latest,
            ),
        )

    async def lease_lost(self) -> None:
        await self._run(self._processor.lease_lost, LeaseLostInput())

    async def shard_ended(self) -> None:
        await self._run(
            self._processor.shard_ended, ShardEndedInput(checkpointer=self._checkpointer)
        )

    async def shutdown_requested(self) -> None:
        await self._run(
            self._processor.shutdown_requested,
            ShutdownRequestedInput(checkpointer=self._checkpointer),
        )

    async def _run(self, method: Callable[[InputT], None], given: InputT) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, method, given)
