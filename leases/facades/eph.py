"""Checkpoint manager in the style of Azure's Event Processor Host, over any record store.

A *holder* is the record that makes room for a partition's checkpoint; it may exist without a checkpoint. Lease and
checkpoint are in the same record, so a checkpoint is written under the lease that its writer shows.

Source: Azure/azure-event-hubs-node processor/lib/checkpointManager.ts (operations). Errors that their implementation
only reports to an error handler are raised here: an update that failed, or came after the lease was lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from broadsheet.leases import rules
from broadsheet.leases.blocking import OnStoreThread, OpenStore, blocking
from broadsheet.leases.compare_and_swap import compare_and_swap, verdict_of_anybody
from broadsheet.leases.errors import InvalidPositionError, LeasingError, ShutdownError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import RecordStore

START_ATTEMPTS = 5
"""Attempts of a host at each step of its start."""


class CheckpointManager:
    """The checkpoints of one consumer group. Every method may raise what `broadsheet.leases.store` lists for
    all.
    """

    def __init__(self, store: RecordStore, *, refuse_repeated: bool = False) -> None:
        """Manage what is in a store.

        Args:
            store: The records, whose keys are partitions' ids; stays the caller's.
            refuse_repeated: Refuse a checkpoint that is stored already, as a host's `context.checkpoint()` does.
        """
        self._store = store
        self._manager = LeaseManager(store)
        self._refuse_repeated = refuse_repeated

    async def checkpoint_store_exists(self) -> bool:
        """Return whether the store is there."""
        return await self._store.exists()

    async def create_checkpoint_store_if_not_exists(self) -> None:
        """Create the store, unless it is there."""
        await self._store.create_store()

    async def delete_checkpoint_store(self) -> None:
        """Remove everything, leases too. No error if there is nothing."""
        await self._store.delete_store()

    async def create_all_checkpoints_if_not_exists(self, partition_ids: Iterable[str]) -> None:
        """Make a holder for each partition that has none; existing holders and checkpoints stay as they are."""
        for partition_id in partition_ids:
            await self._manager.create_lease(LeaseRecord(key=partition_id))

    async def make_ready(
        self, partition_ids: Iterable[str], *, attempts: int = START_ATTEMPTS
    ) -> None:
        """Create the store and the holders, as a host does when it starts; retry failures at once.

        Args:
            partition_ids: Of the hub.
            attempts: How often each of the two is tried.

        Raises:
            LeasingError: the last attempt's, or one that no other would change.
        """
        partitions = tuple(partition_ids)
        await _tried(self.create_checkpoint_store_if_not_exists, attempts)
        await _tried(lambda: self.create_all_checkpoints_if_not_exists(partitions), attempts)

    async def get_checkpoint(self, partition_id: str) -> Position | None:
        """Return a partition's checkpoint; None if none was ever stored."""
        found = await self._store.get(partition_id)
        return None if found is None else found.record.checkpoint

    async def update_checkpoint(self, held: Versioned, position: Position) -> Versioned:
        """Store a checkpoint under a lease.

        Args:
            held: The lease, as last acquired, renewed or updated.
            position: Sequence number and offset of the last event that is processed.

        Returns:
            The lease, for the next update.

        Raises:
            ShutdownError: the lease is lost, or has no holder.
            InvalidPositionError: the checkpoint would go back; or it is stored already, and that is refused.
        """

        def commit(record: LeaseRecord) -> LeaseRecord:
            stored = record.checkpoint
            if self._refuse_repeated and stored is not None and not stored < position:
                raise InvalidPositionError(
                    f"checkpoint of lease {record.key}: expected one beyond {stored.seq}, got {position.seq}"
                )
            return rules.commit(record, position)

        updated = await self._manager.update(held, commit) if held.fence else None
        if updated is None:
            raise ShutdownError(
                f"lease {held.record.key} is lost, its checkpoint {position.seq} is not stored: stop processing"
            )
        return updated

    async def delete_checkpoint(self, partition_id: str) -> None:
        """Remove a partition's checkpoint, and keep its holder and its lease. No error if there is none."""
        found = await self._store.get(partition_id)
        if found is not None:
            await compare_and_swap(self._store, found, _without_checkpoint, verdict_of_anybody)


def _without_checkpoint(record: LeaseRecord) -> LeaseRecord:
    return replace(record, checkpoint=None, pending=None, pending_state=None)


async def _tried(step: Callable[[], Awaitable[None]], attempts: int) -> None:
    for left in reversed(range(attempts)):
        try:
            await step()
        except LeasingError as error:
            if not left or not error.retryable:
                raise
        else:
            return


class SyncCheckpointManager(OnStoreThread[CheckpointManager]):
    """A blocking `CheckpointManager` on a dedicated event-loop thread; its methods raise the same errors."""

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
