"""The lease manager for programs without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from consumer.leasing.core.record import HashRange, LeaseRecord, Versioned
from consumer.leasing.manager import POLL_SECONDS, TIMEOUT_SECONDS, LeaseManager
from consumer.leasing.store import RecordStore
from consumer.leasing.store_thread import StoreThread


class SyncLeaseManager:
    """A `LeaseManager` on a loop thread of its own; each method blocks until its answer, and raises the same errors.

    Threads may share it, forked processes may not.
    """

    def __init__(self, open_store: Callable[[], AbstractAsyncContextManager[RecordStore]]) -> None:
        """Open the store on the thread.

        Args:
            open_store: Called there once; e.g. `lambda: nullcontext(SqlRecordStore(engine))`.
        """
        self._thread = StoreThread(open_store, name="lease manager")
        self._manager = LeaseManager(self._thread.store)

    def close(self) -> None:
        """Close the store, and end the thread. Idempotent.

        Raises:
            BaseException: what the store raised at its end.
        """
        self._thread.close()

    def create_store_if_not_exists(self) -> bool:
        """See `LeaseManager.create_store_if_not_exists`."""
        return self._thread.call(self._manager.create_store_if_not_exists())

    def store_exists(self) -> bool:
        """See `LeaseManager.store_exists`."""
        return self._thread.call(self._manager.store_exists())

    def wait_until_store_exists(
        self, *, poll_seconds: float = POLL_SECONDS, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> bool:
        """See `LeaseManager.wait_until_store_exists`."""
        return self._thread.call(
            self._manager.wait_until_store_exists(
                poll_seconds=poll_seconds, timeout_seconds=timeout_seconds
            )
        )

    def list_leases(self) -> tuple[Versioned, ...]:
        """See `LeaseManager.list_leases`."""
        return self._thread.call(self._manager.list_leases())

    def list_leases_of(self, worker: str) -> tuple[Versioned, ...]:
        """See `LeaseManager.list_leases_of`."""
        return self._thread.call(self._manager.list_leases_of(worker))

    def create_lease(self, record: LeaseRecord) -> bool:
        """See `LeaseManager.create_lease`."""
        return self._thread.call(self._manager.create_lease(record))

    def get_lease(self, key: str) -> Versioned | None:
        """See `LeaseManager.get_lease`."""
        return self._thread.call(self._manager.get_lease(key))

    def renew(self, held: Versioned) -> Versioned | None:
        """See `LeaseManager.renew`."""
        return self._thread.call(self._manager.renew(held))

    def take(self, seen: Versioned, owner: str) -> Versioned | None:
        """See `LeaseManager.take`."""
        return self._thread.call(self._manager.take(seen, owner))

    def assign(self, seen: Versioned, owner: str, *, graceful: bool = False) -> Versioned | None:
        """See `LeaseManager.assign`."""
        return self._thread.call(self._manager.assign(seen, owner, graceful=graceful))

    def evict(self, seen: Versioned) -> Versioned | None:
        """See `LeaseManager.evict`."""
        return self._thread.call(self._manager.evict(seen))

    def update(
        self, held: Versioned, change: Callable[[LeaseRecord], LeaseRecord]
    ) -> Versioned | None:
        """See `LeaseManager.update`; `change` is called on the thread."""
        return self._thread.call(self._manager.update(held, change))

    def note_children(
        self,
        key: str,
        *,
        children: frozenset[str] = frozenset(),
        hash_range: HashRange | None = None,
    ) -> Versioned | None:
        """See `LeaseManager.note_children`."""
        return self._thread.call(
            self._manager.note_children(key, children=children, hash_range=hash_range)
        )

    def delete(self, key: str) -> bool:
        """See `LeaseManager.delete`."""
        return self._thread.call(self._manager.delete(key))

    def delete_all(self) -> None:
        """See `LeaseManager.delete_all`."""
        self._thread.call(self._manager.delete_all())

    def is_empty(self) -> bool:
        """See `LeaseManager.is_empty`."""
        return self._thread.call(self._manager.is_empty())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
