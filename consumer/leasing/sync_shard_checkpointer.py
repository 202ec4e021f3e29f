"""The shard checkpointer for programs without an event loop."""

from __future__ import annotations

from consumer.leasing.expiry import Expiry
from consumer.leasing.shard_checkpointer import CLAIM_TIMEOUT_SECONDS, ShardCheckpointer
from consumer.leasing.store_thread import OnStoreThread, OpenStore, blocking


class SyncShardCheckpointer(OnStoreThread[ShardCheckpointer]):
    """A `ShardCheckpointer` on a loop thread of its own; each method blocks until its answer, and raises the same."""

    def __init__(
        self,
        open_store: OpenStore,
        *,
        expiry: Expiry | None = None,
        stealing: bool = True,
        claim_timeout_seconds: float = CLAIM_TIMEOUT_SECONDS,
    ) -> None:
        """Open the store on the thread.

        Args:
            open_store: Called there once; e.g. `lambda: nullcontext(DynamoRecordStore(client, "my-application"))`.
            expiry: See `ShardCheckpointer`; used on the thread only.
            stealing: See `ShardCheckpointer`.
            claim_timeout_seconds: See `ShardCheckpointer`.
        """
        super().__init__(
            open_store,
            lambda store: ShardCheckpointer(
                store,
                expiry=expiry,
                stealing=stealing,
                claim_timeout_seconds=claim_timeout_seconds,
            ),
            name="shard checkpointer",
        )

    init = blocking(ShardCheckpointer.init)
    get_lease = blocking(ShardCheckpointer.get_lease)
    checkpoint_sequence = blocking(ShardCheckpointer.checkpoint_sequence)
    fetch_checkpoint = blocking(ShardCheckpointer.fetch_checkpoint)
    remove_lease_info = blocking(ShardCheckpointer.remove_lease_info)
    remove_lease_owner = blocking(ShardCheckpointer.remove_lease_owner)
    get_lease_owner = blocking(ShardCheckpointer.get_lease_owner)
    list_active_workers = blocking(ShardCheckpointer.list_active_workers)
    claim_shard = blocking(ShardCheckpointer.claim_shard)
