"""Checkpoints of a record processor on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from consumer.errors import InvalidPositionError
from consumer.leasing import rules
from consumer.leasing.position import Position
from consumer.leasing.record import LeaseRecord
from consumer.leasing.record_processor.core.delivery import to_write
from consumer.leasing.record_processor.core.place import position_at
from consumer.leasing.record_processor.kinesis_numbers import check_number
from consumer.leasing.record_processor.processor import Place
from consumer.leasing.record_processor.shard_progress import ShardProgress

Change = Callable[[LeaseRecord], LeaseRecord]
"""A rule of `consumer.leasing.rules`, applied to its other arguments."""


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
        """Commit. See `consumer.leasing.record_processor.processor` for what each method raises."""
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
