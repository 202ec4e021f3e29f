"""Record processors that do what a test says, on the event loop or on threads, and tell what was asked of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from broadsheet.leases.record_processor.processor import (
    AsyncRecordProcessorCheckpointer,
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    RecordProcessorCheckpointer,
    ShardEndedInput,
    ShutdownRequestedInput,
)


@dataclass
class Script:
    """What all processors of a worker do, and did."""

    calls: list[str] = field(default_factory=list)
    """Calls by name and shard, in order."""
    data: list[bytes] = field(default_factory=list)
    initialized: list[InitializeInput] = field(default_factory=list)
    on_records: Callable[[], None] = lambda: None
    """Called with each batch; may raise."""
    takes_seconds: float = 0.0
    """How long a batch takes."""
    takes_to_stop_seconds: float = 0.0
    """How long a requested shutdown takes."""
    checkpoints: bool = True
    """Whether batches are checkpointed."""
    ends_ignored: int = 0
    """How many calls of `shard_ended` do not checkpoint."""
    threads: set[str] = field(default_factory=set)


class ScriptedProcessor:
    """Implements `AsyncRecordProcessor`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._shard = ""

    async def initialize(self, initialize_input: InitializeInput, /) -> None:
        """Note it."""
        self._shard = initialize_input.shard_id
        self._script.initialized.append(initialize_input)
        self._script.calls.append(f"initialize {self._shard}")

    async def process_records(
        self, process_records_input: ProcessRecordsInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Take a while, and checkpoint."""
        self._script.calls.append(f"process {self._shard}")
        self._script.on_records()
        self._script.data += [record.binary_data for record in process_records_input.records]
        await asyncio.sleep(self._script.takes_seconds)
        if self._script.checkpoints:
            await process_records_input.checkpointer.checkpoint()

    async def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Note it."""
        self._script.calls.append(f"lost {self._shard}")

    async def shard_ended(
        self, shard_ended_input: ShardEndedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Checkpoint, at some time."""
        self._script.calls.append(f"ended {self._shard}")
        if self._script.ends_ignored:
            self._script.ends_ignored -= 1
        else:
            await shard_ended_input.checkpointer.checkpoint()

    async def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """Take a while, and checkpoint."""
        self._script.calls.append(f"requested {self._shard}")
        await asyncio.sleep(self._script.takes_to_stop_seconds)
        await shutdown_requested_input.checkpointer.checkpoint()


class BlockingProcessor:
    """Implements `RecordProcessor`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._shard = ""

    def initialize(self, initialize_input: InitializeInput, /) -> None:
        """Note it."""
        self._shard = initialize_input.shard_id
        self._script.initialized.append(initialize_input)

    def process_records(
        self, process_records_input: ProcessRecordsInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Prepare, and commit that."""
        self._script.threads.add(threading.current_thread().name)
        self._script.data += [record.binary_data for record in process_records_input.records]
        process_records_input.checkpointer.prepare_checkpoint().checkpoint()

    def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Note it."""
        self._script.calls.append(f"lost {self._shard}")

    def shard_ended(
        self, shard_ended_input: ShardEndedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Checkpoint."""
        self._script.calls.append(f"ended {self._shard}")
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Checkpoint."""
        self._script.calls.append(f"requested {self._shard}")
        shutdown_requested_input.checkpointer.checkpoint()
