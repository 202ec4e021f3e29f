"""The contract of a record processor: five calls, one at a time, in the order of the shard.

    initialize -> process_records* -> shard_ended
                                    | lease_lost
                                    | shutdown_requested -> lease_lost

Either all of a processor's methods are coroutines, or none is; those run on a thread and may block. Arguments of the
calls have the attributes of the Kinesis Client Library for Python, so that its processors need no change.

Source: awslabs/amazon-kinesis-client processor.ShardRecordProcessor (the calls and their order), lifecycle.events
(pending checkpoints); awslabs/amazon-kinesis-client-python kcl and messages (names).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeAlias, TypeVar

from broadsheet.leases.position import Position

CheckpointerT_co = TypeVar("CheckpointerT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorRecord:
    """One record of a shard; an aggregate is delivered as its single records."""

    position: Position
    """Its sequence number, and its index within its aggregate."""
    binary_data: bytes
    """The content that its producer put into the stream."""
    partition_key: str = ""
    """The key by which its shard was chosen."""
    explicit_hash_key: str | None = None
    """The hash key that overrides the partition key, decimal digits."""
    approximate_arrival_timestamp: datetime | None = None
    """When the stream received it, aware; None: unknown."""

    @property
    def sequence_number(self) -> str:
        """The sequence number."""
        return self.position.seq

    @property
    def sub_sequence_number(self) -> int:
        """The index within its aggregate, from 0."""
        return self.position.sub


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeInput:
    """Argument of `initialize`: the shard, and the state that its former processors left."""

    shard_id: str
    position: Position | None
    """The committed checkpoint: records after it follow."""
    pending_checkpoint: Position | None = None
    """The prepared position, not committed; records up to it may have had their side effects already."""
    pending_checkpoint_state: bytes | None = None
    """The note that was stored with it."""
    epoch: int = 0
    """Fencing token that grows with each assignment of the shard: sinks should refuse a smaller one than they have
    seen.
    """

    @property
    def sequence_number(self) -> str | None:
        """The committed checkpoint's number, or the name of the starting position."""
        return None if self.position is None else self.position.seq

    @property
    def sub_sequence_number(self) -> int | None:
        """The committed checkpoint's index within its aggregate."""
        return None if self.position is None else self.position.sub


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecordsInput(Generic[CheckpointerT_co]):
    """A batch of records, in the order of their positions."""

    records: tuple[ProcessorRecord, ...]
    checkpointer: CheckpointerT_co
    millis_behind_latest: int | None = None
    """Time by which the end of the batch is behind the end of the shard; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLostInput:
    """Argument of `lease_lost`. It has no checkpointer, because another worker may process the shard by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEndedInput(Generic[CheckpointerT_co]):
    """Argument of `shard_ended`: all records were delivered. The processor must checkpoint; the call is repeated until
    it does.
    """

    checkpointer: CheckpointerT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequestedInput(Generic[CheckpointerT_co]):
    """Argument of `shutdown_requested`: the last chance to checkpoint before the worker releases the shard;
    `lease_lost` follows.
    """

    checkpointer: CheckpointerT_co


Place: TypeAlias = Position | ProcessorRecord | str
"""Position to checkpoint at: a position, a record (it and all before it), or a sequence number."""


class PreparedCheckpointer(Protocol):
    """An announced checkpoint, to be committed once its side effects are done."""

    @property
    def pending(self) -> Position:
        """The position that it commits; `SHARD_END` if that is the last record of an ended shard."""
        ...

    def checkpoint(self) -> None:
        """Commit it; the bounds and errors are those of `RecordProcessorCheckpointer.checkpoint`."""
        ...


class RecordProcessorCheckpointer(Protocol):
    """Commits the progress of a record processor.

    Every method raises `ShutdownError` once the lease is lost: stop, another processor may run. `InvalidPositionError`:
    nothing was changed. `ThrottlingError` and `DependencyError`: nothing is known to have changed; the same call may
    be made again.
    """

    def checkpoint(self, at: Place | None = None, sub_sequence_number: int | None = None) -> None:
        """Commit a position: a successor continues after it. Nothing is written if it is committed already.

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
        """Announce a checkpoint, replacing an earlier announcement; a successor sees it together with the note.

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
    """A user's processor, whose calls may block. An error in a call ends the assignment, and its records are delivered
    again.
    """

    def initialize(self, initialize_input: InitializeInput, /) -> None:
        """Begin a shard."""
        ...

    def process_records(
        self, process_records_input: ProcessRecordsInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Process a batch of records; no record comes twice in an assignment."""
        ...

    def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Stop, and free the resources of the shard."""
        ...

    def shard_ended(
        self, shard_ended_input: ShardEndedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Finish the shard, and checkpoint; its children can begin then."""
        ...

    def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Checkpoint the finished records, if that is worthwhile."""
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
