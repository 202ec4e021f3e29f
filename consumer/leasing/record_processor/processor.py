"""The contract of a record processor: five calls, one at a time, in the order of the shard.

    initialize -> process_records* -> shard_ended
                                    | lease_lost
                                    | shutdown_requested -> lease_lost

Either all of a processor's methods are coroutines, or none is; those run on a thread and may block.

Source: awslabs/amazon-kinesis-client processor.ShardRecordProcessor (the calls and their order).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeAlias, TypeVar

from broadsheet.consumer.leasing.position import Position

# What a record processor is given: records, and with each call what it may need.
#
# Attributes have the names of the Kinesis Client Library's Python processors, so that those need no
# change.
#
# Source: awslabs/amazon-kinesis-client-python kcl and messages (names), amazon-kinesis-client
# lifecycle.events (pending checkpoints).

CheckpointerT_co = TypeVar("CheckpointerT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorRecord:
    """One record of a shard; of an aggregate, one of those in it."""

    position: Position
    """Its number, and its index within its aggregate."""
    binary_data: bytes
    """What was put into the stream."""
    partition_key: str = ""
    """What its shard was chosen by."""
    explicit_hash_key: str | None = None
    """What its shard was chosen by instead, decimal digits."""
    approximate_arrival_timestamp: datetime | None = None
    """When the stream took it, aware; None: it does not say."""

    @property
    def sequence_number(self) -> str:
        """The number."""
        return self.position.seq

    @property
    def sub_sequence_number(self) -> int:
        """The index within its aggregate, from 0."""
        return self.position.sub


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeInput:
    """The first call's: a shard, and what its processors before this one left."""

    shard_id: str
    position: Position | None
    """The committed checkpoint: records after it follow."""
    pending_checkpoint: Position | None = None
    """What was announced and not committed; of what lies up to it the side effects may be there already."""
    pending_checkpoint_state: bytes | None = None
    """The note that was left with it."""
    epoch: int = 0
    """Grows with each assignment of the shard: have sinks refuse a smaller one than they have seen."""

    @property
    def sequence_number(self) -> str | None:
        """The committed checkpoint's number, or the name of the place to start."""
        return None if self.position is None else self.position.seq

    @property
    def sub_sequence_number(self) -> int | None:
        """The committed checkpoint's index within its aggregate."""
        return None if self.position is None else self.position.sub


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecordsInput(Generic[CheckpointerT_co]):
    """Some records, in the order of their positions."""

    records: tuple[ProcessorRecord, ...]
    checkpointer: CheckpointerT_co
    millis_behind_latest: int | None = None
    """How old the end of the batch is, compared with the end of the shard; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLostInput:
    """Another worker may process the shard by now, so there is nothing to checkpoint with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEndedInput(Generic[CheckpointerT_co]):
    """All records were processed. The processor must checkpoint; it is called again until it does."""

    checkpointer: CheckpointerT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequestedInput(Generic[CheckpointerT_co]):
    """The worker stops, or gives the shard away. The last chance to checkpoint; `lease_lost` follows."""

    checkpointer: CheckpointerT_co


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
