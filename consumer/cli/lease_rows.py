"""How leases are printed: a row for people, fields for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from consumer.leasing.core.codec import encode
from consumer.leasing.core.position import Position
from consumer.leasing.core.record import LeaseRecord, Versioned
from consumer.leasing.migration.merge import said
from consumer.leasing.migration.plan import Action, Step

LEASE_COLUMNS = (
    *("KEY", "STATE", "OWNER", "EPOCH", "COUNTER"),
    *("CHECKPOINT", "PENDING", "PARENTS"),
)


def state_of(found: Versioned, *, is_free: bool | None) -> str:
    """Return how it stands with a lease; `owned`: it has an owner, and nobody watched whether that lives."""
    if found.record.is_finished:
        return "finished"
    if found.record.claim is not None and is_free is not True:
        return f"claimed by {found.record.claim}"
    return {True: "free", False: "held", None: "owned"}[is_free]


def lease_row(found: Versioned, *, is_free: bool | None) -> list[str]:
    """Return a lease's cells, of shape (len(LEASE_COLUMNS),)."""
    record = found.record
    return [
        record.key,
        state_of(found, is_free=is_free),
        _owner(record),
        str(record.epoch),
        str(record.counter),
        said(record.checkpoint),
        said(record.pending),
        " ".join(sorted(record.parents)) or "-",
    ]


def lease_fields(found: Versioned, *, is_free: bool | None) -> dict[str, object]:
    """Return a lease for programs: its record's fields, and `free`, which is null if nobody watched."""
    record = found.record
    return {
        **dict.fromkeys(("key", "owner", "handoff_from", "claim", "checkpoint", "pending")),
        **json.loads(encode(replace(record, attrs={}, write_id=""))),
        "epoch": record.epoch,
        "counter": record.counter,
        "checkpoint": _position_fields(record.checkpoint),
        "pending": _position_fields(record.pending),
        "parents": sorted(record.parents),
        "attrs": {name: json.loads(text) for name, text in record.attrs.items()},
        "state": state_of(found, is_free=is_free),
        "free": is_free,
    }


def action_row(action: Action) -> list[str]:
    """Return an action's cells: key, what, checkpoint before, checkpoint after, note."""
    there = None if action.before is None else action.before.record.checkpoint
    after = action.after.checkpoint if action.after is not None else there
    return [action.key, action.step.value, said(there), said(after), note_of(action)]


def action_fields(action: Action) -> dict[str, object]:
    """Return an action for programs."""
    there = None if action.before is None else action.before.record.checkpoint
    return {
        "key": action.key,
        "step": action.step.value,
        "checkpoint_there": _position_fields(there),
        "checkpoint_wanted": _position_fields(action.wanted.checkpoint),
        "changed": list(action.changed),
        "conflicts": list(action.conflicts),
        "unseen": list(action.unseen),
    }


def counts_of(actions: Sequence[Action]) -> Mapping[Step, int]:
    """Return how many actions there are of each step."""
    return {step: sum(action.step is step for action in actions) for step in Step}


def note_of(action: Action) -> str:
    """Return what a person should know of an action."""
    if action.step is Step.CONFLICT:
        return "; ".join(action.conflicts)
    notes = [f"not seen there: {what}" for what in action.unseen]
    if action.step is Step.UPDATE:
        notes.insert(0, f"changes {', '.join(action.changed)}")
    return "; ".join(notes)


def _owner(record: LeaseRecord) -> str:
    if record.handoff_from is None:
        return record.owner or "-"
    return f"{record.handoff_from} -> {record.owner}"


def _position_fields(position: Position | None) -> dict[str, object] | None:
    if position is None:
        return None
    fields: dict[str, object] = {"seq": position.seq, "sub": position.sub}
    return fields if position.offset is None else fields | {"offset": position.offset}
