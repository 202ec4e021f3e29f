"""One of a keyed store's two indexes in order of time, with the changes that are not in the row index yet."""

from __future__ import annotations

from itertools import chain
from typing import Final

from broadsheet.consumer.keyed.key_codec import from_sortable, sortable
from broadsheet.consumer.keyed.row_index import RowIndex, after_prefix

_LATEST: Final = (1 << 63) - 1
_STEP: Final = 1024
_TIME_BYTES: Final = 8


class EntryIndex:
    """Entries `family | time | rest`, which are added and removed by transactions."""

    def __init__(self, index: RowIndex, family: bytes) -> None:
        """Begin without changes."""
        self._index = index
        self._family = family
        self.changes: dict[bytes, bytes | None] = {}
        """Of the running transaction; None removes an entry."""
        self._before: dict[bytes, bytes | None] = {}
        """Those of before a savepoint."""
        self._committing: dict[bytes, bytes | None] = {}
        self._floor = family
        """No entry is before this one. A scan from the family's begin would walk over all entries that were removed."""

    def add(self, entry: bytes) -> None:
        """Add an entry in the running transaction."""
        self.changes[entry] = b""
        self._floor = min(self._floor, entry)

    def remove(self, entry: bytes) -> None:
        """Remove an entry in the running transaction."""
        self.changes[entry] = None

    def savepoint(self) -> None:
        """Note further changes apart, until `release` or `roll_back`; nothing is looked up between."""
        self._before, self.changes = self.changes, {}

    def release(self) -> None:
        """Add the changes since the savepoint to those before."""
        self._before |= self.changes
        self.changes = self._before

    def roll_back(self) -> None:
        """Forget the changes since the savepoint."""
        self.changes = self._before

    def take_changes(self) -> dict[bytes, bytes | None]:
        """Return the changes of the running transaction, and begin the next; the index has those before."""
        self._committing, self.changes = self.changes, {}
        return self._committing

    def until(self, time: int, limit: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Return (time, rest) of the first entries up to a time, ascending, and whether there are more.

        Args:
            time: The last time, inclusive.
            limit: Entries at most.
        """
        end = self._family + sortable(min(time, _LATEST - 1) + 1)
        found = self._stored(end, limit + 1)
        added = [entry for entry in self._added() if entry < end]
        merged = sorted(chain(found, added))
        return [self._taken_apart(entry) for entry in merged[:limit]], len(merged) > limit

    def first(self) -> int | None:
        """Return the time of the first entry; None if there is none."""
        stored = self._stored(after_prefix(self._family), 1)
        first = min(chain(stored, self._added()), default=None)
        return None if first is None else self._taken_apart(first)[0]

    def _stored(self, end: bytes, limit: int) -> list[bytes]:
        """Return the first entries of the row index that no transaction has changed since."""
        found: list[bytes] = []
        begin, is_first = self._floor, True
        while len(found) < limit:
            step = max(_STEP, limit)
            part = self._index.scan(begin, end, step)
            if is_first and (part or end == after_prefix(self._family)):
                # Entries that were removed since are among these, so this is no later than the first one that counts.
                lowest = min(self._added(), default=None)
                start = part[0][0] if part else end
                self._floor = start if lowest is None else min(start, lowest)
                is_first = False
            found += [
                entry
                for entry, _ in part
                if entry not in self.changes and entry not in self._committing
            ]
            if len(part) < step:
                break
            begin = part[-1][0] + b"\x00"
        return found[:limit]

    def _added(self) -> list[bytes]:
        changes = {**self._committing, **self.changes}
        return [entry for entry, value in changes.items() if value is not None]

    def _taken_apart(self, entry: bytes) -> tuple[int, bytes]:
        at = len(self._family)
        return from_sortable(entry, at), entry[at + _TIME_BYTES :]
