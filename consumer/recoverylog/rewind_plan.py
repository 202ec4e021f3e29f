"""The plan of a rewind of a shard to a backup of its hints: one transaction as data, or the refusal.

    primary ◄── backup n          the hints of the next recovery
    backup n ◄── former primary   so the same rewind again undoes it

Unreadable hints are moved to `{key}.unreadable`, because no recovery begins as long as there is one. Where no backup
can be read, and the log has its beginning still, all hints are moved away (readable ones to `{key}.set-aside`), and the
next recovery plays the whole log.

A primary would soon overwrite the hints, and a standby has played the log already and does not read them. So a shard
with a primary is refused, or, by force, loses all its replicas in the same transaction. The transaction compares
everything that was read; for assignments also that there are no others.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broadsheet.allocator.model import Assignment
from broadsheet.allocator.ops import (
    Compare,
    Delete,
    KeyValue,
    Operation,
    Put,
    TxnCheckpoint,
    prefix_range_end,
)
from broadsheet.consumer.errors import HintsError
from broadsheet.consumer.recoverylog.fsm import live_segments
from broadsheet.consumer.recoverylog.hints import (
    backup_hints_keys,
    decode_hints,
    has_recovery_log,
    primary_hints_key,
    recovery_log_of,
)
from broadsheet.consumer.registry.key_space import PRIMARY_SLOT, is_failed
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.recovery_pb2 import HintsSummary, Rewind, RewindStatus
from broadsheet.wire.shard_pb2 import ShardSpec

UNREADABLE_SUFFIX = b".unreadable"
SET_ASIDE_SUFFIX = b".set-aside"
BACKUPS_MAX = 100
"""Maximum backups read: with the rest they fit into one transaction of 128 operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindBasis:
    """The state of a shard in etcd at one revision."""

    spec: ShardSpec
    spec_kv: KeyValue
    hints: dict[bytes, KeyValue]
    """Existing values of the keys of `hint_keys_of`."""
    assignments: Sequence[Assignment]
    """Ordered by key."""
    assignments_prefix: bytes
    log_begin: int = 0
    """Offset of the first byte that the log still has."""


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """The plan of a rewind."""

    status: RewindStatus.ValueType
    rewind: Rewind
    checkpoint: TxnCheckpoint | None = None
    """The transaction to perform, if the status is OK."""


def hint_keys_of(spec: ShardSpec) -> tuple[bytes, ...]:
    """Return the keys of a shard's hints that a rewind reads, the primary's first."""
    return (primary_hints_key(spec), *backup_hints_keys(spec)[:BACKUPS_MAX])


def plan_rewind(basis: RewindBasis, *, backup: int | None, force: bool) -> RewindPlan:
    """Plan to put backup number `backup`, from 0, in place of the primary hints.

    Args:
        basis: The current state of the shard.
        backup: Number of the backup; 0 is the newest. None: no hints at all, so that the whole log is played.
        force: Remove all replicas, if the shard has a primary.
    """
    spec, log = basis.spec, recovery_log_of(basis.spec)
    rewind = Rewind(log=log)
    if not has_recovery_log(spec):
        return RewindPlan(RewindStatus.REWIND_STATUS_NO_RECOVERY_LOG, rewind)
    if backup is None:
        return _plan_whole_log(basis, rewind, force=force)
    primary_key, *backup_keys = hint_keys_of(spec)
    chosen = basis.hints.get(backup_keys[backup]) if backup < len(backup_keys) else None
    if chosen is None:
        return RewindPlan(RewindStatus.REWIND_STATUS_BACKUP_NOT_FOUND, rewind)
    rewind.restored.CopyFrom(summary_of(chosen.value, log))
    if rewind.restored.unreadable:
        return RewindPlan(RewindStatus.REWIND_STATUS_BACKUP_UNREADABLE, rewind)
    operations: list[Operation] = [Put(primary_key, chosen.value)]
    replaced = basis.hints.get(primary_key)
    if replaced is not None:
        rewind.replaced.CopyFrom(summary_of(replaced.value, log))
        # Readable hints swap places with the backup, so that the same rewind undoes this one. Unreadable hints must not
        # stay under a backup's key, because no recovery begins then.
        kept_at = primary_key + UNREADABLE_SUFFIX if rewind.replaced.unreadable else chosen.key
        rewind.kept_at = kept_at.decode()
        operations.append(Put(kept_at, replaced.value))
    operations += _set_aside(basis, rewind, primary_key)
    return _planned(basis, rewind, operations, force=force)


