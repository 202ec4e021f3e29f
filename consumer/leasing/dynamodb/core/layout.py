"""What differs between the tables that leases are in: how a row is read, and what a write changes in it."""

from __future__ import annotations

from typing import Final, Protocol

from consumer.leasing.dynamodb.core.values import Item, Value
from consumer.leasing.record import LeaseRecord

REV: Final = "rev"
"""N: counts our writes to a row, whatever its layout. Another program's write of the whole row drops it."""

EPOCH: Final = "epoch"
"""N: the epoch of the row as of our last write that moved its counter."""


class Layout(Protocol):
    """The rows of one kind of table. Everything is pure: what is remembered between reads is passed in."""

    @property
    def key_name(self) -> str:
        """The S that is the table's hash key."""
        ...

    @property
    def owner_name(self) -> str:
        """The S that names the owner."""
        ...

    @property
    def owner_index(self) -> str | None:
        """The index of keys by owner; None: there is none."""
        ...

    @property
    def guards(self) -> tuple[str, ...]:
        """The attributes that a write compares: whatever another program changes, it changes one of them."""
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
        """Return a record's attributes, without key and rev. A write makes the difference of two of these."""
        ...

    def own(self, record: LeaseRecord) -> dict[str, Value]:
        """Return what is written whenever the counter moves, changed or not: others may have dropped it."""
        ...

    def stamped(
        self, before: LeaseRecord | None, after: LeaseRecord, *, now_nanoseconds: int
    ) -> LeaseRecord:
        """Return a record that is about to be written, with the time in it if the layout has one.

        Args:
            before: What it replaces; None: nothing.
            after: The record.
            now_nanoseconds: By this machine's wall clock, since the Unix epoch.
        """
        ...
