"""What a record processor is given: records, and with each call what it may need.

Attributes have the names of the Kinesis Client Library's Python processors, so that those need no change.

Source: awslabs/amazon-kinesis-client-python kcl and messages (names), amazon-kinesis-client lifecycle.events (pending
checkpoints).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from consumer.leasing.position import Position

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