def _plan_whole_log(basis: RewindBasis, rewind: Rewind, *, force: bool) -> RewindPlan:
    if basis.log_begin > 0:
        return RewindPlan(RewindStatus.REWIND_STATUS_LOG_PRUNED, rewind)
    rewind.restored.SetInParent()
    primary_key = primary_hints_key(basis.spec)
    operations: list[Operation] = []
    for key, kv in sorted(basis.hints.items()):
        summary = summary_of(kv.value, rewind.log)
        aside = key + (UNREADABLE_SUFFIX if summary.unreadable else SET_ASIDE_SUFFIX)
        operations += (Put(aside, kv.value), Delete(key))
        if key == primary_key:
            rewind.replaced.CopyFrom(summary)
            rewind.kept_at = aside.decode()
        else:
            rewind.set_aside.append(aside.decode())
    return _planned(basis, rewind, operations, force=force)


def _planned(
    basis: RewindBasis, rewind: Rewind, operations: Sequence[Operation], *, force: bool
) -> RewindPlan:
    """Return the plan of a transaction that changes the hints, if no primary stands in the way."""
    removals = _removals(basis, rewind, force=force)
    if removals is None:
        return RewindPlan(RewindStatus.REWIND_STATUS_HAS_PRIMARY, rewind)
    compares = (*_unchanged_hints(basis), *_unchanged_assignments(basis))
    checkpoint = TxnCheckpoint(compares, (*operations, *removals))
    return RewindPlan(RewindStatus.REWIND_STATUS_OK, rewind, checkpoint)


def summary_of(value: bytes, log: str) -> HintsSummary:
    """Describe stored hints, which should be those of `log`."""
    try:
        hints = decode_hints(value)
        if hints.log != log:
            return HintsSummary(
                unreadable=f"log: expected {log!r} as in the spec, got {hints.log!r}"
            )
        return _summary(hints)
    except HintsError as error:
        return HintsSummary(unreadable=error.detail)
    except ValueError as error:
        return HintsSummary(unreadable=str(error))


def _summary(hints: FSMHints) -> HintsSummary:
    fnodes, segments = live_segments(hints)
    held = list(segments)
    return HintsSummary(
        files=len(fnodes),
        first_offset=held[0].first_offset if held else 0,
        last_seq_no=held[-1].last_seq if held else 0,
    )


def _set_aside(basis: RewindBasis, rewind: Rewind, primary_key: bytes) -> list[Operation]:
    """Move unreadable backups away. An unreadable primary needs no move, because it is replaced and kept anyway."""
    operations: list[Operation] = []
    for key, kv in sorted(basis.hints.items()):
        if key == primary_key or not summary_of(kv.value, rewind.log).unreadable:
            continue
        aside = key + UNREADABLE_SUFFIX
        operations += (Put(aside, kv.value), Delete(key))
        rewind.set_aside.append(aside.decode())
    return operations


def _removals(basis: RewindBasis, rewind: Rewind, *, force: bool) -> list[Operation] | None:
    """Return the operations that remove all replicas, and list them; None if a primary forbids the rewind."""
    has_primary = False
    for assignment in basis.assignments:
        member = str(assignment.member_id)
        if is_failed(assignment):
            rewind.failed.append(member)
        elif assignment.slot == PRIMARY_SLOT:
            has_primary = True
        else:
            rewind.standbys.append(member)
    if not force:
        return None if has_primary else []
    # By force all replicas are removed, so none is listed as staying.
    del rewind.failed[:], rewind.standbys[:]
    rewind.unassigned.extend(str(each.member_id) for each in basis.assignments)
    return [Delete(each.kv.key) for each in basis.assignments]


def _unchanged_hints(basis: RewindBasis) -> list[Compare]:
    revisions = {
        key: basis.hints[key].mod_revision if key in basis.hints else 0
        for key in hint_keys_of(basis.spec)
    }
    return [
        Compare.mod_revision(basis.spec_kv.key, basis.spec_kv.mod_revision),
        *(Compare.mod_revision(key, revision) for key, revision in revisions.items()),
    ]


def _unchanged_assignments(basis: RewindBasis) -> list[Compare]:
    """Require the same assignments and no others.

    A replica that failed must still be failed; the status of other replicas may change.
    """
    compares: list[Compare] = []
    begin = basis.assignments_prefix
    for assignment in sorted(basis.assignments, key=lambda each: each.kv.key):
        kv = assignment.kv
        compares.append(Compare.none_between(begin, kv.key))
        compares.append(
            Compare.mod_revision(kv.key, kv.mod_revision)
            if is_failed(assignment)
            else Compare.create_revision(kv.key, kv.create_revision)
        )
        begin = kv.key + b"\x00"
    compares.append(Compare.none_between(begin, prefix_range_end(basis.assignments_prefix)))
    return compares
