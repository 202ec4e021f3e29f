"""Checkpoints of a record processor on an event loop."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from broadsheet.consumer.errors import InvalidPositionError
from broadsheet.consumer.leasing import rules
from broadsheet.consumer.leasing.position import Position
from broadsheet.consumer.leasing.record import LeaseRecord
from broadsheet.consumer.leasing.record_processor.processor import Place, ProcessorRecord
from broadsheet.consumer.leasing.record_processor.shard_progress import ShardProgress, to_write

Change = Callable[[LeaseRecord], LeaseRecord]
"""A rule of `broadsheet.consumer.leasing.rules`, applied to its other arguments."""

# What a sequence number of Kinesis says of itself: the shard that it was given in.
#
# A checkpoint of a Kinesis shard at a number of another shard is refused (`check_number`), because
# the next holder would begin at an arbitrary record. A number that does not say is as good as any
# other; other systems' numbers do not say.
#
# Source: awslabs/amazon-kinesis-client checkpoint.SequenceNumberValidator (which bits mean what).
_BITS: Final = 186
"""The length of every number of the one version that is known."""
_VERSION: Final = 2
_VERSION_FROM_BIT: Final = 184
_SHARD_FROM_BIT: Final = 4
_SHARD_BITS: Final = 32
_SHARD_KEY: Final = re.compile(r"(?:.*:)?(shardId-\d{12})", re.IGNORECASE)
"""Key of a lease on a Kinesis shard; before the id of the shard may be that of its stream."""


# Reads what a processor gives as a place to checkpoint.
def position_at(at: Place | None, sub_sequence_number: int | None) -> Position | None:
    """Return the position that was meant; None: all that was delivered.

    Raises:
        InvalidPositionError: it is none, or has an index where none belongs.
    """
    if isinstance(at, str):
        return Position(at, sub_sequence_number or 0)
    if sub_sequence_number is not None:
        raise InvalidPositionError(
            f"sub_sequence_number: expected a sequence number with it, got {at!r:.80}"
        )
    if at is None:
        return None
    if isinstance(at, ProcessorRecord):
        return at.position
    if isinstance(at, Position):
        return at
    raise InvalidPositionError(
        f"checkpoint: expected a position, a record or a sequence number, got {at!r:.80}"
    )


def shard_of_number(number: str) -> str | None:
    """Return the id of the shard that a sequence number was given in; None: it does not say.

    Args:
        number: The digits.

    Raises:
        InvalidPositionError: it is neither digits nor one of the four names, which do not say.
    """
    position = Position(number)
    if position.is_name:
        return None
    bits = int(position.seq)
    if bits.bit_length() != _BITS or bits >> _VERSION_FROM_BIT != _VERSION:
        return None
    shard = bits >> _SHARD_FROM_BIT & ((1 << _SHARD_BITS) - 1)
    return f"shardId-{shard:012d}"


def is_number_of_shard(number: str, shard_id: str) -> bool | None:
    """Tell whether a sequence number was given in a shard, whose id is in any case of letters; None: it does not say.

    Raises:
        InvalidPositionError: as `shard_of_number`.
    """
    shard = shard_of_number(number)
    return None if shard is None else shard.lower() == shard_id.lower()


def check_number(key: str, position: Position) -> None:
    """Refuse a sequence number that was given in another shard than that of a lease.

    Not for the number of a record that the shard itself delivered: emulators of Kinesis give numbers whose bits mean
    nothing.

    Args:
        key: Of the lease. One that names no Kinesis shard takes every number.
        position: What is to be checkpointed.

    Raises:
        InvalidPositionError: the number says another shard.
    """
    shard = _SHARD_KEY.fullmatch(key)
    if shard is not None and is_number_of_shard(position.seq, shard[1]) is False:
        raise InvalidPositionError(
            f"checkpoint of lease {key}: expected a sequence number of that shard, got {position.seq},"
            f" which is one of {shard_of_number(position.seq)}"
        )


class LeaseCheckpointer:
    """Implements `AsyncRecordProcessorCheckpointer` for one assignment of a shard."""

    def __init__(
        self, progress: ShardProgress, write: Callable[[Change], Awaitable[object]]
    ) -> None:
        """Checkpoint what is delivered.

        Args:
            progress: The worker delivers to it.
            write: Makes a change to the lease's record, and raises `ShutdownError` if the lease is not held.
        """
        self._progress = progress
        self._write = write
        self._lock = asyncio.Lock()

    async def checkpoint(
        self, at: Place | None = None, sub_sequence_number: int | None = None
    ) -> None:
        """Commit. See `broadsheet.consumer.leasing.record_processor.processor` for what each method raises."""
        asked = position_at(at, sub_sequence_number)
        async with self._lock:
            target = to_write(self._progress.bounds, asked)
            if target is None:
                return
            await self._write(self._checked(target, lambda record: rules.commit(record, target)))
            self._progress.commit(target)

    async def prepare_checkpoint(
        self,
        at: Place | None = None,
        sub_sequence_number: int | None = None,
        *,
        application_state: bytes | None = None,
    ) -> LeasePreparedCheckpointer:
        """Announce a checkpoint; one that is committed already is not written and does nothing."""
        asked = position_at(at, sub_sequence_number)
        async with self._lock:
            target = to_write(self._progress.bounds, asked)
            if target is None:
                return LeasePreparedCheckpointer(None, committed_of(self._progress, asked))
            await self._write(
                self._checked(
                    target, lambda record: rules.prepare(record, target, application_state)
                )
            )
            return LeasePreparedCheckpointer(self, target)

    def _checked(self, target: Position, change: Change) -> Change:
        """Return a change that refuses the sequence number of another shard, unless the shard delivered it."""

        def checked(record: LeaseRecord) -> LeaseRecord:
            if not self._progress.was_delivered(target):
                check_number(record.key, target)
            return change(record)

        return checked


class LeasePreparedCheckpointer:
    """Implements `AsyncPreparedCheckpointer`; it ends with its process, and no other can make it again."""

    def __init__(self, checkpointer: LeaseCheckpointer | None, pending: Position) -> None:
        """Remember what was announced.

        Args:
            checkpointer: Commits it; None if there is nothing to commit.
            pending: What.
        """
        self._checkpointer = checkpointer
        self._pending = pending

    @property
    def pending(self) -> Position:
        """What it commits."""
        return self._pending

    async def checkpoint(self) -> None:
        """Commit it."""
        if self._checkpointer is not None:
            await self._checkpointer.checkpoint(self._pending)


def committed_of(progress: ShardProgress, asked: Position | None) -> Position:
    """Return what a prepared checkpoint stands for that has nothing to commit.

    Raises:
        InvalidPositionError: nothing was ever committed, nor delivered.
    """
    position = asked or progress.bounds.committed
    if position is None:
        raise InvalidPositionError("prepare_checkpoint: expected a delivered record, got none yet")
    return position


# Checkpoints of a record processor without an event loop: it runs on threads, and each call blocks.


class SyncLeaseCheckpointer:
    """Implements `RecordProcessorCheckpointer` for one assignment of a shard. Threads may share it."""

    def __init__(self, progress: ShardProgress, write: Callable[[Change], object]) -> None:
        """Checkpoint what is delivered.

        Args:
            progress: The worker delivers to it.
            write: Makes a change to the lease's record, and raises `ShutdownError` if the lease is not held.
        """
        self._progress = progress
        self._write = write
        self._lock = threading.Lock()

    def checkpoint(self, at: Place | None = None, sub_sequence_number: int | None = None) -> None:
        """Commit. See `broadsheet.consumer.leasing.record_processor.processor` for what each method raises."""
        asked = position_at(at, sub_sequence_number)
        with self._lock:
            target = to_write(self._progress.bounds, asked)
            if target is None:
                return
            self._write(lambda record: rules.commit(record, target))
            self._progress.commit(target)

    def prepare_checkpoint(
        self,
        at: Place | None = None,
        sub_sequence_number: int | None = None,
        *,
        application_state: bytes | None = None,
    ) -> SyncPreparedCheckpointer:
        """Announce a checkpoint; one that is committed already is not written and does nothing."""
        asked = position_at(at, sub_sequence_number)
        with self._lock:
            target = to_write(self._progress.bounds, asked)
            if target is None:
                return SyncPreparedCheckpointer(None, committed_of(self._progress, asked))
            self._write(lambda record: rules.prepare(record, target, application_state))
            return SyncPreparedCheckpointer(self, target)


class SyncPreparedCheckpointer:
    """Implements `PreparedCheckpointer`."""

    def __init__(self, checkpointer: SyncLeaseCheckpointer | None, pending: Position) -> None:
        """Remember what was announced.

        Args:
            checkpointer: Commits it; None if there is nothing to commit.
            pending: What.
        """
        self._checkpointer = checkpointer
        self._pending = pending

    @property
    def pending(self) -> Position:
        """What it commits."""
        return self._pending

    def checkpoint(self) -> None:
        """Commit it."""
        if self._checkpointer is not None:
            self._checkpointer.checkpoint(self._pending)
