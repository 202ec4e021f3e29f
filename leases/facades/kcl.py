"""Lease manager in the style of the Kinesis Client Library, over any record store.

A lost race is an answer, not an error: None, or False. Each write returns the new record; arguments never change.

Source: awslabs/amazon-kinesis-client leases.LeaseRefresher (operations and conditions). Differences: docs/leases.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from uuid import uuid4

from broadsheet.leases import rules
from broadsheet.leases.blocking import OnStoreThread, OpenStore, blocking
from broadsheet.leases.compare_and_swap import (
    compare_and_swap,
    verdict_of_anybody,
    verdict_of_holder,
    verdict_of_overseer,
    verdict_of_taker,
)
from broadsheet.leases.errors import DependencyError, UnreadableLeaseError
from broadsheet.leases.metrics import LeaseMetrics, metered
from broadsheet.leases.record import HashRange, LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.store import RecordStore, log_unreadable
from broadsheet.runtime.clock import Clock, SystemClock

POLL_SECONDS = 10.0
TIMEOUT_SECONDS = 600.0
"""Interval and deadline with which the Kinesis Client Library checks whether its table exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseListing:
    """All rows of a store, as one scan showed them."""

    leases: tuple[Versioned, ...]
    """The readable records, in the order of their keys."""
    unreadable: frozenset[str]
    """Keys of the unreadable rows: each needs an operator."""


