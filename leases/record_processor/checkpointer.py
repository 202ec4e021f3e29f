"""Checkpointers of record processors, for coroutines and for blocking code."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from broadsheet.leases import rules
from broadsheet.leases.errors import InvalidPositionError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.record_processor.processor import Place, ProcessorRecord
from broadsheet.leases.record_processor.shard_progress import ShardProgress, to_write

Change = Callable[[LeaseRecord], LeaseRecord]
"""A rule of `broadsheet.leases.rules`, applied to its other arguments."""

_BITS: Final = 186
"""The length of every number of the one version that is known."""
_VERSION: Final = 2
_VERSION_FROM_BIT: Final = 184
_SHARD_FROM_BIT: Final = 4
_SHARD_BITS: Final = 32
_SHARD_KEY: Final = re.compile(r"(?:.*:)?(shardId-\d{12})", re.IGNORECASE)
"""Pattern of the key of a lease on a Kinesis shard; the stream's name may precede the shard's id."""


# Parsing of the position that a processor passes to `checkpoint`.
def position_at(at: Place | None, sub_sequence_number: int | None) -> Position | None:
    """Return the position that the arguments mean; None: everything delivered.

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
    """Return the id of the shard that assigned a sequence number; None: it names none.

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
    """Tell whether a shard assigned a sequence number, ignoring the case of its id; None: it names none.

    Raises:
        InvalidPositionError: as `shard_of_number`.
    """
    shard = shard_of_number(number)
    return None if shard is None else shard.lower() == shard_id.lower()


def check_number(key: str, position: Position) -> None:
    """Refuse a sequence number that another shard than the lease's assigned.

    Kinesis sequence numbers name the shard that assigned them. At another shard's number the next holder would begin at
    an arbitrary record. Numbers that name no shard, such as other systems', are accepted. Do not check numbers of
    records that the shard itself delivered, because Kinesis emulators assign numbers whose bits mean nothing.

    Source: awslabs/amazon-kinesis-client checkpoint.SequenceNumberValidator (which bits mean what).

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


# The changes that both checkpointers write. The committed number is checked as the record is written, because only the
# record names the lease's shard.


def _commit(progress: ShardProgress, target: Position) -> Change:
    return _of_own_shard(progress, target, lambda record: rules.commit(record, target))


def _announce(progress: ShardProgress, target: Position, application_state: bytes | None) -> Change:
    return _of_own_shard(
        progress, target, lambda record: rules.prepare(record, target, application_state)
    )


def _of_own_shard(progress: ShardProgress, target: Position, change: Change) -> Change:
    """Wrap a change so that it refuses another shard's sequence number, unless the shard delivered it."""

    def checked(record: LeaseRecord) -> LeaseRecord:
        if not progress.was_delivered(target):
            check_number(record.key, target)
        return change(record)

    return checked


class LeaseCheckpointer:
    """Implements `AsyncRecordProcessorCheckpointer` for one assignment of a shard."""

    def __init__(
        self, progress: ShardProgress, write: Callable[[Change], Awaitable[object]]
    ) -> None:
        """Create the checkpointer of one assignment.

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
        """Commit. See `broadsheet.leases.record_processor.processor` for what each method raises."""
        asked = position_at(at, sub_sequence_number)
        async with self._lock:
            target = to_write(self._progress.bounds, asked)
            if target is None:
                return
            await self._write(_commit(self._progress, target))
            self._progress.commit(target)

    async def prepare_checkpoint(
        self,
        at: Place | None = None,
        sub_sequence_number: int | None = None,
        *,
        application_state: bytes | None = None,
    ) -> LeasePreparedCheckpointer:
        """Announce a checkpoint; does nothing if it is committed already."""
        asked = position_at(at, sub_sequence_number)
        async with self._lock:
            target = to_write(self._progress.bounds, asked)
            if target is None:
                return LeasePreparedCheckpointer(None, committed_of(self._progress, asked))
            await self._write(_announce(self._progress, target, application_state))
            return LeasePreparedCheckpointer(self, target)


class LeasePreparedCheckpointer:
    """Implements `AsyncPreparedCheckpointer`. It lives in memory only, so it is lost with its process."""

    def __init__(self, checkpointer: LeaseCheckpointer | None, pending: Position) -> None:
        """Hold an announced checkpoint.

        Args:
            checkpointer: Commits it; None if there is nothing to commit.
            pending: What.
        """
        self._checkpointer = checkpointer
        self._pending = pending

    @property
    def pending(self) -> Position:
        """The position that it commits."""
        return self._pending

    async def checkpoint(self) -> None:
        """Commit it."""
        if self._checkpointer is not None:
            await self._checkpointer.checkpoint(self._pending)


def committed_of(progress: ShardProgress, asked: Position | None) -> Position:
    """Return the position of a prepared checkpoint that has nothing to commit.

    Raises:
        InvalidPositionError: nothing was ever committed, nor delivered.
    """
    position = asked or progress.bounds.committed
    if position is None:
        raise InvalidPositionError("prepare_checkpoint: expected a delivered record, got none yet")
    return position


# Blocking checkpointers, for processors that run on threads.


class SyncLeaseCheckpointer:
    """Implements `RecordProcessorCheckpointer` for one assignment of a shard. Threads may share it."""

    def __init__(self, progress: ShardProgress, write: Callable[[Change], object]) -> None:
        """Create the checkpointer of one assignment.

        Args:
            progress: The worker delivers to it.
            write: Makes a change to the lease's record, and raises `ShutdownError` if the lease is not held.
        """
        self._progress = progress
        self._write = write
        self._lock = threading.Lock()

    def checkpoint(self, at: Place | None = None, sub_sequence_number: int | None = None) -> None:
        """Commit. See `broadsheet.leases.record_processor.processor` for what each method raises."""
        asked = position_at(at, sub_sequence_number)
        with self._lock:
            target = to_write(self._progress.bounds, asked)
            if target is None:
                return
            self._write(_commit(self._progress, target))
            self._progress.commit(target)

    def prepare_checkpoint(
        self,
        at: Place | None = None,
        sub_sequence_number: int | None = None,
        *,
        application_state: bytes | None = None,
    ) -> SyncPreparedCheckpointer:
        """Announce a checkpoint; does nothing if it is committed already."""
        asked = position_at(at, sub_sequence_number)
        with self._lock:
            target = to_write(self._progress.bounds, asked)
            if target is None:
                return SyncPreparedCheckpointer(None, committed_of(self._progress, asked))
            self._write(_announce(self._progress, target, application_state))
            return SyncPreparedCheckpointer(self, target)


class SyncPreparedCheckpointer:
    """Implements `PreparedCheckpointer`."""

    def __init__(self, checkpointer: SyncLeaseCheckpointer | None, pending: Position) -> None:
        """Hold an announced checkpoint.

        Args:
            checkpointer: Commits it; None if there is nothing to commit.
            pending: What.
        """
        self._checkpointer = checkpointer
        self._pending = pending

    @property
    def pending(self) -> Position:
        """The position that it commits."""
        return self._pending

    def checkpoint(self) -> None:
        """Commit it."""
        if self._checkpointer is not None:
            self._checkpointer.checkpoint(self._pending)
