"""Checkpointer in the style of vmware-go-kcl, over any record store; leases are stolen one at a time, by claims.

    holder                                thief
    get_lease: renews                     list_active_workers: the holder has too many
                                          claim_shard
    get_lease: ShardClaimedError          get_lease: LeaseNotAcquiredError
    finishes, checkpoint_sequence
    remove_lease_owner                    get_lease: has it, and the claim is gone

A claim on a dead holder's lease keeps others away until `claim_timeout_seconds` after the lease ended.

Source: vmware/vmware-go-kcl-v2 clientlibrary/checkpoint.Checkpointer (operations, protocol). Differences:
docs/leases.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broadsheet.leases import rules
from broadsheet.leases.blocking import OnStoreThread, OpenStore, blocking
from broadsheet.leases.compare_and_swap import compare_and_swap, verdict_of_claimant
from broadsheet.leases.errors import (
    LeaseNotAcquiredError,
    SequenceIdNotFoundError,
    ShardClaimedError,
    ShardNotAssignedError,
    ShutdownError,
)
from broadsheet.leases.expiry import Expiry, LeaseExpiry, ObservedExpiry
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import RecordStore
from broadsheet.runtime.clock import Clock, SystemClock

CLAIM_TIMEOUT_SECONDS = 120.0
LISTING_SECONDS = 60.0
"""Both are vmware-go-kcl's defaults."""


