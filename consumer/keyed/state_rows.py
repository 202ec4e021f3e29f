"""The layout of a keyed store's rows.

    s | group | key | suffix   →  schema id | 00, or 01 and the expiry | content    a row of a variable
    h | group | key            →  expiries                                            the timers of a key
    m | name                   →  content                                             what is of no key
    t | expiry | key           →  nothing                                             index of timers
    e | time | group | key | suffix  →  nothing                                      index of rows by expiry

A suffix is the number of a variable (2 bytes), and what the variable adds. The group comes before the variable, so that
a key's variables lie together, and all rows of a range of groups too. Rows of `s`, `h` and `m` are recorded. The two
indexes are made from them, and may have entries too many: what an entry points at says whether it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broadsheet.consumer.keyed.key_codec import from_sortable, sortable
from broadsheet.consumer.keyed.row_index import Rows
from broadsheet.consumer.keyed.timers import expiries_of
from broadsheet.wire.key_range import GROUPS, group_of

STATE: Final = b"s"
TIMERS: Final = b"h"
META: Final = b"m"
LOCAL: Final = META + b"\x00"
"""Names that begin with a zero byte are an index's own; the others are recorded."""
_RECORDED: Final = frozenset((STATE, TIMERS, META))
DUE: Final = b"t"
FILED: Final = b"e"
GROUP_BYTES: Final = 2
VARIABLE_BYTES: Final = 2
_GROUPS: Final = [group.to_bytes(GROUP_BYTES) for group in range(GROUPS)]
_NO_EXPIRY: Final = b"\x00"
_EXPIRES: Final = b"\x01"
_ID_BYTES: Final = 2
_EXPIRY_END: Final = _ID_BYTES + 1 + 8


def place_of(key: bytes) -> bytes:
    """Return a key with its group before it: the beginning of its rows."""
    return _GROUPS[group_of(key)] + key


def key_at(place: bytes) -> bytes:
    """Return the key of a place."""
    return place[GROUP_BYTES:]


def group_bytes(group: int) -> bytes:
    """Return the beginning of the places of a group and of those behind it."""
    return group.to_bytes(GROUP_BYTES)


def group_of_row(name: bytes) -> int | None:
    """Return the group of a recorded row; None: it is of no key."""
    return int.from_bytes(name[1 : 1 + GROUP_BYTES]) if name[:1] in (STATE, TIMERS) else None


def stranger_among(rows: Rows) -> bytes | None:
    """Return a name that is of no family which is recorded, or that an index keeps for itself; None: there is none."""
    if {name[:1] for name in rows} <= _RECORDED and not any(
        name[:2] == LOCAL for name in rows if name[:1] == META
    ):
        return None
    return next(name for name in rows if name[:1] not in _RECORDED or name[:2] == LOCAL)


def row_prefix(schema_id: bytes) -> bytes:
    """Return what is before the content of a row that does not expire."""
    return schema_id + _NO_EXPIRY


def new_row(schema_id: bytes, expiry_ms: int | None, content: bytes) -> bytes:
    """Return the value of a variable's row."""
    if expiry_ms is None:
        return schema_id + _NO_EXPIRY + content
    return b"".join((schema_id, _EXPIRES, sortable(expiry_ms), content))


def expiry_of(row: bytes) -> int | None:
    """Return the expiry of a variable's row; None: it does not expire."""
    return from_sortable(row, _ID_BYTES + 1) if row[_ID_BYTES] else None


def schema_of(row: bytes) -> bytes:
    """Return the schema id of a variable's row."""
    return row[:_ID_BYTES]


def content_of(row: bytes) -> bytes:
    """Return the content of a variable's row."""
    return row[_EXPIRY_END if row[_ID_BYTES] else _ID_BYTES + 1 :]


def filed_entry(time_ms: int, place: bytes, suffix: bytes) -> bytes:
    """Return the entry of a row in the index of expiries."""
    return b"".join((FILED, sortable(time_ms), place, suffix))


def due_entry(expiry_ms: int, key: bytes) -> bytes:
    """Return the entry of a timer in the index of timers."""
    return b"".join((DUE, sortable(expiry_ms), key))


def may_replace_entries(name: bytes, value: bytes | None) -> bool:
    """Tell whether a recorded row may replace one that asked for index entries.

    A row without an expiry that replaces one with an expiry, because its variable has lost its TTL, is not looked for:
    the entry is one too many, as the index may have.
    """
    if name[:1] == STATE:
        return value is None or expiry_of(value) is not None
    return name[:1] == TIMERS


def entries_replaced(former: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, bytes | None]:
    """Return the removal of the index entries that rows asked for, which are replaced now."""
    rows = {name: value for name, value in former if value is not None}
    return dict.fromkeys(entries_of(rows))


def entries_of(rows: Rows) -> dict[bytes, bytes | None]:
    """Return the index entries that recorded rows ask for."""
    entries: dict[bytes, bytes | None] = {}
    for name, value in rows.items():
        if value is None:
            continue
        if name[:1] == TIMERS:
            key = key_at(name[1:])
            entries |= {due_entry(expiry, key): b"" for expiry in expiries_of(value)}
        elif name[:1] == STATE and (expiry := expiry_of(value)) is not None:
            entries[filed_entry(expiry, name[1:], b"")] = b""
    return entries
