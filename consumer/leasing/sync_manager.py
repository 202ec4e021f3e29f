"""The lease manager for programs without an event loop."""

from __future__ import annotations

from consumer.leasing.manager import LeaseManager
from consumer.leasing.metrics import LeaseMetrics
from consumer.leasing.store_thread import OnStoreThread, OpenStore, blocking


class SyncLeaseManager(OnStoreThread[LeaseManager]):
    """A `LeaseManager` on a loop thread of its own; each method blocks until its answer, and raises the same errors.

    Threads may share it, forked processes may not. Functions that are handed to it are called on its thread.
    """

    def __init__(self, open_store: OpenStore, *, metrics: LeaseMetrics | None = None) -> None:
        """Open the store on the thread.

        Args:
            open_store: Called there once; e.g. `lambda: nullcontext(SqlRecordStore(engine))`.
            metrics: Where operations are counted; None: nowhere.
        """
        super().__init__(
            open_store, lambda store: LeaseManager(store, metrics=metrics), name="lease manager"
        )

    create_store_if_not_exists = blocking(LeaseManager.create_store_if_not_exists)
    store_exists = blocking(LeaseManager.store_exists)
    wait_until_store_exists = blocking(LeaseManager.wait_until_store_exists)
    list_leases = blocking(LeaseManager.list_leases)
    list_leases_of = blocking(LeaseManager.list_leases_of)
    create_lease = blocking(LeaseManager.create_lease)
    get_lease = blocking(LeaseManager.get_lease)
    renew = blocking(LeaseManager.renew)
    take = blocking(LeaseManager.take)
    assign = blocking(LeaseManager.assign)
    evict = blocking(LeaseManager.evict)
    update = blocking(LeaseManager.update)
    note_children = blocking(LeaseManager.note_children)
    delete = blocking(LeaseManager.delete)
    delete_all = blocking(LeaseManager.delete_all)
    is_empty = blocking(LeaseManager.is_empty)
