"""The state of one operator in a keyed store: rows by key and part, and when each is due.

    s | group | key | number of the operator (2 bytes), part (8)  →  header with the due time | content

The store's index of expiries has an entry of each row, at or before the time at which it is due; an entry that is early
or too many is found out by the row. An entry is not recorded: the header of the row says when it is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from broadsheet.consumer.keyed.key_codec import from_sortable, sortable
from broadsheet.consumer.keyed.state_rows import (
    GROUP_BYTES,
    VARIABLE_BYTES,
    content_of,
    expiry_of,
    new_row,
)
from broadsheet.consumer.keyed.store import KeyedStore

PART_BYTES: Final = 8
SUFFIX_BYTES: Final = VARIABLE_BYTES + PART_BYTES
_FORMAT: Final = b"\x00\x00"
"""Stands where rows of variables have the number of their declaration."""
DUE_ROWS: Final = 20_000
"""Rows of an operator that one transaction closes, about: rows of input come between."""


class StoredRow(NamedTuple):
    """A row of an operator's state."""

    place: bytes
    part: int
    due_ms: int | None
    content: bytes

    @property
    def key(self) -> bytes:
        """The key's bytes."""
        return self.place[GROUP_BYTES:]


class StageRows:
    """Reads and writes an operator's rows in the running transaction."""

    def __init__(
        self, store: KeyedStore, number: int, *, due_rows: int = DUE_ROWS, behind_ms: int = 0
    ) -> None:
        """Look at nothing yet.

        Args:
            store: Restored.
            number: Of the operator in its plan.
            due_rows: Rows that one transaction closes, about.
            behind_ms: The operator goes so far behind the watermark, by which entries are filed: rows that wait for it
                are not in the way of other operators, and do not look as if they were due.
        """
        self._store = store
        self._behind = behind_ms
        self._due_rows = due_rows
        self.variable = number.to_bytes(VARIABLE_BYTES)

    def fetch(self, places: Sequence[bytes], parts: Sequence[int]) -> list[StoredRow | None]:
        """Return rows, shape (len(places),); None where there is none.

        Args:
            places: `place_of` the keys.
            parts: Of each, a signed 64-bit number; the pairs are distinct.
        """
        variable = self.variable
        names = [
            (place, variable + sortable(part)) for place, part in zip(places, parts, strict=True)
        ]
        return [
            None if row is None else StoredRow(place, part, expiry_of(row), content_of(row))
            for place, part, row in zip(places, parts, self._store.fetch(names), strict=True)
        ]

    def write(
        self, place: bytes, part: int, content: bytes, due_ms: int | None, *, filed: int | None
    ) -> None:
        """Write a row.

        Args:
            place: `place_of` its key.
            part: Its number.
            content: MessagePack.
            due_ms: When it is due; None: never.
            filed: When the row before it was due, if there was one that was not taken as due.
        """
        suffix = self.variable + sortable(part)
        self._store.put(place, suffix, new_row(_FORMAT, due_ms, content))
        # An entry that is early is filed again when it is met: cheaper than to move it with each write.
        if due_ms is not None and (filed is None or due_ms < filed):
            self._store.file(due_ms + self._behind, place, suffix)

    def remove(self, place: bytes, part: int) -> None:
        """Remove a row; its entry goes when it is met."""
        self._store.put(place, self.variable + sortable(part), None)

    def due(self, bound_ms: int) -> tuple[list[StoredRow], bool]:
        """Take the first rows that are due; their entries are gone. Return whether there are more.

        Args:
            bound_ms: The last time that is due.

        Returns:
            The rows, in the order of (time, key, part).
        """
        mine, has_more = self._entries(bound_ms + self._behind, self._due_rows)
        for time, place, suffix in mine:
            self._store.unfile(time, place, suffix)
        names = list(dict.fromkeys((place, suffix) for _, place, suffix in mine))
        found = []
        for (place, suffix), row in zip(names, self._store.fetch(names), strict=True):
            expiry = None if row is None else expiry_of(row)
            if row is None or expiry is None:  # Removed since, or due no more.
                continue
            if expiry > bound_ms:
                self._store.file(expiry + self._behind, place, suffix)
                continue
            part = from_sortable(suffix, VARIABLE_BYTES)
            found.append(StoredRow(place, part, expiry, content_of(row)))
        return sorted(found, key=lambda row: (row.due_ms, row.key, row.part)), has_more

    def _entries(self, bound_ms: int, limit: int) -> tuple[list[tuple[int, bytes, bytes]], bool]:
        """Return (time, place, suffix) of this operator's entries that are due, and whether there are more entries."""
        has_more = True
        mine: list[tuple[int, bytes, bytes]] = []
        # Those of other operators may come first, and wait for this one.
        while has_more and not mine:
            entries, has_more = self._store.filed_until(bound_ms, limit)
            mine = [
                (time, rest[:-SUFFIX_BYTES], rest[-SUFFIX_BYTES:])
                for time, rest in entries
                if rest[-SUFFIX_BYTES:-PART_BYTES] == self.variable
            ]
            limit *= 2
        return mine, has_more


def stored_row(name: bytes, row: bytes, variable: bytes) -> StoredRow | None:
    """Return a row of a store as an operator's; None if it is another's.

    Args:
        name: Place and suffix.
        row: Its value.
        variable: Of the operator.
    """
    if name[-SUFFIX_BYTES:-PART_BYTES] != variable:
        return None
    part = from_sortable(name, len(name) - PART_BYTES)
    return StoredRow(name[:-SUFFIX_BYTES], part, expiry_of(row), content_of(row))