class ShardCheckpointer:
    """The shards of one application. Every method may raise what `broadsheet.leases.store` lists for all."""

    def __init__(
        self,
        store: RecordStore,
        *,
        expiry: Expiry | None = None,
        claim_timeout_seconds: float | None = CLAIM_TIMEOUT_SECONDS,
        listing_seconds: float = LISTING_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        """Manage what is in a store.

        Args:
            store: The records; stays the caller's.
            expiry: Tells which leases are over, where the store itself does not. None: by watching. In a table that
                workers of vmware-go-kcl use as well:
                `broadsheet.leases.stores.dynamodb.vmware_go.WallClockExpiry`.
            claim_timeout_seconds: For how long after a lease ended the claim on it keeps others away; None: claims are
                not heeded, so that no lease is stolen. All workers must agree.
            listing_seconds: For how long `list_active_workers` goes on with what it read.
            clock: Measures these.
        """
        self._store = store
        self._manager = LeaseManager(store)
        self._clock = clock or SystemClock()
        self._expiry: Expiry = expiry or ObservedExpiry(clock=self._clock)
        self._claim_timeout_seconds = claim_timeout_seconds
        self._listing_seconds = listing_seconds
        self._listed: Mapping[str, LeaseRecord] = {}
        self._list_again_seconds: float | None = None
        self._fence_by_lease: dict[tuple[str, str], int] = {}

    async def init(self) -> None:
        """Create the store, unless it is there."""
        await self._store.create_store()

    async def get_lease(
        self, shard: str, worker: str, *, parents: frozenset[str] = frozenset()
    ) -> Versioned:
        """Acquire a shard's lease, or renew it if this object acquired it for that worker.

        Args:
            shard: The key; a lease that is not there is made.
            worker: Who is to hold it. One of this name in another process loses it.
            parents: Of a lease that is made.

        Raises:
            ShardClaimedError: another worker claimed it; if the worker holds it, it must finish and
                `remove_lease_owner`.
            LeaseNotAcquiredError: another worker holds it, or was faster.
        """
        asked_seconds = self._clock.monotonic_seconds()
        found = await self._found_or_made(shard, parents)
        standing = self._standing(found, asked_seconds)
        self._check_claim(found.record, worker, standing)
        if self._is_ours(found, worker):
            held = await self._manager.renew(found)
        elif standing.is_free or found.record.holder == worker:
            held = await self._manager.take(found, worker)
        else:
            raise LeaseNotAcquiredError(f"lease {shard} is held by {found.record.holder}")
        if held is None:
            raise LeaseNotAcquiredError(f"lease {shard}: another worker was faster")
        self._fence_by_lease[shard, worker] = held.fence
        return held

    async def checkpoint_sequence(self, held: Versioned, position: Position) -> Versioned:
        """Commit a shard's checkpoint; a claim stays, and the lease is not extended.

        Raises:
            ShutdownError: the lease is not held: stop processing.
            InvalidPositionError: the checkpoint would go back.
        """
        # A released lease has no holder: the next one would not expect what its last holder still writes.
        if held.record.holder is None or not held.fence:
            raise _not_held(held)
        committed = await self._manager.update(held, lambda record: rules.commit(record, position))
        if committed is None:
            raise _not_held(held)
        return committed

    async def fetch_checkpoint(self, shard: str) -> Position:
        """Return a shard's checkpoint.

        Raises:
            SequenceIdNotFoundError: no checkpoint is stored.
        """
        found = await self._store.get(shard)
        if found is None or found.record.checkpoint is None:
            raise SequenceIdNotFoundError(f"no checkpoint is stored for shard {shard}")
        return found.record.checkpoint

    async def remove_lease_info(self, shard: str) -> None:
        """Delete the record of a vanished shard, held or not. No error if there is none."""
        await self._store.delete(shard)

    async def remove_lease_owner(self, held: Versioned) -> Versioned:
        """Release a lease; everything but the owner stays.

        Raises:
            ShutdownError: it is not held.
        """
        released = None if held.record.owner is None else await self._manager.evict(held)
        if released is None:
            raise _not_held(held)
        return released

    async def get_lease_owner(self, shard: str) -> str:
        """Return the worker that a shard belongs to.

        Raises:
            ShardNotAssignedError: there is none.
        """
        found = await self._store.get(shard)
        if found is None or found.record.owner is None:
            raise ShardNotAssignedError(f"shard {shard} has no owner")
        return found.record.owner

    async def list_active_workers(self, shards: Iterable[str]) -> dict[str, list[str]]:
        """Return the shards of each worker among those given, without finished ones.

        Raises:
            ShardNotAssignedError: one has no owner, so it is no time to balance.
        """
        listed = await self._listing()
        shards_by_worker: dict[str, list[str]] = {}
        for shard in shards:
            record = listed.get(shard)
            if record is not None and record.is_finished:
                continue
            if record is None or record.owner is None:
                raise ShardNotAssignedError(f"shard {shard} has no owner")
            shards_by_worker.setdefault(record.owner, []).append(shard)
        return shards_by_worker

    async def claim_shard(self, seen: Versioned, claimant: str) -> Versioned:
        """Claim a shard: ask its holder to let go, however often it wrote since.

        Raises:
            ShardClaimedError: another worker asked before.
            LeaseNotAcquiredError: no other worker holds it, it changed hands, or nothing of the shard is left.
        """
        claimed = await compare_and_swap(
            self._store, seen, lambda record: rules.claim(record, claimant), verdict_of_claimant
        )
        if claimed is None:
            raise LeaseNotAcquiredError(f"lease {seen.record.key} changed hands: look again")
        return claimed

    async def _found_or_made(self, shard: str, parents: frozenset[str]) -> Versioned:
        found = await self._store.get(shard)
        if found is None:
            await self._manager.create_lease(LeaseRecord(key=shard, parents=parents))
            found = await self._store.get(shard)
        if found is None:
            raise LeaseNotAcquiredError(f"lease {shard} was deleted meanwhile")
        return found

    def _standing(self, found: Versioned, asked_seconds: float) -> LeaseExpiry:
        standing = self._expiry.standing(found, asked_monotonic_seconds=asked_seconds)
        if not self._store.tells_who_lives:
            return standing
        return LeaseExpiry(is_free=not found.fence, overdue_seconds=standing.overdue_seconds)

    def _check_claim(self, record: LeaseRecord, worker: str, standing: LeaseExpiry) -> None:
        timeout_seconds = self._claim_timeout_seconds
        if timeout_seconds is None or record.claim in (None, worker):
            return
        is_void = standing.is_free and standing.overdue_seconds > timeout_seconds
        if not is_void:
            raise ShardClaimedError(f"lease {record.key} is claimed by {record.claim}")

    def _is_ours(self, found: Versioned, worker: str) -> bool:
        key = (found.record.key, worker)
        return (
            found.record.holder == worker
            and found.fence != 0
            and self._fence_by_lease.get(key) == found.fence
        )

    async def _listing(self) -> Mapping[str, LeaseRecord]:
        now_seconds = self._clock.monotonic_seconds()
        if self._list_again_seconds is None or now_seconds >= self._list_again_seconds:
            self._listed = {each.record.key: each.record async for each in self._store.scan()}
            self._list_again_seconds = now_seconds + self._listing_seconds
        return self._listed


def _not_held(held: Versioned) -> ShutdownError:
    return ShutdownError(
        f"lease {held.record.key} is not held by {held.record.holder} any more: stop processing"
    )


class SyncShardCheckpointer(OnStoreThread[ShardCheckpointer]):
    """A blocking `ShardCheckpointer` on a dedicated event-loop thread; its methods raise the same errors."""

    def __init__(
        self,
        open_store: OpenStore,
        *,
        expiry: Expiry | None = None,
        claim_timeout_seconds: float | None = CLAIM_TIMEOUT_SECONDS,
    ) -> None:
        """Open the store on the thread.

        Args:
            open_store: Called there once; e.g. `lambda: nullcontext(DynamoRecordStore(client, "my-application"))`.
            expiry: See `ShardCheckpointer`; used on the thread only.
            claim_timeout_seconds: See `ShardCheckpointer`.
        """
        super().__init__(
            open_store,
            lambda store: ShardCheckpointer(
                store,
                expiry=expiry,
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
