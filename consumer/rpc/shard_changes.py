"""Transactions of Apply and Unassign, as data, and the authorization of their callers.

A caller whose token selects shards by label must match both the shard as it *is* and as it *becomes*. Otherwise it
could take over a shard that it cannot see by overwriting its labels. The present spec must be unchanged when the
transaction commits, so the revision that was judged is compared too.

Source: gazette/core consumer/shard_api.go (Apply, Unassign); the two-sided authorization is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment, Item, ItemId
from broadsheet.allocator.ops import (
    TXN_OPERATIONS_MAX,
    Compare,
    Delete,
    Operation,
    Put,
    TxnCheckpoint,
)
from broadsheet.consumer.recoverylog.hints import primary_hints_key
from broadsheet.consumer.registry.key_space import (
    PRIMARY_SLOT,
    ShardKeySpace,
    is_failed,
    is_visible,
    spec_of,
)
from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import is_scoped
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec

UNCONDITIONAL = -1
"""`expect_mod_revision` of a change that overwrites whatever is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSpec:
    """A spec as etcd holds it now."""

    spec: ShardSpec
    mod_revision: int


@dataclass(slots=True)
class _Draft:
    compares: list[Compare] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    def finish(self) -> TxnCheckpoint:
        return TxnCheckpoint(tuple(dict.fromkeys(self.compares)), tuple(self.operations))


def plan_apply(
    changes: Sequence[ApplyRequest.Change],
    keys: Keys,
    *,
    allowed: LabelSelector,
    stored: Mapping[str, StoredSpec],
    encode_hints: Callable[[FSMHints], bytes],
) -> TxnCheckpoint:
    """Return the one transaction that makes every change.

    Args:
        changes: Valid changes.
        keys: Where specs are kept.
        allowed: The caller's claims.
        stored: Present specs by shard id; looked at only if `allowed` restricts the caller.
        encode_hints: How primary hints are written.

    Raises:
        NotAuthorizedError: the claims do not cover a shard as it would be, or one to be deleted.
        ValidationError: two changes are of one shard.
        BoundExceededError: there is more than one transaction takes.
    """
    draft = _Draft()
    seen: set[str] = set()
    for index, change in enumerate(changes):
        shard_id = change.upsert.id or change.delete
        if shard_id in seen:
            raise ValidationError(
                f"changes[{index}]", f"expected one change a shard, got a second of {shard_id!r}"
            )
        seen.add(shard_id)
        held = stored.get(shard_id)
        if is_scoped(allowed):
            _authorize_change(draft, change, keys, allowed=allowed, stored=held)
        if not (change.delete and held is not None and not is_visible(held.spec, allowed)):
            _add_change(draft, change, keys, encode_hints)
    checkpoint = draft.finish()
    require_bound(checkpoint, what=f"{len(changes)} changes", field_name="changes")
    return checkpoint


def certainly_writes(changes: Sequence[ApplyRequest.Change]) -> bool:
    """Report whether a successful transaction must have written something: deletions alone may find nothing."""
    return any(
        change.HasField("upsert") or change.expect_mod_revision != UNCONDITIONAL
        for change in changes
    )


def plan_unassign(
    shard_ids: Sequence[str],
    key_space: ShardKeySpace,
    keys: Keys,
    *,
    allowed: LabelSelector,
    only_failed: bool,
) -> tuple[TxnCheckpoint, tuple[str, ...]]:
    """Return the transaction that takes replicas away, and the affected shards in the order of the request.

    Failed replicas are removed; unless `only_failed`, the primary is removed too. Healthy standbys stay, so that one
    takes over. Shards that do not exist, or that the claims do not cover, are skipped.

    Raises:
        BoundExceededError: there is more than one transaction takes.
    """
    draft = _Draft()
    affected: list[str] = []
    for shard_id in dict.fromkeys(shard_ids):
        item_id = ItemId(shard_id)
        item = key_space.items.get(item_id)
        # What the caller may not see does not exist for it.
        if item is None or not is_visible(spec_of(item), allowed):
            continue
        removed = [
            assignment
            for assignment in key_space.assignments_of(item_id)
            if _is_unassigned(assignment, only_failed=only_failed)
        ]
        if removed:
            affected.append(shard_id)
            _add_removals(draft, removed, item, keys, guarded=is_scoped(allowed))
    checkpoint = draft.finish()
    require_bound(checkpoint, what=f"{len(affected)} shards", field_name="shards")
    return checkpoint, tuple(affected)


