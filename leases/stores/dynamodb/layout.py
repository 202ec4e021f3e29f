"""The layout port of lease tables: reading a row, and the attributes that a write changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from broadsheet.leases.codec import decode, encode
from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.dynamodb.values import (
    Item,
    Value,
    from_json,
    text_of,
    to_json,
    values_of,
)

REV: Final = "rev"
"""N: counts our writes to a row, in every layout. Another program's write of the whole row drops it."""
EPOCH: Final = "epoch"
"""N: the epoch of the row as of our last write that moved its counter."""


class Layout(Protocol):
    """Row format of one kind of table. All methods are pure: memory of earlier reads is passed in."""

    @property
    def key_name(self) -> str:
        """The attribute (S) that is the table's hash key."""
        ...

    @property
    def owner_name(self) -> str:
        """The attribute (S) that names the owner."""
        ...

    @property
    def owner_index(self) -> str | None:
        """The index of keys by owner; None: there is none."""
        ...

    @property
    def guards(self) -> tuple[str, ...]:
        """The attributes that a write compares; every write of another program changes one of them."""
        ...

    def read(self, item: Item, known: Item | None) -> LeaseRecord | None:
        """Return the record in a row; None if the row is no lease.

        Args:
            item: The row.
            known: The same row as it was when it last had an epoch; else when it was first seen; None: never.

        Raises:
            InvalidStateError: it cannot be read.
        """
        ...

    def row(self, record: LeaseRecord) -> dict[str, Value]:
        """Return a record's attributes, without key and rev. A write sends the difference of two of these."""
        ...

    def own(self, record: LeaseRecord) -> dict[str, Value]:
        """Return the attributes to write whenever the counter moves, even unchanged, because others may have dropped
        them.
        """
        ...

    def stamped(
        self, before: LeaseRecord | None, after: LeaseRecord, *, now_nanoseconds: int
    ) -> LeaseRecord:
        """Return a record ready to be written, with a timestamp if the layout has one.

        Args:
            before: What it replaces; None: nothing.
            after: The record.
            now_nanoseconds: By this machine's wall clock, since the Unix epoch.
        """
        ...


REMAINDER: Final = "broadsheet"
"""S: the remainder of the record, as JSON."""
_NESTED: Final = f"{REMAINDER}."
"""Prefix in `LeaseRecord.attrs` of attributes that were in the remainder: fields of a newer version."""


def remainder_of(item: Item, key: str) -> LeaseRecord | None:
    """Return the remainder in a row: fields of a record without a place in a foreign layout. None if it has none.

    It is JSON in one attribute. Attributes that neither side knows are in `LeaseRecord.attrs`, and become attributes of
    the row again when the record is written.
    """
    written = text_of(item, REMAINDER)
    return None if written is None else decode(written, key=key)


def attrs_in(item: Item, rest: LeaseRecord, *, known: frozenset[str]) -> dict[str, str]:
    """Return the attributes of a row that the layout does not know.

    Args:
        item: The row.
        rest: The rest of its record.
        known: The names that the layout knows.
    """
    attrs = {name: to_json(value) for name, value in item.items() if name not in known}
    return attrs | {f"{_NESTED}{name}": written for name, written in rest.attrs.items()}


def attrs_of_rest(record: LeaseRecord) -> dict[str, str]:
    """Return those of `record.attrs` that belong to the remainder."""
    return {
        name.removeprefix(_NESTED): written
        for name, written in record.attrs.items()
        if name.startswith(_NESTED)
    }


def attrs_of_row(record: LeaseRecord, *, known: frozenset[str]) -> dict[str, Value]:
    """Return those of `record.attrs` that belong to the row.

    Raises:
        InvalidStateError: one has a name that the layout itself uses.
    """
    outer = {n: written for n, written in record.attrs.items() if not n.startswith(_NESTED)}
    if taken := sorted(known & outer.keys()):
        raise InvalidStateError(
            f"lease {record.key}: its further attributes {', '.join(taken)} are the layout's own; rename them"
        )
    return {name: from_json(written) for name, written in outer.items()}


def located(bare: Position | None, kept: Position | None) -> Position | None:
    """Return a row's position with the remainder's offset, if that still belongs to the same place."""
    if bare is None or kept is None:
        return bare
    return kept if (kept.seq, kept.sub) == (bare.seq, bare.sub) else bare


@contextmanager
def reading(key: str) -> Iterator[None]:
    """Turn any error of reading a row into `InvalidStateError`."""
    try:
        yield
    except InvalidStateError:
        raise
    except Exception as error:  # Errors of any kind, because a row may hold anything.
        raise InvalidStateError(
            f"lease {key}: its row cannot be read: {error}; restore or delete it"
        ) from error


KEY: Final = "key"
OWNER: Final = "owner"
RECORD: Final = "record"
OWNER_INDEX: Final = "owner-key"


class NativeLayout:
    """Our native layout: the whole record as JSON, and the attributes that conditions and the index need.

    Implements `broadsheet.leases.stores.dynamodb.layout.Layout`.

        key    S, HASH   the shard
        owner  S         the owner, while there is one
        epoch  N         acquisitions so far
        rev    N         writes so far
        record S         all of it

    No other program writes here, so a write compares only `rev`, and a renewal changes two attributes. The index
    `owner-key` (HASH owner, RANGE key) finds a worker's leases.
    """

    key_name = KEY
    owner_name = OWNER
    owner_index = OWNER_INDEX
    guards = (REV,)

    def read(self, item: Item, known: Item | None) -> LeaseRecord | None:
        """Return the record."""
        key = str(item[KEY]["S"])
        with reading(key):
            return decode(text_of(item, RECORD) or "", key=key)

    def row(self, record: LeaseRecord) -> dict[str, Value]:
        """Return the record, its owner and its epoch."""
        return values_of({OWNER: record.owner, EPOCH: record.epoch, RECORD: encode(record)})

    def own(self, record: LeaseRecord) -> dict[str, Value]:
        """Return nothing, because no other program drops attributes here."""
        return {}

    def stamped(
        self, before: LeaseRecord | None, after: LeaseRecord, *, now_nanoseconds: int
    ) -> LeaseRecord:
        """Return the record unchanged, because observers watch the counter."""
        return after
