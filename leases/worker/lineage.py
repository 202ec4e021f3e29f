r"""Shard lineage: the shards that get a lease, and the finished leases that can be deleted.

    0 1 2 3   4   5
    \ / \ /   |  / \        Begun at the oldest record: leases for 0 to 5.
     6   7    4 9  10       Begun at the latest: for what is open, 4, 8, 9, 10.
      \ /                   The others follow when their parents end.
       8

So every lineage of shards is covered once: each record belongs to exactly one lease.

Source: awslabs/amazon-kinesis-client leases.HierarchicalShardSyncer (which shards are covered),
leases.LeaseCleanupManager (when a lease is deleted).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from broadsheet.leases.position import LATEST, Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.worker.source import SourceShard


def missing_leases(
    shards: Sequence[SourceShard], leased: Collection[str], *, start: Position
) -> tuple[LeaseRecord, ...]:
    """Return the leases to create when a worker starts, older shards first.

    Args:
        shards: What the stream lists, older ones first.
        leased: Keys of the leases that are there; quick to search.
        start: Where an application that was never run begins: `TRIM_HORIZON`, `LATEST` or `AT_TIMESTAMP`.
    """
    uncovered = _Search(shards, leased, only_newest=start.seq == LATEST).uncovered()
    return tuple(lease_of(shard, checkpoint=start) for shard in shards if shard.key in uncovered)


def lease_of(shard: SourceShard, *, checkpoint: Position) -> LeaseRecord:
    """Return the initial lease of a shard."""
    return LeaseRecord(
        key=shard.key,
        checkpoint=checkpoint,
        parents=frozenset(shard.parents),
        hash_range=shard.hash_range,
    )


def children_of(shards: Sequence[SourceShard], parent: str) -> tuple[SourceShard, ...]:
    """Return the shards that a shard was split or merged into, older ones first."""
    return tuple(shard for shard in shards if parent in shard.parents)


def lone_parents(child: SourceShard, leased: Collection[str]) -> tuple[str, ...]:
    """Return the parents without a lease while another parent has one: such a child must wait for its lease.

    Both parents' leases exist while either is processed, and neither once the child has begun. Any other state means
    that another worker is just creating or cleaning up.
    """
    absent = tuple(parent for parent in child.parents if parent not in leased)
    return absent if len(absent) < len(child.parents) else ()


def deletable(
    records: Mapping[str, LeaseRecord],
    listed: Collection[str],
    *,
    now_missing: Collection[str],
    unreadable: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the leases that are not needed any more, in order.

    A finished lease is not needed once all its children have begun and its own parents are gone. A lease whose shard
    the stream does not list any more is not needed at all, unless a worker holds it.

    Args:
        records: All leases that can be read, by key.
        listed: Keys of the shards that the stream lists.
        now_missing: Keys that were not listed when asked before, either; a listing may come late.
        unreadable: Keys of the rows that cannot be read: they are there, and count as not finished.
    """
    return tuple(
        key
        for key, record in sorted(records.items())
        if _is_done(record, records, unreadable)
        or (key not in listed and key in now_missing and record.holder is None)
    )


def _is_done(
    record: LeaseRecord, records: Mapping[str, LeaseRecord], unreadable: Collection[str]
) -> bool:
    if not record.is_finished:
        return False
    if any(parent in records or parent in unreadable for parent in record.parents):
        return False
    children = [records.get(key) for key in record.children]
    return bool(children) and all(child is not None and _has_begun(child) for child in children)


def _has_begun(record: LeaseRecord) -> bool:
    """Tell whether a shard's processor has checkpointed; only then are its parents' leases not needed."""
    checkpoint = record.checkpoint
    return checkpoint is not None and (not checkpoint.is_name or checkpoint.is_end)


class _Search:
    """Search from the open shards back to those with a lease, or to the oldest."""

    def __init__(
        self, shards: Sequence[SourceShard], leased: Collection[str], *, only_newest: bool
    ) -> None:
        self._shard_by_key = {shard.key: shard for shard in shards}
        self._leased = leased
        self._only_newest = only_newest
        self._covered: dict[str, bool] = {}
        self._found: set[str] = set()
        parents = {parent for shard in shards for parent in shard.parents}
        self._open = [shard.key for shard in shards if shard.key not in parents]

    def uncovered(self) -> set[str]:
        """Return the shards that need a lease."""
        for key in self._open:
            if not self._is_covered(key):
                self._found.add(key)
        return self._found

    def _is_covered(self, key: str) -> bool:
        """Tell whether a shard has a lease, or will get one when a parent ends; note its ancestors that lack one."""
        if key not in self._covered:
            self._covered[key] = key in self._leased or self._cover_by_parents(key)
        return self._covered[key]

    def _cover_by_parents(self, key: str) -> bool:
        parents = [
            parent for parent in self._shard_by_key[key].parents if parent in self._shard_by_key
        ]
        lacking = [parent for parent in parents if not self._is_covered(parent)]
        if len(lacking) < len(parents):
            self._found.update(lacking)
            return True
        if not self._only_newest:
            self._found.add(key)
            return True
        return False
