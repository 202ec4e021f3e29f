"""Blocking checkpoint store of Azure's event processors, for programs without an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from azure.eventhub import CheckpointStore

from broadsheet.leases.blocking import OnStoreThread, OpenStore
from broadsheet.leases.facades.event_hubs import Ownership, RecordCheckpointStore


class SyncRecordCheckpointStore(OnStoreThread[RecordCheckpointStore], CheckpointStore):
    """A blocking `RecordCheckpointStore`, run on a dedicated event-loop thread, for
    `azure.eventhub.EventHubConsumerClient`.
    """

    def __init__(self, open_store: OpenStore, *, may_go_back: bool = False) -> None:
        """Open the store on the thread.

        Args:
            open_store: Called there once; e.g. `lambda: nullcontext(SqlRecordStore(engine))`.
            may_go_back: See `RecordCheckpointStore`.
        """
        super().__init__(
            open_store,
            lambda store: RecordCheckpointStore(store, may_go_back=may_go_back),
            name="checkpoint store",
        )

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **_: Any
    ) -> Iterable[Ownership]:
        """See `RecordCheckpointStore.list_ownership`."""
        return self._thread.call(
            self._facade.list_ownership(fully_qualified_namespace, eventhub_name, consumer_group)
        )

    def claim_ownership(self, ownership_list: Iterable[Ownership], **_: Any) -> Iterable[Ownership]:
        """See `RecordCheckpointStore.claim_ownership`."""
        return self._thread.call(self._facade.claim_ownership(ownership_list))

    def update_checkpoint(self, checkpoint: Ownership, **_: Any) -> None:
        """See `RecordCheckpointStore.update_checkpoint`."""
        self._thread.call(self._facade.update_checkpoint(checkpoint))

    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **_: Any
    ) -> Iterable[Ownership]:
        """See `RecordCheckpointStore.list_checkpoints`."""
        return self._thread.call(
            self._facade.list_checkpoints(fully_qualified_namespace, eventhub_name, consumer_group)
        )
