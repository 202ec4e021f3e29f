"""Checkpoints of a record processor without an event loop: it runs on threads, and each call blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable

from consumer.leasing import rules
from consumer.leasing.position import Position
from consumer.leasing.record_processor.checkpointer import Change, committed_of
from consumer.leasing.record_processor.core.delivery import to_write
from consumer.leasing.record_processor.core.place import position_at
from consumer.leasing.record_processor.processor import Place
from consumer.leasing.record_processor.shard_progress import ShardProgress


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
        """Commit. See `consumer.leasing.record_processor.processor` for what each method raises."""
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
