"""An etcd in memory: implements `broadsheet.allocator.etcd.api.Etcd` over a store, with leases.

Leases use the running loop's time, which is virtual on a `VirtualLoop`. It passes the same contract suite as a real
server.

It has no cluster members, loses nothing, and answers at once; `broadsheet.testing.allocator.kernel.network` adds
faults in front of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from dataclasses import dataclass

from broadsheet.allocator.errors import LeaseNotFoundError, RevisionCompactedError
from broadsheet.allocator.etcd.api import (
    Header,
    LeaseLife,
    RangeResult,
    TxnResult,
    WatchBatch,
    mod_revision_of,
)
from broadsheet.allocator.ops import Compare, LeaseId, Operation, prefix_range_end
from broadsheet.testing.allocator.kernel.store import SimulatedStore, StoreCommit, key_of

CLUSTER_ID = 0x51
PROGRESS_SECONDS = 600.0
"""Etcd's default interval of progress notifications."""


@dataclass(slots=True)
class _Lease:
    """A lease's time."""

    ttl_seconds: int
    timer: asyncio.TimerHandle


class FakeEtcd:
    """A single etcd, for any number of clients on one loop."""

    def __init__(
        self,
        *,
        progress_seconds: float = PROGRESS_SECONDS,
        expiry_lag: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start empty, at revision 1.

        Args:
            progress_seconds: Interval of progress notifications to idle watches.
            expiry_lag: Delay of a lease's end after its due time, seconds, because etcd checks twice a second.
        """
        self.store = SimulatedStore()
        self.observers: list[Callable[[StoreCommit], None]] = []
        """Called with each revision, synchronously and before any watch delivers it."""
        self._progress_seconds = progress_seconds
        self._expiry_lag = expiry_lag
        self._leases: dict[LeaseId, _Lease] = {}
        self._leases_granted = 0
        self._changed = asyncio.Event()

    def header(self, revision: int = 0) -> Header:
        """Return a header, of the newest revision unless one is given."""
        return Header(
            cluster_id=CLUSTER_ID,
            member_id=1,
            revision=revision or self.store.revision,
            raft_term=1,
        )

    async def get_range(
        self, key: bytes, range_end: bytes = b"", *, revision: int = 0
    ) -> RangeResult:
        """Read keys in [key, range_end) as of one revision."""
        await asyncio.sleep(0)
        return self.read(key, range_end, revision=revision)

    async def newest_revision(self, prefix: bytes) -> int:
        """Return the newest revision among the existing keys with `prefix`; 0 if there are none."""
        await asyncio.sleep(0)
        return self.newest(prefix)

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Perform a transaction."""
        await asyncio.sleep(0)
        return self.perform(compares, success, failure)

    async def lease_grant(self, ttl_seconds: int) -> LeaseId:
        """Create a lease."""
        await asyncio.sleep(0)
        return self.grant(ttl_seconds)

    async def lease_revoke(self, lease: LeaseId) -> bool:
        """End a lease and delete its keys."""
        await asyncio.sleep(0)
        return self.revoke(lease)

    async def lease_keep_alive_once(self, lease: LeaseId) -> int:
        """Renew a lease."""
        await asyncio.sleep(0)
        return self.keep_alive(lease)

    async def lease_life(self, lease: LeaseId) -> LeaseLife | None:
        """Return how much time a lease has left."""
        await asyncio.sleep(0)
        return self.life(lease)

    async def watch(
        self, prefix: bytes, *, start_revision: int
    ) -> AsyncGenerator[WatchBatch, None]:
        """Yield every change of keys with `prefix` from `start_revision` on, for ever."""
        assert start_revision > 0, "a watch needs a revision to start from"
        next_revision = start_revision
        while True:
            if next_revision < self.store.compacted_revision:
                raise RevisionCompactedError(next_revision, self.store.compacted_revision)
            batch = self._batch(prefix, next_revision)
            # Before the `yield`, because the store may change while the consumer has the batch.
            next_revision = max(next_revision, self.store.revision + 1)
            if batch is not None:
                yield batch
            elif not await self._changes_in_time():
                # No later than the revision that was read, because a change may come together with the time-out.
                seen = min(next_revision - 1, self.store.revision)
                yield WatchBatch(header=self.header(seen), events=())

    def read(self, key: bytes, range_end: bytes = b"", *, revision: int = 0) -> RangeResult:
        """Read now."""
        kvs = self.store.range(key, range_end, revision)
        return RangeResult(header=self.header(revision), kvs=kvs)

    def newest(self, prefix: bytes) -> int:
        """Return the newest revision below a prefix now."""
        kvs = self.store.range(prefix, prefix_range_end(prefix), 0)
        return max((kv.mod_revision for kv in kvs), default=0)

    def perform(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
        *,
        author: str = "",
        note: object = None,
    ) -> TxnResult:
        """Perform a transaction now.

        Args:
            compares: The comparisons.
            success: Operations if all comparisons hold.
            failure: Operations otherwise.
            author: Named in the commit.
            note: For observers; it goes into the commit.
        """
        succeeded, gets, commit = self.store.perform(
            compares, success, failure, author=author, note=note
        )
        self._publish(commit)
        return TxnResult(header=self.header(), succeeded=succeeded, gets=gets)

    def grant(self, ttl_seconds: int) -> LeaseId:
        """Create a lease now."""
        self._leases_granted += 1
        lease = LeaseId(0x1EA5E000 + self._leases_granted)
        self.store.leases[lease] = set()
        self._leases[lease] = _Lease(ttl_seconds, self._timer(lease, ttl_seconds))
        return lease

    def revoke(self, lease: LeaseId, *, author: str = "") -> bool:
        """End a lease now. False if there is none."""
        try:
            commit = self.store.end_lease(lease, author=author)
        except LeaseNotFoundError:
            return False
        self._leases.pop(lease).timer.cancel()
        self._publish(commit)
        return True

    def keep_alive(self, lease: LeaseId) -> int:
        """Renew a lease now. Return its seconds, 0 if there is none."""
        known = self._leases.get(lease)
        if known is None:
            return 0
        known.timer.cancel()
        known.timer = self._timer(lease, known.ttl_seconds)
        return known.ttl_seconds

    def life(self, lease: LeaseId) -> LeaseLife | None:
        """Return how much time a lease has left now; None if there is none."""
        known = self._leases.get(lease)
        if known is None:
            return None
        left = known.timer.when() - asyncio.get_running_loop().time()
        return LeaseLife(granted_seconds=known.ttl_seconds, left_seconds=int(left))

    def compact(self, revision: int) -> None:
        """Discard the history before a revision."""
        self.store.compact(revision)

    def close(self) -> None:
        """Stop the expiry of leases."""
        for lease in self._leases.values():
            lease.timer.cancel()

    def _timer(self, lease: LeaseId, ttl_seconds: int) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(
            ttl_seconds + self._expiry_lag(),
            self.revoke,
            lease,
            # This timer is etcd's own: it must not stop with the process that renewed the lease.
            context=Context(),
        )

    def _batch(self, prefix: bytes, next_revision: int) -> WatchBatch | None:
        events = tuple(
            event
            for commit in self.store.commits_from(next_revision)
            for event in commit.events
            if key_of(event).startswith(prefix)
        )
        if not events:
            return None
        return WatchBatch(header=self.header(mod_revision_of(events[-1])), events=events)

    async def _changes_in_time(self) -> bool:
        """Wait for a change; False if a progress notification is due first."""
        try:
            async with asyncio.timeout(self._progress_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _publish(self, commit: StoreCommit | None) -> None:
        if commit is None:
            return
        for observer in self.observers:
            observer(commit)
        # A new event for each revision, because on one that stays set no watch would wait.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
