"""The checkpoint store of Azure's event processors for programs without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from azure.eventhub import CheckpointStore

from consumer.leasing.core.event_hubs import Ownership
from consumer.leasing.event_hubs import RecordCheckpointStore
from consumer.leasing.store import RecordStore
from consumer.leasing.store_thread import StoreThread


class SyncRecordCheckpointStore(CheckpointStore):
    """A `RecordCheckpointStore` on a loop thread of its own, for `azure.eventhub.EventHubConsumerClient`."""

    def __init__(
        self,
        open_store: Callable[[], AbstractAsyncContextManager[RecordStore]],
        *,
        may_go_back: bool = False,
    ) -> None:
        """Open the store on the thread.

        Args:
            open_store: Called there once; e.g. `lambda: nullcontext(SqlRecordStore(engine))`.
            may_go_back: See `RecordCheckpointStore`.
        """
        self._thread = StoreThread(open_store, name="checkpoint store")
        self._checkpoints = RecordCheckpointStore(self._thread.store, may_go_back=may_go_back)

    def close(self) -> None:
        """Close the store, and end the thread. Idempotent."""
        self._thread.close()

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **_: Any
    ) -> Iterable[Ownership]:
        """See `RecordCheckpointStore.list_ownership`."""
        return self._thread.call(
            self._checkpoints.list_ownership(
                fully_qualified_namespace, eventhub_name, consumer_group
            )
        )

    def claim_ownership(self, ownership_list: Iterable[Ownership], **_: Any) -> Iterable[Ownership]:
        """See `RecordCheckpointStore.claim_ownership`."""
        return self._thread.call(self._checkpoints.claim_ownership(ownership_list))

    def update_checkpoint(self, checkpoint: Ownership, **_: Any) -> None:
        """See `RecordCheckpointStore.update_checkpoint`."""
        self._thread.call(self._checkpoints.update_checkpoint(checkpoint))

    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **_: Any
    ) -> Iterable[Ownership]:
        """See `RecordCheckpointStore.list_checkpoints`."""
        return self._thread.call(
            self._checkpoints.list_checkpoints(
                fully_qualified_namespace, eventhub_name, consumer_group
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