class LeaseManager:
    """The leases of one application. Every method may raise what `broadsheet.leases.store` lists for all."""

    def __init__(
        self,
        store: RecordStore,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        metrics: LeaseMetrics | None = None,
    ) -> None:
        """Manage what is in a store.

        Args:
            store: The records; stays the caller's.
            clock: Measures the wait for the store, and operations.
            sleep: Waits, for a number of seconds.
            metrics: Where operations are counted; None: nowhere.
        """
        self.store = store
        self.clock = clock or SystemClock()
        self.metrics = metrics
        self._sleep = sleep
        self._created_store = False

    async def create_store_if_not_exists(self) -> bool:
        """Create the store; return True if this manager did, now or before."""
        if not self._created_store:
            self._created_store = await self.store.create_store()
        return self._created_store

    async def store_exists(self) -> bool:
        """Return whether the store is there."""
        return await self.store.exists()

    async def wait_until_store_exists(
        self, *, poll_seconds: float = POLL_SECONDS, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> bool:
        """Wait until any process has created the store; return False if none did in time."""
        deadline = self.clock.monotonic_seconds() + timeout_seconds
        while not await self.store.exists():
            left_seconds = deadline - self.clock.monotonic_seconds()
            if left_seconds <= 0:
                return False
            await self._sleep(min(poll_seconds, left_seconds))
        return True

    @metered
    async def list_leases(self) -> tuple[Versioned, ...]:
        """Return all leases in the order of their keys, without those that cannot be read."""
        return tuple([found async for found in self.store.scan()])

    @metered
    async def list_rows(self) -> LeaseListing:
        """Return all leases, and the keys of unreadable rows."""
        unreadable: set[str] = set()

        def leave_out(error: UnreadableLeaseError) -> None:
            log_unreadable(error)
            unreadable.add(error.key)

        leases = tuple([found async for found in self.store.scan(on_unreadable=leave_out)])
        return LeaseListing(leases=leases, unreadable=frozenset(unreadable))

    @metered
    async def list_leases_of(self, worker: str) -> tuple[Versioned, ...]:
        """Return the leases that a worker owns, in key order; a lease in hand-off counts for its next owner."""
        return tuple([found async for found in self.store.scan(worker)])

    @metered
    async def create_lease(self, record: LeaseRecord) -> bool:
        """Write a new lease; return False if its key exists.

        Raises:
            UnreadableLeaseError: there is one with its key, and it cannot be read.
        """
        written = replace(record, write_id=uuid4().hex)
        try:
            await self.store.create(written)
        except RecordConflictError as conflict:
            # The database's client may have sent the write twice, so the record that is there may be ours.
            return conflict.current is not None and _is_write(conflict.current, written)
        except DependencyError as error:
            if not error.outcome_unknown:
                raise
            current = await self.store.get(record.key)
            if current is None:
                raise
            return _is_write(current, written)
        return True

    @metered
    async def get_lease(self, key: str) -> Versioned | None:
        """Return a lease as it is now."""
        return await self.store.get(key)

    @metered
    async def renew(self, held: Versioned) -> Versioned | None:
        """Renew a lease, and learn of requests made meanwhile: a claim, a hand-off.

        Nothing is written where the store itself knows which workers live.

        Returns:
            The lease now; None if it is lost, or was never held.
        """
        if not held.fence:
            return None
        if not self.store.tells_who_lives:
            return await compare_and_swap(self.store, held, rules.renew, verdict_of_holder)
        current = await self.store.get(held.record.key)
        if current is None or current.fence != held.fence:
            return None
        return current

    @metered
    async def take(self, seen: Versioned, owner: str) -> Versioned | None:
        """Acquire a lease for a worker of this process, held or not: the caller decides whether it may.

        Returns:
            The lease; None if it changed since it was seen.
        """
        await self.store.join(owner)
        return await compare_and_swap(
            self.store, seen, lambda record: rules.take(record, owner), verdict_of_taker
        )

    @metered
    async def assign(
        self, seen: Versioned, owner: str, *, graceful: bool = False
    ) -> Versioned | None:
        """Assign a lease to a worker of any process, however often its holder renewed it meanwhile.

        Args:
            seen: The lease; its owner, and hand-off, must still be those.
            owner: Who gets it.
            graceful: Name the next owner only; the holder finishes, and then assigns the lease to it.

        Returns:
            The lease; None if its owner is another by now, or it cannot be handed off.
        """
        if not graceful:
            return await compare_and_swap(
                self.store, seen, lambda record: rules.take(record, owner), verdict_of_overseer
            )
        if not rules.may_begin_hand_off(seen.record, owner):
            return None
        return await compare_and_swap(
            self.store,
            seen,
            lambda record: rules.begin_hand_off(record, owner),
            verdict_of_overseer,
        )

    @metered
    async def evict(self, seen: Versioned) -> Versioned | None:
        """Take a lease from its holder, however often it was renewed; in a hand-off, the next owner then holds it.

        Returns:
            The lease; None if its owner is another by now, or it is gone.
        """
        return await compare_and_swap(self.store, seen, rules.evict, verdict_of_overseer)

    @metered
    async def update(
        self, held: Versioned, change: Callable[[LeaseRecord], LeaseRecord]
    ) -> Versioned | None:
        """Write a change by the holder: a checkpoint, or a pending one.

        Args:
            held: The lease, as last written or renewed.
            change: E.g. `lambda record: commit(record, position)`. What it does to key, owner, epoch and counter is
                ignored. May be called more than once.

        Returns:
            The lease; None if it is lost, or the holder wrote it elsewhere since.

        Raises:
            InvalidPositionError: the checkpoint would go back.
        """
        return await compare_and_swap(
            self.store, held, lambda record: rules.update(record, change), verdict_of_holder
        )

    @metered
    async def note_children(
        self,
        key: str,
        *,
        children: frozenset[str] = frozenset(),
        hash_range: HashRange | None = None,
    ) -> Versioned | None:
        """Note a shard's children and hash range, without invalidating its holder's next write.

        Returns:
            The lease; None if there is none, and none is made.
        """
        seen = await self.store.get(key)
        if seen is None:
            return None
        return await compare_and_swap(
            self.store,
            seen,
            lambda record: rules.note_children(record, children=children, hash_range=hash_range),
            verdict_of_anybody,
        )

    @metered
    async def delete(self, key: str) -> bool:
        """Delete a lease, held or not; return False if there is none."""
        return await self.store.delete(key)

    async def delete_all(self) -> None:
        """Delete all leases, one by one; those created meanwhile may stay."""
        for found in await self.list_leases():
            await self.store.delete(found.record.key)

    async def is_empty(self) -> bool:
        """Return whether the store has no readable lease."""
        async for _ in self.store.scan():
            return False
        return True


def _is_write(current: Versioned, written: LeaseRecord) -> bool:
    return current.record.write_id == written.write_id


class SyncLeaseManager(OnStoreThread[LeaseManager]):
    """A blocking `LeaseManager` on a dedicated event-loop thread; its methods raise the same errors.

    Threads may share it, forked processes may not. Functions that are passed to it are called on its thread.
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