def _authorize_change(
    draft: _Draft,
    change: ApplyRequest.Change,
    keys: Keys,
    *,
    allowed: LabelSelector,
    stored: StoredSpec | None,
) -> None:
    if change.HasField("upsert"):
        _authorize_spec(change.upsert, allowed)
    key = keys.item(ItemId(change.upsert.id or change.delete))
    is_hidden = stored is not None and not is_visible(stored.spec, allowed)
    if change.delete and (stored is None or is_hidden):
        # Only the id can be judged of a shard that is absent, or hidden, which must look the same.
        _authorize_spec(ShardSpec(id=change.delete), allowed)
    if stored is None:
        draft.compares.append(Compare.mod_revision(key, 0))
        return
    draft.compares.append(Compare.mod_revision(key, stored.mod_revision))
    # A hidden shard is judged as an absent one: what would create it finds its key taken, what would change it finds
    # another revision, and its deletion finds nothing to delete.
    if is_hidden and (change.HasField("upsert") or change.expect_mod_revision > 0):
        draft.compares.append(Compare.mod_revision(key, 0))


def _authorize_spec(spec: ShardSpec, allowed: LabelSelector) -> None:
    if not is_visible(spec, allowed):
        raise NotAuthorizedError(f"shard {spec.id}: the token's selector does not cover its labels")


def _add_change(
    draft: _Draft,
    change: ApplyRequest.Change,
    keys: Keys,
    encode_hints: Callable[[FSMHints], bytes],
) -> None:
    key = keys.item(ItemId(change.upsert.id or change.delete))
    if change.expect_mod_revision != UNCONDITIONAL:
        draft.compares.append(Compare.mod_revision(key, change.expect_mod_revision))
    if not change.HasField("upsert"):
        draft.operations.append(Delete(key))
        return
    # Deterministic, so that applying an equal spec writes equal bytes.
    draft.operations.append(Put(key, change.upsert.SerializeToString(deterministic=True)))
    if change.HasField("primary_hints"):
        draft.operations.append(
            Put(primary_hints_key(change.upsert), encode_hints(change.primary_hints))
        )


def _is_unassigned(assignment: Assignment, *, only_failed: bool) -> bool:
    return is_failed(assignment) or (assignment.slot == PRIMARY_SLOT and not only_failed)


def _add_removals(
    draft: _Draft, removed: Sequence[Assignment], item: Item, keys: Keys, *, guarded: bool
) -> None:
    if guarded:
        draft.compares.append(Compare.mod_revision(keys.item(item.item_id), item.kv.mod_revision))
    for assignment in removed:
        key = assignment.kv.key
        # A replica removed because it failed must still be failed. A primary is removed whatever its status, so a
        # status that it writes at this moment is no conflict.
        draft.compares.append(
            Compare.mod_revision(key, assignment.kv.mod_revision)
            if is_failed(assignment)
            else Compare.create_revision(key, assignment.kv.create_revision)
        )
        draft.operations.append(Delete(key))


def require_bound(checkpoint: TxnCheckpoint, *, what: str, field_name: str) -> None:
    """Check that one transaction of etcd takes a checkpoint.

    Raises:
        BoundExceededError: it has too many operations, or comparisons.
    """
    largest = max(len(checkpoint.operations), len(checkpoint.compares))
    if largest > TXN_OPERATIONS_MAX:
        raise BoundExceededError(
            f"{field_name}: {what} make {largest} operations, one transaction of etcd takes "
            f"{TXN_OPERATIONS_MAX}; send batches of at most {TXN_OPERATIONS_MAX} "
            "(fewer with hints; shardctl's --max-txn-size does it)"
        )
