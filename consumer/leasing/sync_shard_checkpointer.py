"""The shard checkpointer for programs without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from consumer.leasing.core.position import Position
from consumer.leasing.core.record import Versioned
from consumer.leasing.expiry import Expiry
from consumer.leasing.shard_checkpointer import CLAIM_TIMEOUT_SECONDS, ShardCheckpointer
from consumer.leasing.store import RecordStore
from consumer.leasing.store_thread import StoreThread


class SyncShardCheckpointer:
    """A `ShardCheckpointer` on a loop thread of its own; each method blocks until its answer, and raises the same."""

    def __init__(
        self,
        open_store: Callable[[], AbstractAsyncContextManager[RecordStore]],
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
        self._thread = StoreThread(open_store, name="shard checkpointer")
        self._checkpointer = ShardCheckpointer(
            self._thread.store,
            expiry=expiry,
            stealing=stealing,
            claim_timeout_seconds=claim_timeout_seconds,
        )

    def close(self) -> None:
        """Close the store, and end the thread. Idempotent."""
        self._thread.close()

    def init(self) -> None:
        """See `ShardCheckpointer.init`."""
        self._thread.call(self._checkpointer.init())

    def get_lease(
        self, shard: str, worker: str, *, parents: frozenset[str] = frozenset()
    ) -> Versioned:
        """See `ShardCheckpointer.get_lease`."""
        return self._thread.call(self._checkpointer.get_lease(shard, worker, parents=parents))

    def checkpoint_sequence(self, held: Versioned, position: Position) -> Versioned:
        """See `ShardCheckpointer.checkpoint_sequence`."""
        return self._thread.call(self._checkpointer.checkpoint_sequence(held, position))

    def fetch_checkpoint(self, shard: str) -> Position:
        """See `ShardCheckpointer.fetch_checkpoint`."""
        return self._thread.call(self._checkpointer.fetch_checkpoint(shard))

    def remove_lease_info(self, shard: str) -> None:
        """See `ShardCheckpointer.remove_lease_info`."""
        self._thread.call(self._checkpointer.remove_lease_info(shard))

    def remove_lease_owner(self, held: Versioned) -> Versioned:
        """See `ShardCheckpointer.remove_lease_owner`."""
        return self._thread.call(self._checkpointer.remove_lease_owner(held))

    def get_lease_owner(self, shard: str) -> str:
        """See `ShardCheckpointer.get_lease_owner`."""
        return self._thread.call(self._checkpointer.get_lease_owner(shard))

    def list_active_workers(self, shards: Iterable[str]) -> dict[str, list[str]]:
        """See `ShardCheckpointer.list_active_workers`."""
        return self._thread.call(self._checkpointer.list_active_workers(shards))

    def claim_shard(self, seen: Versioned, claimant: str) -> Versioned:
        """See `ShardCheckpointer.claim_shard`."""
        return self._thread.call(self._checkpointer.claim_shard(seen, claimant))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
