"""Merge of two stores' records of one key during an import (pure).

The later checkpoint wins, together with the pending one beyond it; parents, children and hash range are joined; the
epoch never falls, so that sinks which remember it go on refusing paused owners.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord

PASSING_ATTRS: Final = frozenset({"LeaseTimeout", "checkpointOwnerTimeoutTimestampMillis"})
"""Attributes of other layouts that are valid for one acquisition, and would mean something else in another store."""

Pending = tuple[Position | None, bytes | None]
"""A pending position, and its note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A merged record."""

    record: LeaseRecord
    """The record before the write is counted in its counter and epoch."""
    conflicts: tuple[str, ...] = ()
    """Reasons against the merge, which only `force` overrides."""


def carried(record: LeaseRecord, *, owners: bool) -> LeaseRecord:
    """Return the parts of a record that can move: not those valid only for its acquisition.

    Args:
        record: As it was read.
        owners: Move owner and hand-off too; without, the next worker that takes the lease starts a new acquisition.
    """
    kept = record if owners else replace(record, owner=None, handoff_from=None)
    attrs = {name: text for name, text in record.attrs.items() if name not in PASSING_ATTRS}
    return replace(kept, claim=None, write_id="", attrs=attrs)


def below(prefix: str, record: LeaseRecord) -> LeaseRecord:
    """Prefix the shard names of a record, e.g. with the hub that they belong to."""
    return replace(
        record,
        key=f"{prefix}{record.key}",
        parents=frozenset(f"{prefix}{key}" for key in record.parents),
        children=frozenset(f"{prefix}{key}" for key in record.children),
    )


def merged(wanted: LeaseRecord, there: LeaseRecord) -> Merged:
    """Merge a wanted record into the existing one.

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
    """Format a position for people: `4711`, `4711.2`, `TRIM_HORIZON`, `4711@4096`; `-` if there is none."""
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
    """Return the pending checkpoint to keep: losing one would hide side effects from a successor."""
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
    """Join the attributes of both records; one that differs only in notation stays as it is."""
    changed = {
        name: text
        for name, text in new.items()
        if name not in old or json.loads(old[name]) != json.loads(text)
    }
    return {**old, **changed}
