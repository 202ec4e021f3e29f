"""The store of a relay's shard: another store, and how messages become what that one takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from concurrent.futures import Future

from broadsheet.consumer.application import Shard, Store
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint


class Outlet(ABC):
    """A store that takes messages."""

    def __init__(self, store: Store, *, idle_seconds: float | None = None) -> None:
        """Wrap a store.

        Args:
            store: Commits what was taken.
            idle_seconds: After how long it commits though nothing was read; None: never.
        """
        self._store = store
        self.idle_seconds = idle_seconds
        self.pending_bytes = 0
        """Payloads that the running transaction took."""

    @abstractmethod
    def take(self, batch: MessageBatch) -> None:
        """Add messages to the running transaction.

        Raises:
            ValidationError, ValueError: a message cannot be carried; nothing of the batch is taken.
        """

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """As of the store."""
        self.pending_bytes = 0
        return self._store.restore_checkpoint(shard)

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """As of the store."""
        self.pending_bytes = 0
        return self._store.start_commit(shard, checkpoint, wait_for)

    def destroy(self) -> None:
        """As of the store."""
        self._store.destroy()
