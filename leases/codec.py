"""The JSON codec of lease records, which etcd, SQL databases and our other native layouts hold.

    {"key":"shard-1","epoch":3,"counter":17,"owner":"w1","checkpoint":["4711",0],"parents":["shard-0"], …}

Absent fields have their defaults. Fields that this version does not know are kept, so that an older worker does not
undo what a newer one wrote. A position is `[sequence, sub-sequence]` or `[sequence, sub-sequence, offset]`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import msgspec

from broadsheet.leases.errors import UnreadableLeaseError
from broadsheet.leases.record import LeaseRecord
from broadsheet.runtime.formats import MIN_READER, Format, LaterFormatError

LEASE: Final = Format("the lease", "let a worker of that release hold it")
_ESCAPED_SURROGATE = "\\ud"


class _StoredPosition(msgspec.Struct, array_like=True):
    seq: str
    sub: int
    offset: str | None = None


class _StoredRange(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    first: str
    last: str


class _StoredRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The fields of a record as they are stored, in their order. Names and defaults never change."""

    key: str
    epoch: int = 0
    counter: int = 0
    owner: str | None = None
    handoff_from: str | None = None
    claim: str | None = None
    checkpoint: _StoredPosition | None = None
    pending: _StoredPosition | None = None
    pending_state: bytes | None = None
    owner_switches: int = 0
    write_id: str = ""
    parents: set[str] = set()
    children: set[str] = set()
    hash_range: _StoredRange | None = None


def encode(record: LeaseRecord) -> str:
    """Return a record as JSON in one line, its fields in a fixed order."""
    stored = msgspec.convert(record, _StoredRecord, from_attributes=True)
    plain = msgspec.to_builtins(stored, order="deterministic")
    fields = {name: _trimmed(value) for name, value in plain.items()}
    fields |= {name: json.loads(text) for name, text in sorted(record.attrs.items())}
    return _compact(fields)


def decode(text: str | bytes, *, key: str) -> LeaseRecord:
    """Return the record of a key.

    Raises:
        UnreadableLeaseError: this is no record, or the record of another key.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        # Not msgspec's parser, because fields that we do not know may hold what Python's writes: Infinity.
        fields = json.loads(text)
        LEASE.check(fields.get(MIN_READER, 1) if isinstance(fields, dict) else 1)
        stored = msgspec.convert(fields, _StoredRecord)
        record = msgspec.convert(stored, LeaseRecord, from_attributes=True)
        unknown = [name for name in fields if name not in _StoredRecord.__struct_fields__]
        if unknown:
            record = replace(record, attrs={name: _compact(fields[name]) for name in unknown})
        if _ESCAPED_SURROGATE in text.lower():
            # JSON can hold a lone surrogate and UTF-8 cannot: such a record could be read, but never written again.
            encode(record).encode()
    except LaterFormatError as error:
        raise UnreadableLeaseError(key, f"lease {key}: {error}") from error
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


def _trimmed(value: object) -> object:
    """Return a stored value; a position without an offset has two items."""
    return value[:-1] if isinstance(value, list) and value[-1:] == [None] else value


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
