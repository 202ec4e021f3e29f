"""Import plan: the step for each record, decided from the wanted and the existing records (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Final

from broadsheet.leases.compare_and_swap import compare_and_swap, verdict_of_taker
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.migration.layouts import RecordLayout
from broadsheet.leases.migration.merge import carried, merged
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import RecordStore

_NOT_COMPARED: Final = frozenset({"counter", "owner_switches", "write_id", "claim"})
"""Fields that do not tell how far a shard is processed: records that differ only in them count as equal."""


class MigrationStep(Enum):
    """Step of an import for a record."""

    CREATE = "create"
    UPDATE = "update"
    SAME = "same"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The planned step for one record, and its reason."""

    key: str
    step: MigrationStep
    wanted: LeaseRecord
    """The record to be imported."""
    before: Versioned | None
    """The existing record."""
    after: LeaseRecord | None = None
    """The record after the step, if it is created or updated."""
    changed: tuple[str, ...] = ()
    """The fields that an update changes."""
    conflicts: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    """Its parts that the layout's own programs cannot see, though we keep them there."""


def plan_import(
    wanted: Iterable[LeaseRecord],
    there: Mapping[str, Versioned],
    layout: RecordLayout,
    *,
    owners: bool = False,
    force: bool = False,
) -> tuple[Action, ...]:
    """Plan an import, in the order of keys. It is idempotent: once carried out, the next plan changes nothing.

    Args:
        wanted: The records to be moved; of each key one.
        there: The records of the target by key.
        layout: What the target can hold.
        owners: Move owners too; without, workers acquire the leases again.
        force: Let wanted records win where those that are there are further, or say something else.
    """
    return tuple(
        _action(record, there.get(record.key), layout, owners=owners, force=force)
        for record in sorted(wanted, key=lambda record: record.key)
    )


def _action(
    record: LeaseRecord,
    before: Versioned | None,
    layout: RecordLayout,
    *,
    owners: bool,
    force: bool,
) -> Action:
    wanted = carried(record, owners=owners)
    refusal = layout.refusal(wanted)
    if refusal is not None:
        return Action(
            key=record.key,
            step=MigrationStep.CONFLICT,
            wanted=wanted,
            before=before,
            conflicts=(refusal,),
        )
    if before is None:
        return Action(
            key=record.key,
            step=MigrationStep.CREATE,
            wanted=wanted,
            before=None,
            after=wanted,
            unseen=layout.unseen(wanted),
        )
    return _onto(wanted, before, layout, owners=owners, force=force)


def _onto(
    wanted: LeaseRecord,
    before: Versioned,
    layout: RecordLayout,
    *,
    owners: bool,
    force: bool,
) -> Action:
    """Plan the step for a record that exists."""
    there = before.record
    found = merged(wanted, there)
    target = found.record
    acquires = owners and wanted.owner is not None
    if acquires:
        target = replace(target, owner=wanted.owner, handoff_from=wanted.handoff_from)
    changed = _changed(there, target)
    conflicts = () if force else found.conflicts
    if (changed or conflicts) and before.fence:
        conflicts += (f"it is held by {there.holder}: stop its workers, or evict it",)
    step = (
        MigrationStep.CONFLICT
        if conflicts
        else MigrationStep.UPDATE
        if changed
        else MigrationStep.SAME
    )
    after = None
    if step is MigrationStep.UPDATE:
        after = _written(wanted, there, target, acquires=acquires)
    return Action(
        key=wanted.key,
        step=step,
        wanted=wanted,
        before=before,
        after=after,
        changed=changed,
        conflicts=conflicts,
        unseen=() if after is None else layout.unseen(after),
    )


def _changed(there: LeaseRecord, target: LeaseRecord) -> tuple[str, ...]:
    return tuple(
        each.name
        for each in fields(LeaseRecord)
        if each.name not in _NOT_COMPARED
        and getattr(there, each.name) != getattr(target, each.name)
    )


def _written(
    wanted: LeaseRecord, there: LeaseRecord, target: LeaseRecord, *, acquires: bool
) -> LeaseRecord:
    """Return a record ready to replace an existing one that has no known holder."""
    moved = target.checkpoint != there.checkpoint
    written = replace(
        target,
        claim=None,
        # The counter must move, because observers recognise a write by it.
        counter=max(there.counter, wanted.counter) + 1,
        owner_switches=wanted.owner_switches if moved else there.owner_switches,
    )
    if acquires:
        return replace(written, epoch=max(wanted.epoch, there.epoch + 1))
    # Drop a dead worker's ownership, so that it does not count as having acquired what we write.
    return replace(written, owner=None, handoff_from=None)


CHANGED_MEANWHILE = "another program wrote it meanwhile: import it again"


async def records_of(store: RecordStore) -> tuple[Versioned, ...]:
    """Return all readable records of a store, in the order of their keys; unreadable ones are logged."""
    return tuple([found async for found in store.scan()])


async def carry_out(store: RecordStore, actions: Sequence[Action]) -> tuple[Action, ...]:
    """Carry out a plan: create and update records, one at a time. The store must exist.

    Each write compares the record with the one that the plan saw.

    Returns:
        The actions as they were done: one that came too late is a conflict now.

    Raises:
        LeasingError: the store failed; a note says how much was done before, and all of it may be done again.
    """
    done: list[Action] = []
    for action in actions:
        try:
            done.append(await _carried_out(store, action))
        except Exception as error:
            error.add_note(f"the first {len(done)} of {len(actions)} leases are done: import again")
            raise
    return tuple(done)


async def _carried_out(store: RecordStore, action: Action) -> Action:
    if action.after is None:
        return action
    if action.step is MigrationStep.CREATE:
        is_done = await LeaseManager(store).create_lease(action.after)
    else:
        is_done = await _replaced(store, action, action.after)
    if is_done:
        return action
    return replace(action, step=MigrationStep.CONFLICT, after=None, conflicts=(CHANGED_MEANWHILE,))


async def _replaced(store: RecordStore, action: Action, after: LeaseRecord) -> bool:
    assert action.before is not None, "a record that is updated was there"
    return (
        await compare_and_swap(store, action.before, lambda _: after, verdict_of_taker) is not None
    )
