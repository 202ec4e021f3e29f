"""Timers: a set of (key, expiry).

A hidden row of each key lists its expiries: it is the truth, and is recorded. An index in the order of expiries finds
those that are due; it is local, and an entry of it that the key's row does not confirm is dropped when it is met.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import msgspec

from broadsheet.consumer.keyed.key_codec import from_sortable, sortable

DUE_BYTES: Final = 8
_decode: Final = msgspec.msgpack.Decoder(list[int]).decode


def expiries_of(row: bytes | None) -> list[int]:
    """Return the expiries that a key's row lists, ascending."""
    return [] if row is None else _decode(row)


def row_of(expiries: Sequence[int]) -> bytes | None:
    """Return the row of a key's expiries; None if there are none."""
    return msgspec.msgpack.encode(expiries) if expiries else None


def with_expiry(expiries: list[int], expiry: int) -> list[int] | None:
    """Return the expiries with another one; None if it is one of them."""
    place = bisect_left(expiries, expiry)
    if place < len(expiries) and expiries[place] == expiry:
        return None
    return [*expiries[:place], expiry, *expiries[place:]]


def without_expiry(expiries: list[int], expiry: int) -> list[int] | None:
    """Return the expiries without one; None if it is none of them."""
    place = bisect_left(expiries, expiry)
    if place == len(expiries) or expiries[place] != expiry:
        return None
    return [*expiries[:place], *expiries[place + 1 :]]


def entry_of(expiry: int, key: bytes) -> bytes:
    """Return the index entry of a timer: entries are in order of (expiry, key)."""
    return sortable(expiry) + key


def timer_of(entry: bytes) -> tuple[int, bytes]:
    """Return expiry and key of an index entry."""
    return from_sortable(entry), entry[DUE_BYTES:]
