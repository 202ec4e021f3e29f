"""Which positions a record processor may checkpoint: never behind what it committed, never ahead of what it was given.

    committed  <=  what may be checkpointed  <=  delivered

Equal to `committed` is allowed and does nothing. The last record of a shard and its end are one: whoever checkpoints
that record, once the end is reached, checkpoints `SHARD_END`. The names of places to start are never progress: they
may be repeated, which does nothing, and not committed in place of each other, which would skip records.

Source: awslabs/amazon-kinesis-client checkpoint.ShardRecordProcessorCheckpointer (bounds, end of a shard). Theirs
takes `LATEST` after `TRIM_HORIZON`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from consumer.errors import InvalidPositionError
from consumer.leasing.position import SHARD_END, Position


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
