"""What one record becomes when another store's record of the same key is moved into its place: pure.

The checkpoint that is further along wins, together with what was announced beyond it; what is known of the shard's
place among others is joined; the epoch never falls, so that sinks which remember it go on refusing paused owners.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from broadsheet.consumer.leasing.position import Position
from broadsheet.consumer.leasing.record import LeaseRecord

PASSING_ATTRS: Final = frozenset({"LeaseTimeout", "checkpointOwnerTimeoutTimestampMillis"})
"""Attributes of other layouts that end with an acquisition, and would mean something else in another store."""

Pending = tuple[Position | None, bytes | None]
"""An announced position, and the note with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a record becomes."""

    record: LeaseRecord
    """With nothing counted yet: neither counter nor epoch say that it was written."""
    conflicts: tuple[str, ...] = ()
    """Why it must not become that, unless somebody insists."""


def carried(record: LeaseRecord, *, owners: bool) -> LeaseRecord:
    """Return what of a record is worth moving: not what only its acquisition knows.

    Args:
        record: As it was read.
        owners: Move owner and hand-off too; without, whoever takes the lease next has it anew.
    """
    kept = record if owners else replace(record, owner=None, handoff_from=None)
    attrs = {name: text for name, text in record.attrs.items() if name not in PASSING_ATTRS}
    return replace(kept, claim=None, write_id="", attrs=attrs)


def below(prefix: str, record: LeaseRecord) -> LeaseRecord:
    """Return a record whose shards are named in a larger space, such as that of a hub among others."""
    return replace(
        record,
        key=f"{prefix}{record.key}",
        parents=frozenset(f"{prefix}{key}" for key in record.parents),
        children=frozenset(f"{prefix}{key}" for key in record.children),
    )


def merged(wanted: LeaseRecord, there: LeaseRecord) -> Merged:
    """Return what the record that is there becomes.

    Args:
        wanted: As `carried` returns it.
        there: The one of the same key that it is moved onto. Its owner stays.
    """
    conflicts: list[str] = []
    checkpoint = _checkpoint(wanted, there, conflicts)
    pending, state = _pending(wanted, there, checkpoint, conflicts)
    if None not in (wanted.hash_range, there.hash_range) and wanted.hash_range != there.hash_range:
        conflicts.append("its hash range is another: is it of the same stream?")
    return Merged(
        record=replace(
            there,
            epoch=max(wanted.epoch, there.epoch),
            checkpoint=checkpoint,
            pending=pending,
            pending_state=state,
            parents=wanted.parents | there.parents,
            children=wanted.children | there.children,
            hash_range=wanted.hash_range or there.hash_range,
            attrs=_joined(wanted.attrs, there.attrs),
        ),
        conflicts=tuple(conflicts),
    )


def said(position: Position | None) -> str:
    """Return a position as people read it: `4711`, `4711.2`, `TRIM_HORIZON`, `4711@4096`; `-` if there is none."""
    if position is None:
        return "-"
    sub = f".{position.sub}" if position.sub else ""
    return f"{position.seq}{sub}" + (f"@{position.offset}" if position.offset else "")


def _checkpoint(wanted: LeaseRecord, there: LeaseRecord, conflicts: list[str]) -> Position | None:
    new, old = wanted.checkpoint, there.checkpoint
    if new is None or old is None:
        return new or old
    if new < old:
        conflicts.append(f"its checkpoint is further: {said(old)}, this one is {said(new)}")
    if not new < old and not old < new and new.offset is None:
        return old
    return new


def _pending(
    wanted: LeaseRecord,
    there: LeaseRecord,
    checkpoint: Position | None,
    conflicts: list[str],
) -> Pending:
    """Return what is announced: losing one would hide side effects from a successor."""
    new: Pending = (wanted.pending, wanted.pending_state)
    old: Pending = (there.pending, there.pending_state)
    if old[0] is None or old == new:
        return new
    if checkpoint is not None and not checkpoint < old[0]:
        return new
    if new[0] is None:
        return old
    conflicts.append(f"it has another pending position: {said(old[0])}, this one is {said(new[0])}")
    return new


def _joined(new: Mapping[str, str], old: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of both. Those that say the same in another notation stay as they are."""
    changed = {
        name: text
        for name, text in new.items()
        if name not in old or json.loads(old[name]) != json.loads(text)
    }
    return {**old, **changed}
