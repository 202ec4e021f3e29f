"""The transactions of splits and merges in etcd, as data: comparisons and operations that belong together.

    begin      the parent's labels, the child's spec, the record          parent unchanged, child absent, family as read
    hold       fork-hold                                                  our assignment, the record, no other hold
    release    fork-hold deleted                                          it is this attempt's
    flip       both specs, the child's hints, the record, the family      everything that the fork relies on
    cancel     child's spec, record and hold deleted                      the child is a fork still

    begin      the survivor's label, the record                           both unchanged, no other merge, family as read
    merge flip the survivor's range, the other's spec deleted, family     everything that the merge relies on
    cancel     label, record and hold deleted                             the survivor absorbs still

    delete     records and holds of shards that are deleted               as the deletion says

The hold decides between flip, `release` and cancel: each deletes it, so one of them succeeds. A shard that rests and
finds its hold gone reads its spec to see what became of it. `hold` and `release` are the same for both kinds: the shard
that rests is a split's parent, or the shard that is absorbed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import (
    Compare,
    CompareTarget,
    Delete,
    KeyValue,
    Operation,
    Put,
    TxnCheckpoint,
)
from broadsheet.consumer.elastic.family import Ownership, family_key
from broadsheet.consumer.elastic.fork import (
    ForkHold,
    ForkPhase,
    ForkRecord,
    encode_fork,
    encode_hold,
    fork_key,
    hold_key,
)
from broadsheet.consumer.elastic.merge import MergeRecord, encode_merge, merge_key
from broadsheet.consumer.elastic.merge_plan import MergePlan, joined, merged, without_absorbed
from broadsheet.consumer.elastic.split_plan import SplitPlan, narrowed, without_fork
from broadsheet.consumer.recoverylog.hints import primary_hints_key
from broadsheet.wire.key_range import KeyRange
from broadsheet.wire.shard_pb2 import ShardSpec


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key that a holder relies on: an assignment, by the revision that created it."""

    key: bytes
    create_revision: int

    @classmethod
    def of(cls, kv: KeyValue) -> HeldKey:
        """Return that of an assignment as observed."""
        return cls(kv.key, kv.create_revision)

    @property
    def unchanged(self) -> Compare:
        """The comparison: it is the same life of the key."""
        return Compare.create_revision(self.key, self.create_revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Answer of a primary that rests."""

    assignment: HeldKey
    """Its own."""
    read_through: Mapping[str, int] = field(default_factory=dict)
    """Where it stands, bytes by journal: all before is handled, nothing behind. Of a merge alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A parent that rests: what its answer says."""

    assignment: HeldKey
    """Of the parent's primary."""
    hold: ForkHold


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A fork that can be committed."""

    parent: ShardSpec
    """As stored, with the whole range."""
    parent_revision: int
    """That wrote it."""
    child: ShardSpec
    child_revision: int
    child_assignment: HeldKey
    prepared: Prepared
    hints: bytes
    """Of the child, encoded: they end in its own log."""


def begin_txn(
    plan: SplitPlan, keys: Keys, *, parent_revision: int, family_revision: int
) -> TxnCheckpoint:
    """Return the transaction that begins a split.

    Args:
        plan: The split.
        keys: Of the root.
        parent_revision: That wrote the parent's spec as planned with.
        family_revision: Of the family's key; 0: it is absent.
    """
    root, family = keys.root, Ownership.of(plan.parent).family
    parent_key = keys.item(ItemId(plan.parent.id))
    child_key = keys.item(ItemId(plan.child.id))
    record = ForkRecord(parent=plan.parent.id, begin=plan.given.begin, end=plan.given.end)
    return TxnCheckpoint(
        (
            Compare.mod_revision(parent_key, parent_revision),
            # A record that is there without a child is of one that was deleted: it is overwritten.
            Compare.absent(child_key),
            Compare.mod_revision(family_key(root, family), family_revision),
        ),
        (
            Put(parent_key, _encoded(plan.parent)),
            Put(child_key, _encoded(plan.child)),
            Put(fork_key(root, plan.child.id), encode_fork(record)),
            Put(family_key(root, family), b""),
        ),
        plan.parent.id,
    )


def hold_txn(
    keys: Keys, parent: str, *, assignment: HeldKey, child_revision: int, hold: ForkHold
) -> TxnCheckpoint:
    """Return the transaction by which a parent's primary rests.

    Args:
        keys: Of the root.
        parent: Its id.
        assignment: Of the primary.
        child_revision: That wrote the fork's spec: it is not cancelled.
        hold: For which attempt.
    """
    key = hold_key(keys.root, parent)
    return TxnCheckpoint(
        (
            assignment.unchanged,
            Compare.mod_revision(keys.item(ItemId(hold.child)), child_revision),
            Compare.absent(key),
        ),
        (Put(key, encode_hold(hold)),),
        parent,
    )


def release_txn(keys: Keys, parent: str, hold: bytes) -> TxnCheckpoint:
    """Return the transaction that ends a hold, unless a flip or a cancellation has ended it.

    Args:
        keys: Of the root.
        parent: Whose hold.
        hold: Its value.
    """
    key = hold_key(keys.root, parent)
    return TxnCheckpoint((_equals(key, hold),), (Delete(key),), parent)


def flip_txn(flip: Flip, keys: Keys) -> TxnCheckpoint:
    """Return the transaction that commits a fork: from it on the child owns its keys, and the parent the others."""
    root, owned = keys.root, Ownership.of(flip.parent)
    given = Ownership.of(flip.child).owned
    kept = KeyRange(owned.owned.begin, given.begin)
    parent_key = keys.item(ItemId(flip.parent.id))
    child_key = keys.item(ItemId(flip.child.id))
    hold = hold_key(root, flip.parent.id)
    record = ForkRecord(
        parent=flip.parent.id, begin=given.begin, end=given.end, phase=ForkPhase.PURGING
    )
    operations: tuple[Operation, ...] = (
        Put(parent_key, _encoded(narrowed(flip.parent, kept))),
        Put(child_key, _encoded(without_fork(flip.child))),
        Put(primary_hints_key(flip.child), flip.hints),
        Put(fork_key(root, flip.child.id), encode_fork(record)),
        Put(family_key(root, owned.family), b""),
        Delete(hold),
    )
    return TxnCheckpoint(
        (
            flip.child_assignment.unchanged,
            Compare.mod_revision(parent_key, flip.parent_revision),
            flip.prepared.assignment.unchanged,
            _equals(hold, encode_hold(flip.prepared.hold)),
            Compare.mod_revision(child_key, flip.child_revision),
        ),
        operations,
        flip.child.id,
    )


def cancel_txn(child: ShardSpec, child_revision: int, parent: str, keys: Keys) -> TxnCheckpoint:
    """Return the transaction that gives a split up before its flip.

    Args:
        child: The fork, as stored.
        child_revision: That wrote its spec: a flip writes another one.
        parent: Its parent's id.
        keys: Of the root.
    """
    child_key = keys.item(ItemId(child.id))
    return TxnCheckpoint(
        (Compare.mod_revision(child_key, child_revision),),
        (
            Delete(child_key),
            Delete(fork_key(keys.root, child.id)),
            Delete(hold_key(keys.root, parent)),
            Put(family_key(keys.root, Ownership.of(child).family), b""),
        ),
        child.id,
    )


def progress_txn(
    keys: Keys, child: str, before: KeyValue, after: ForkRecord, assignment: HeldKey
) -> TxnCheckpoint:
    """Return the transaction that writes how far a split is; a record that is over is deleted.

    Args:
        keys: Of the root.
        child: Whose record.
        before: The record's key, as read.
        after: What it becomes.
        assignment: Of the writer.
    """
    is_over = {after.parent, child} <= set(after.purged)
    operation: Operation = Delete(before.key) if is_over else Put(before.key, encode_fork(after))
    return TxnCheckpoint(
        (assignment.unchanged, Compare.mod_revision(before.key, before.mod_revision)),
        (operation,),
        child,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFlip:
    """A merge that can be committed."""

    survivor: ShardSpec
    """As stored: it absorbs the other one."""
    survivor_revision: int
    """That wrote it."""
    survivor_assignment: HeldKey
    absorbed: ShardSpec
    absorbed_revision: int
    prepared: Prepared
    """Of the absorbed shard."""


def begin_merge_txn(
    plan: MergePlan,
    keys: Keys,
    *,
    survivor_revision: int,
    absorbed_revision: int,
    family_revision: int,
) -> TxnCheckpoint:
    """Return the transaction that begins a merge.

    Args:
        plan: The merge.
        keys: Of the root.
        survivor_revision: That wrote the survivor's spec as planned with.
        absorbed_revision: That wrote the other one's.
        family_revision: Of the family's key; 0: it is absent.
    """
    root = keys.root
    family = family_key(root, Ownership.of(plan.survivor).family)
    survivor_key = keys.item(ItemId(plan.survivor.id))
    record = MergeRecord(absorbed=plan.absorbed.id, begin=plan.given.begin, end=plan.given.end)
    return TxnCheckpoint(
        (
            Compare.mod_revision(survivor_key, survivor_revision),
            Compare.mod_revision(keys.item(ItemId(plan.absorbed.id)), absorbed_revision),
            Compare.mod_revision(family, family_revision),
        ),
        (
            Put(survivor_key, _encoded(plan.survivor)),
            Put(merge_key(root, plan.survivor.id), encode_merge(record)),
            Put(family, b""),
        ),
        plan.survivor.id,
    )


def merge_flip_txn(flip: MergeFlip, keys: Keys) -> TxnCheckpoint:
    """Return the transaction that commits a merge: from it on the survivor owns the keys of both."""
    root, held, given = keys.root, Ownership.of(flip.survivor), Ownership.of(flip.absorbed)
    survivor_key = keys.item(ItemId(flip.survivor.id))
    absorbed_key = keys.item(ItemId(flip.absorbed.id))
    hold = hold_key(root, flip.absorbed.id)
    return TxnCheckpoint(
        (
            flip.survivor_assignment.unchanged,
            Compare.mod_revision(survivor_key, flip.survivor_revision),
            flip.prepared.assignment.unchanged,
            _equals(hold, encode_hold(flip.prepared.hold)),
            Compare.mod_revision(absorbed_key, flip.absorbed_revision),
        ),
        (
            Put(survivor_key, _encoded(merged(flip.survivor, joined(held.owned, given.owned)))),
            Delete(absorbed_key),
            Delete(merge_key(root, flip.survivor.id)),
            Put(family_key(root, held.family), b""),
            Delete(hold),
        ),
        flip.survivor.id,
    )


def cancel_merge_txn(survivor: ShardSpec, survivor_revision: int, keys: Keys) -> TxnCheckpoint:
    """Return the transaction that gives a merge up before its flip.

    Args:
        survivor: As stored.
        survivor_revision: That wrote its spec: a flip writes another one.
        keys: Of the root.
    """
    held = Ownership.of(survivor)
    survivor_key = keys.item(ItemId(survivor.id))
    return TxnCheckpoint(
        (Compare.mod_revision(survivor_key, survivor_revision),),
        (
            Put(survivor_key, _encoded(without_absorbed(survivor))),
            Delete(merge_key(keys.root, survivor.id)),
            Delete(hold_key(keys.root, held.absorbs)),
            Put(family_key(keys.root, held.family), b""),
        ),
        survivor.id,
    )


def forget_txn(keys: Keys, survivor: str, absorbed: str, assignment: HeldKey) -> TxnCheckpoint:
    """Return the transaction by which a survivor's primary ends what former attempts of a merge began.

    No flip of theirs can succeed behind it, so the spec says which keys are ours.

    Args:
        keys: Of the root.
        survivor: Its id.
        absorbed: Whose hold.
        assignment: Of the survivor's primary.
    """
    return TxnCheckpoint(
        (assignment.unchanged,), (Delete(hold_key(keys.root, absorbed)),), survivor
    )


def merge_progress_txn(
    survivor: str, before: KeyValue, after: MergeRecord, assignment: HeldKey
) -> TxnCheckpoint:
    """Return the transaction that writes how far a merge is.

    Args:
        survivor: Whose record.
        before: The record's key, as read.
        after: What it becomes.
        assignment: Of the writer.
    """
    return TxnCheckpoint(
        (assignment.unchanged, Compare.mod_revision(before.key, before.mod_revision)),
        (Put(before.key, encode_merge(after)),),
        survivor,
    )


def abandoned_keys(root: str, deleted: ShardSpec) -> tuple[bytes, ...]:
    """Return the keys that mean nothing once a shard is deleted: of the splits and merges in which it has a part.

    The deletion of a fork is the cancellation of its split: the parent goes on as behind one.

    Args:
        root: Of the cluster.
        deleted: As stored.
    """
    owned = Ownership.of(deleted)
    resting = (deleted.id, owned.fork_of, owned.absorbs)
    return (
        fork_key(root, deleted.id),
        merge_key(root, deleted.id),
        *(hold_key(root, each) for each in resting if each),
    )


def _equals(key: bytes, value: bytes) -> Compare:
    return Compare(key, CompareTarget.VALUE, value)


def _encoded(spec: ShardSpec) -> bytes:
    return spec.SerializeToString(deterministic=True)
