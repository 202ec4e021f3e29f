"""The JSON codec of lease records, which etcd, SQL databases and our other native layouts hold.

    {"key":"shard-1","epoch":3,"counter":17,"owner":"w1","checkpoint":["4711",0],"parents":["shard-0"], …}

Absent fields have their defaults. Fields that this version does not know are kept, so that an older worker does not
undo what a newer one wrote. A position is `[sequence, sub-sequence]` or `[sequence, sub-sequence, offset]`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Final, TypeVar

from broadsheet.consumer.errors import UnreadableLeaseError
from broadsheet.consumer.leasing.position import Position
from broadsheet.consumer.leasing.record import HashRange, LeaseRecord

T = TypeVar("T")

_KNOWN: Final = frozenset(
    {
        *("key", "epoch", "counter", "owner", "handoff_from", "claim", "checkpoint", "pending"),
        *("pending_state", "owner_switches", "write_id", "parents", "children", "hash_range"),
    }
)
_DEFAULTS: Final[dict[str, object]] = {
    "epoch": 0,
    "counter": 0,
    "owner_switches": 0,
    "write_id": "",
    "parents": [],
    "children": [],
}
"""Values that are not written; None for fields not listed here."""
_ESCAPED_SURROGATE = "\\ud"


def encode(record: LeaseRecord) -> str:
    """Return a record as JSON in one line, its fields in a fixed order."""
    fields: dict[str, object] = {"key": record.key}
    plain = {
        "epoch": record.epoch,
        "counter": record.counter,
        "owner": record.owner,
        "handoff_from": record.handoff_from,
        "claim": record.claim,
        "checkpoint": _position_to(record.checkpoint),
        "pending": _position_to(record.pending),
        "pending_state": _bytes_to(record.pending_state),
        "owner_switches": record.owner_switches,
        "write_id": record.write_id,
        "parents": sorted(record.parents),
        "children": sorted(record.children),
        "hash_range": _hash_range_to(record.hash_range),
    }
    fields |= {name: value for name, value in plain.items() if value != _DEFAULTS.get(name)}
    fields |= {name: json.loads(text) for name, text in sorted(record.attrs.items())}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def decode(text: str | bytes, *, key: str) -> LeaseRecord:
    """Return the record of a key.

    Raises:
        UnreadableLeaseError: this is no record, or the record of another key.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise TypeError("expected an object")
        record = _record_from(fields)
        if _ESCAPED_SURROGATE in text.lower():
            # JSON can hold a lone surrogate and UTF-8 cannot: such a record could be read, but never written again.
            encode(record).encode()
    # Errors of any kind: brackets nested too deep, numbers that are too long, values of other types.
    except Exception as error:
        raise UnreadableLeaseError(
            key, f"lease {key}: its record cannot be read: {error}; restore or delete it"
        ) from error
    if record.key != key:
        raise UnreadableLeaseError(
            key, f"lease {key}: its record is that of {record.key}; delete it"
        )
    return record


def _record_from(fields: dict[str, object]) -> LeaseRecord:
    return LeaseRecord(
        key=_text(fields.get("key")),
        epoch=_whole(fields.get("epoch", 0)),
        counter=_whole(fields.get("counter", 0)),
        owner=_optional(_text, fields.get("owner")),
        handoff_from=_optional(_text, fields.get("handoff_from")),
        claim=_optional(_text, fields.get("claim")),
        checkpoint=_optional(_position_from, fields.get("checkpoint")),
        pending=_optional(_position_from, fields.get("pending")),
        pending_state=_optional(_bytes_from, fields.get("pending_state")),
        owner_switches=_whole(fields.get("owner_switches", 0)),
        write_id=_text(fields.get("write_id", "")),
        parents=_texts(fields.get("parents", [])),
        children=_texts(fields.get("children", [])),
        hash_range=_optional(_hash_range_from, fields.get("hash_range")),
        attrs={
            name: json.dumps(value, separators=(",", ":"), ensure_ascii=False)
            for name, value in fields.items()
            if name not in _KNOWN
        },
    )


def _optional(read: Callable[[object], T], value: object) -> T | None:
    return None if value is None else read(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r:.80}")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected a whole number, got {value!r:.80}")
    return value


def _items(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {value!r:.80}")
    return value


def _texts(value: object) -> frozenset[str]:
    return frozenset(map(_text, _items(value)))


def _position_to(position: Position | None) -> list[object] | None:
    if position is None:
        return None
    offset = [] if position.offset is None else [position.offset]
    return [position.seq, position.sub, *offset]


def _position_from(value: object) -> Position:
    seq, sub, *offset = [*_items(value), None][:3]
    return Position(_text(seq), _whole(sub), _optional(_text, offset[0]))


def _bytes_to(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes_from(value: object) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise ValueError(f"expected base64: {error}") from error


def _hash_range_to(value: HashRange | None) -> list[str] | None:
    return None if value is None else [value.first, value.last]


def _hash_range_from(value: object) -> HashRange:
    first, last = _items(value)
    return HashRange(first=_text(first), last=_text(last))
