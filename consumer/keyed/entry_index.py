"""One of a keyed store's two indexes in order of time, with the changes that are not in the row index yet."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from typing import Final

from broadsheet.consumer.keyed.key_codec import from_sortable, sortable
from broadsheet.consumer.keyed.row_index import RowIndex, Rows, after_prefix

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

    def is_removed(self, entry: bytes) -> bool:
        """Tell whether the running transaction has removed an entry."""
        return self.changes.get(entry, b"") is None

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

    def iterate(self, time: int, step: int) -> Iterator[list[tuple[int, bytes]]]:
        """Return an iterator of (time, rest) of the entries up to a time, ascending, in parts.

        They are those of now: what is added or removed while it is iterated over does not show, whatever is committed.

        Args:
            time: The last time, inclusive.
            step: Entries of a part at most. A part is looked up when it is asked for.
        """
        end = self._end(time)
        changed = self._unwritten()
        return self._merged(end, step, changed, sorted(_added(changed, end)))

    def until(self, time: int, limit: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Return (time, rest) of the first entries up to a time, ascending, and whether there are more.

        Args:
            time: The last time, inclusive.
            limit: Entries at most.
        """
        end = self._end(time)
        changed = self._unwritten()
        found = self._stored(end, limit + 1, changed)
        merged = sorted(chain(found, _added(changed, end)))
        return [self._taken_apart(entry) for entry in merged[:limit]], len(merged) > limit

    def first(self) -> int | None:
        """Return the time of the first entry; None if there is none."""
        end = after_prefix(self._family)
        changed = self._unwritten()
        stored = self._stored(end, 1, changed)
        first = min(chain(stored, _added(changed, end)), default=None)
        return None if first is None else self._taken_apart(first)[0]

    def _end(self, time: int) -> bytes:
        return self._family + sortable(min(time, _LATEST - 1) + 1)

    def _unwritten(self) -> dict[bytes, bytes | None]:
        """Return the changes that the row index lacks, or may lack: a commit may reach it at any time."""
        return {**self._committing, **self.changes}

    def _merged(
        self, end: bytes, step: int, changed: Rows, added: list[bytes]
    ) -> Iterator[list[tuple[int, bytes]]]:
        """Yield what the row index has, without what was changed, and what was added."""
        begin = 0
        for stored, behind in self._stored_parts(end, step, changed):
            stop = bisect_left(added, behind, begin)
            part = sorted(chain(stored, added[begin:stop]))
            begin = stop
            for at in range(0, len(part), step):
                yield [self._taken_apart(entry) for entry in part[at : at + step]]

    def _stored(self, end: bytes, limit: int, changed: Rows) -> list[bytes]:
        """Return the first entries of the row index that no transaction has changed since."""
        found: list[bytes] = []
        for part, _ in self._stored_parts(end, max(_STEP, limit), changed):
            found += part
            if len(found) >= limit:
                break
        return found[:limit]

    def _stored_parts(
        self, end: bytes, step: int, changed: Rows
    ) -> Iterator[tuple[list[bytes], bytes]]:
        """Yield entries of the row index that were not changed since, and the place behind those looked at."""
        begin, is_first = self._floor, True
        while True:
            part = self._index.scan(begin, end, step)
            if is_first and (part or end == after_prefix(self._family)):
                # Entries that were removed since are among these, so this is no later than the first one that counts.
                start = part[0][0] if part else end
                self._floor = min((start, *_added(self._unwritten(), end)))
                is_first = False
            is_last = len(part) < step
            begin = end if is_last else part[-1][0] + b"\x00"
            yield [entry for entry, _ in part if entry not in changed], begin
            if is_last:
                return

    def _taken_apart(self, entry: bytes) -> tuple[int, bytes]:
        at = len(self._family)
        return from_sortable(entry, at), entry[at + _TIME_BYTES :]


def _added(changed: Rows, end: bytes) -> list[bytes]:
    """Return the entries before a place that changes add."""
    return [entry for entry, value in changed.items() if value is not None and entry < end]
