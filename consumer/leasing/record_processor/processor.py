"""The contract of a record processor: five calls, one at a time, in the order of the shard.

    initialize -> process_records* -> shard_ended
                                    | lease_lost
                                    | shutdown_requested -> lease_lost

Either all of a processor's methods are coroutines, or none is; those run on a thread and may block.

Source: awslabs/amazon-kinesis-client processor.ShardRecordProcessor (the calls and their order).
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from consumer.leasing.position import Position
from consumer.leasing.record_processor.records import (
    InitializeInput,
    LeaseLostInput,
    ProcessorRecord,
    ProcessRecordsInput,
    ShardEndedInput,
    ShutdownRequestedInput,
)

Place: TypeAlias = Position | ProcessorRecord | str
"""Where to checkpoint: a position, a record (that and all before it), or a sequence number."""


class PreparedCheckpointer(Protocol):
    """A checkpoint that was announced, and is to be committed when its side effects are done."""

    @property
    def pending(self) -> Position:
        """What it commits; `SHARD_END` if that is the last record of an ended shard."""
        ...

    def checkpoint(self) -> None:
        """Commit it, within the same bounds and with the same errors as a checkpoint that was not announced."""
        ...


class RecordProcessorCheckpointer(Protocol):
    """How a record processor says how far it has come.

    Every method raises `ShutdownError` once the lease is lost: stop, another processor may run. `InvalidPositionError`:
    nothing was changed. `ThrottlingError` and `DependencyError`: nothing is known to have changed; the same call may
    be made again.
    """

    def checkpoint(self, at: Place | None = None, sub_sequence_number: int | None = None) -> None:
        """Commit: a successor goes on after it. Nothing is written if that is committed already.

        Args:
            at: Not behind the last commit, and not ahead of what was delivered; None: all that was delivered.
            sub_sequence_number: With a sequence number: the index of a record within its aggregate, from 0.
        """
        ...

    def prepare_checkpoint(
        self,
        at: Place | None = None,
        sub_sequence_number: int | None = None,
        *,
        application_state: bytes | None = None,
    ) -> PreparedCheckpointer:
        """Announce a checkpoint, in place of any announced before; a successor sees it, and the note with it.

        Args:
            at: As with `checkpoint`.
            sub_sequence_number: As with `checkpoint`.
            application_state: A note to a successor, which `initialize` gives it.
        """
        ...


class AsyncPreparedCheckpointer(Protocol):
    """See `PreparedCheckpointer`."""

    @property
    def pending(self) -> Position:
        """See `PreparedCheckpointer.pending`."""
        ...

    async def checkpoint(self) -> None:
        """See `PreparedCheckpointer.checkpoint`."""
        ...


class AsyncRecordProcessorCheckpointer(Protocol):
    """See `RecordProcessorCheckpointer`."""

    async def checkpoint(
        self, at: Place | None = None, sub_sequence_number: int | None = None
    ) -> None:
        """See `RecordProcessorCheckpointer.checkpoint`."""
        ...

    async def prepare_checkpoint(
        self,
        at: Place | None = None,
        sub_sequence_number: int | None = None,
        *,
        application_state: bytes | None = None,
    ) -> AsyncPreparedCheckpointer:
        """See `RecordProcessorCheckpointer.prepare_checkpoint`."""
        ...


class RecordProcessor(Protocol):
    """What a user writes; its calls may block. What a call raises ends the assignment: its records come again."""

    def initialize(self, initialize_input: InitializeInput, /) -> None:
        """Begin with a shard."""
        ...

    def process_records(
        self, process_records_input: ProcessRecordsInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Process some records; none comes twice in an assignment."""
        ...

    def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Stop, and let go of what belongs to the shard."""
        ...

    def shard_ended(
        self, shard_ended_input: ShardEndedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Finish the shard, and checkpoint: that lets its children begin."""
        ...

    def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Checkpoint what is done, if it is worth it."""
        ...


class AsyncRecordProcessor(Protocol):
    """A `RecordProcessor` whose calls are coroutines."""

    async def initialize(self, initialize_input: InitializeInput, /) -> None:
        """See `RecordProcessor.initialize`."""
        ...

    async def process_records(
        self, process_records_input: ProcessRecordsInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """See `RecordProcessor.process_records`."""
        ...

    async def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """See `RecordProcessor.lease_lost`."""
        ...

    async def shard_ended(
        self, shard_ended_input: ShardEndedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """See `RecordProcessor.shard_ended`."""
        ...

    async def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[AsyncRecordProcessorCheckpointer], /
    ) -> None:
        """See `RecordProcessor.shutdown_requested`."""
        ...
