"""The checkpoint manager for programs without an event loop."""

from __future__ import annotations

from consumer.leasing.checkpoint_manager import CheckpointManager
from consumer.leasing.store_thread import OnStoreThread, OpenStore, blocking


class SyncCheckpointManager(OnStoreThread[CheckpointManager]):
    """A `CheckpointManager` on a loop thread of its own; each method blocks until its answer, and raises the same."""

    def __init__(self, open_store: OpenStore, *, refuse_repeated: bool = False) -> None:
        """Open the store on the thread.

        Args:
            open_store: Called there once; e.g. `lambda: nullcontext(SqlRecordStore(engine))`.
            refuse_repeated: See `CheckpointManager`.
        """
        super().__init__(
            open_store,
            lambda store: CheckpointManager(store, refuse_repeated=refuse_repeated),
            name="checkpoint manager",
        )

    checkpoint_store_exists = blocking(CheckpointManager.checkpoint_store_exists)
    create_checkpoint_store_if_not_exists = blocking(
        CheckpointManager.create_checkpoint_store_if_not_exists
    )
    delete_checkpoint_store = blocking(CheckpointManager.delete_checkpoint_store)
    create_all_checkpoints_if_not_exists = blocking(
        CheckpointManager.create_all_checkpoints_if_not_exists
    )
    make_ready = blocking(CheckpointManager.make_ready)
    get_checkpoint = blocking(CheckpointManager.get_checkpoint)
    update_checkpoint = blocking(CheckpointManager.update_checkpoint)
    delete_checkpoint = blocking(CheckpointManager.delete_checkpoint)
