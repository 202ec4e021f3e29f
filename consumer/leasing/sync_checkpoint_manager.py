"""The checkpoint manager for programs without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from consumer.leasing.checkpoint_manager import CheckpointManager
from consumer.leasing.core.position import Position
from consumer.leasing.core.record import Versioned
from consumer.leasing.store import RecordStore
from consumer.leasing.store_thread import StoreThread


class SyncCheckpointManager:
    """A `CheckpointManager` on a loop thread of its own; each method blocks until its answer, and raises the same."""

    def __init__(
        self,
        open_store: Callable[[], AbstractAsyncContextManager[RecordStore]],
        *,
        refuse_repeated: bool = False,
    ) -> None:
        """Open the store on the thread.

        Args:
            open_store: Called there once; e.g. `lambda: nullcontext(SqlRecordStore(engine))`.
            refuse_repeated: See `CheckpointManager`.
        """
        self._thread = StoreThread(open_store, name="checkpoint manager")
        self._manager = CheckpointManager(self._thread.store, refuse_repeated=refuse_repeated)

    def close(self) -> None:
        """Close the store, and end the thread. Idempotent."""
        self._thread.close()

    def checkpoint_store_exists(self) -> bool:
        """See `CheckpointManager.checkpoint_store_exists`."""
        return self._thread.call(self._manager.checkpoint_store_exists())

    def create_checkpoint_store_if_not_exists(self) -> None:
        """See `CheckpointManager.create_checkpoint_store_if_not_exists`."""
        self._thread.call(self._manager.create_checkpoint_store_if_not_exists())

    def delete_checkpoint_store(self) -> None:
        """See `CheckpointManager.delete_checkpoint_store`."""
        self._thread.call(self._manager.delete_checkpoint_store())

    def create_all_checkpoints_if_not_exists(self, partition_ids: Iterable[str]) -> None:
        """See `CheckpointManager.create_all_checkpoints_if_not_exists`."""
        self._thread.call(self._manager.create_all_checkpoints_if_not_exists(partition_ids))

    def get_checkpoint(self, partition_id: str) -> Position | None:
        """See `CheckpointManager.get_checkpoint`."""
        return self._thread.call(self._manager.get_checkpoint(partition_id))

    def update_checkpoint(self, held: Versioned, position: Position) -> Versioned:
        """See `CheckpointManager.update_checkpoint`."""
        return self._thread.call(self._manager.update_checkpoint(held, position))

    def delete_checkpoint(self, partition_id: str) -> None:
        """See `CheckpointManager.delete_checkpoint`."""
        self._thread.call(self._manager.delete_checkpoint(partition_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
