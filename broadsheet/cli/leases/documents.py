"""Leases and positions as documents for programs."""

from __future__ import annotations

import json
from dataclasses import replace

from broadsheet.leases.codec import encode
from broadsheet.leases.lease_rows import state_of
from broadsheet.leases.position import Position
from broadsheet.leases.record import Versioned


def lease_fields(found: Versioned, *, is_free: bool | None) -> dict[str, object]:
    """Return a lease for programs: its record's fields, and `free`, which is null if it was not watched."""
    record = found.record
    return {
        **dict.fromkeys(("key", "owner", "handoff_from", "claim", "checkpoint", "pending")),
        **json.loads(encode(replace(record, attrs={}, write_id=""))),
        "epoch": record.epoch,
        "counter": record.counter,
        "checkpoint": position_fields(record.checkpoint),
        "pending": position_fields(record.pending),
        "parents": sorted(record.parents),
        "attrs": {name: json.loads(text) for name, text in record.attrs.items()},
        "state": state_of(found, is_free=is_free),
        "free": is_free,
    }


def position_fields(position: Position | None) -> dict[str, object] | None:
    """Return a position's fields; None if there is none."""
    if position is None:
        return None
    fields: dict[str, object] = {"seq": position.seq, "sub": position.sub}
    return fields if position.offset is None else fields | {"offset": position.offset}
