"""How far one assignment of a shard has come, between the worker that delivers and the processor that checkpoints.

Each of the two has fields of its own, so that a processor may checkpoint on a thread of its own while the worker
delivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from broadsheet.consumer.errors import InvalidPositionError
from broadsheet.consumer.leasing.position import SHARD_END, Position
from broadsheet.consumer.leasing.record_processor.processor import ProcessorRecord

RECENT_RECORDS: Final = 10_000
"""Of a shard: those of a batch, and some more; 1 MB."""


# Which positions a record processor may checkpoint: never behind what it committed, never ahead of
# what it was given.
#
#     committed  <=  what may be checkpointed  <=  delivered
#
# Equal to `committed` is allowed and does nothing. The last record of a shard and its end are one:
# whoever checkpoints that record, once the end is reached, checkpoints `SHARD_END`. The names of
# places to start are never progress: they may be repeated, which does nothing, and not committed in
# place of each other, which would skip records.
#
# Source: awslabs/amazon-kinesis-client checkpoint.ShardRecordProcessorCheckpointer (bounds, end of
# a shard). Theirs takes `LATEST` after `TRIM_HORIZON`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What was delivered of a shard, and committed, in one assignment."""

    committed: Position | None
    """A successor goes on after it. None: nothing is stored, not even where to start."""
    delivered: Position | None
    """The greatest that the processor was given; `SHARD_END` once there is no more."""
    end: Position | None = None
    """What was delivered last when the end was reached."""


def at_start(stored: Position | None) -> Bounds:
    """Return the bounds of a new assignment."""
    return Bounds(committed=stored, delivered=stored)


def is_new(bounds: Bounds, position: Position) -> bool:
    """Tell whether a record is to be delivered: reading begins anew at the first record of an aggregate."""
    return bounds.delivered is None or bounds.delivered < position


def deliver(bounds: Bounds, position: Position) -> Bounds:
    """Return the bounds once a record is handed to the processor."""
    return replace(bounds, delivered=position) if is_new(bounds, position) else bounds


def reach_end(bounds: Bounds) -> Bounds:
    """Return the bounds once everything of the shard was delivered. Idempotent."""
    if bounds.delivered is not None and bounds.delivered.is_end:
        return bounds
    return replace(bounds, delivered=Position(SHARD_END), end=bounds.delivered)


def to_write(bounds: Bounds, at: Position | None) -> Position | None:
    """Return what a checkpoint has to write; None if that is there already.

    Args:
        bounds: As they are now.
        at: What the processor asks for; None: all that it was given.

    Raises:
        InvalidPositionError: it lies outside what may be checkpointed.
    """
    if at is None:
        return None if _is_same(bounds.delivered, bounds.committed) else bounds.delivered
    _check(bounds, at)
    if _is_same(at, bounds.committed):
        return None
    return Position(SHARD_END) if _is_same(at, bounds.end) else at


def commit(bounds: Bounds, written: Position) -> Bounds:
    """Return the bounds once a checkpoint is stored."""
    return replace(bounds, committed=written)


def _check(bounds: Bounds, at: Position) -> None:
    committed, delivered = bounds.committed, bounds.delivered
    if _is_same(at, committed):
        return
    is_progress = not at.is_name or at.is_end
    is_behind = committed is not None and at < committed
    is_ahead = delivered is None or delivered < at
    if is_progress and not is_behind and not is_ahead:
        return
    raise InvalidPositionError(
        f"checkpoint: expected a position from {_text(committed)} to {_text(delivered)},"
        f" which is what was delivered, got {_text(at)}"
    )


def _is_same(one: Position | None, other: Position | None) -> bool:
    """Tell whether two positions are the same place: a broker's offset may be known of one of them only."""
    if one is None or other is None:
        return one is other
    return (one.seq, one.sub) == (other.seq, other.sub)


def _text(position: Position | None) -> str:
    if position is None:
        return "nothing"
    return f"{position.seq}/{position.sub}" if position.sub else position.seq


class ShardProgress:
    """The bounds within which a processor may checkpoint."""

    def __init__(self, stored: Position | None) -> None:
        """Begin an assignment.

        Args:
            stored: The lease's checkpoint.
        """
        self._delivered = at_start(stored)
        self._committed = stored
        self._recent: deque[str] = deque(maxlen=RECENT_RECORDS)
        """Sequence numbers of what was delivered last."""

    @property
    def bounds(self) -> Bounds:
        """What may be checkpointed now."""
        delivered = self._delivered
        return Bounds(committed=self._committed, delivered=delivered.delivered, end=delivered.end)

    @property
    def is_ended(self) -> bool:
        """Whether the end of the shard is committed."""
        return self._committed is not None and self._committed.is_end

    def deliver(self, records: Iterable[ProcessorRecord]) -> tuple[ProcessorRecord, ...]:
        """Return the records that were not delivered yet, which counts as their delivery."""
        new = []
        for record in records:
            if is_new(self._delivered, record.position):
                self._delivered = deliver(self._delivered, record.position)
                new.append(record)
                self._recent.append(record.position.seq)
        return tuple(new)

    def was_delivered(self, position: Position) -> bool:
        """Return whether a position is that of one of the last records, or a name, which is of any shard."""
        return position.is_name or position.seq in self._recent

    def reach_end(self) -> None:
        """Nothing more will be delivered. Idempotent."""
        self._delivered = reach_end(self._delivered)

    def commit(self, written: Position) -> None:
        """A checkpoint is stored."""
        self._committed = written
