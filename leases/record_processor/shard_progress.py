"""Progress of one assignment of a shard, shared by the delivering worker and the checkpointing processor.

Each writes only its own fields, so a processor may checkpoint on another thread while the worker delivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from broadsheet.leases.errors import InvalidPositionError
from broadsheet.leases.position import SHARD_END, Position
from broadsheet.leases.record_processor.processor import ProcessorRecord

RECENT_RECORDS: Final = 10_000
"""Last delivered positions remembered for a shard: a batch's, and some more; 1 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of a checkpoint in one assignment: not behind the committed position, not ahead of the delivered one.

        committed  <=  what may be checkpointed  <=  delivered

    A position equal to `committed` is allowed and does nothing. The last record of a shard and its end are one: once
    the end is reached, a checkpoint at that record is a checkpoint at `SHARD_END`. The names of starting positions are
    never progress: one may be repeated, which does nothing, but not replaced by another, which would skip records.

    Source: awslabs/amazon-kinesis-client checkpoint.ShardRecordProcessorCheckpointer (bounds, end of a shard). Theirs
    takes `LATEST` after `TRIM_HORIZON`.
    """

    committed: Position | None
    """A successor continues after it. None: nothing is stored, not even a starting position."""
    delivered: Position | None
    """The greatest position delivered to the processor; `SHARD_END` after the last record."""
    end: Position | None = None
    """The last position delivered before the end."""


def at_start(stored: Position | None) -> Bounds:
    """Return the bounds of a new assignment."""
    return Bounds(committed=stored, delivered=stored)


def is_new(bounds: Bounds, position: Position) -> bool:
    """Tell whether a record is to be delivered: reading resumes at the first record of an aggregate."""
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
    """Return the position that a checkpoint must write; None if it is committed already.

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
    """Tell whether two positions are the same place; the broker's offset may be known for only one of them."""
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
        """The present bounds of a checkpoint."""
        delivered = self._delivered
        return Bounds(committed=self._committed, delivered=delivered.delivered, end=delivered.end)

    @property
    def is_ended(self) -> bool:
        """True once the end of the shard is committed."""
        return self._committed is not None and self._committed.is_end

    def deliver(self, records: Iterable[ProcessorRecord]) -> tuple[ProcessorRecord, ...]:
        """Return the records that were not delivered yet, and count them as delivered."""
        new = []
        for record in records:
            if is_new(self._delivered, record.position):
                self._delivered = deliver(self._delivered, record.position)
                new.append(record)
                self._recent.append(record.position.seq)
        return tuple(new)

    def was_delivered(self, position: Position) -> bool:
        """Return whether a position is one of the last delivered, or a name, which is valid for every shard."""
        return position.is_name or position.seq in self._recent

    def reach_end(self) -> None:
        """Record that nothing more will be delivered. Idempotent."""
        self._delivered = reach_end(self._delivered)

    def commit(self, written: Position) -> None:
        """Record that a checkpoint is stored."""
        self._committed = written
