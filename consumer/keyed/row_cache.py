"""Rows of keys in memory, bounded by bytes: what was read lately, and what transactions changed.

A key's rows that a transaction changed are pinned until the index has them, so a row that is not here is in the index
as it is now. Clean keys leave in the order in which transactions used them last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

from broadsheet.consumer.keyed.row_index import Rows
from broadsheet.consumer.keyed.state_rows import VARIABLE_BYTES

Changes = dict[bytes, dict[bytes, bytes | None]]
"""Changed rows: by key, then by suffix; None is a deletion."""
Savepoint = tuple[dict[bytes, bytes | None] | None, dict[bytes, bytes | None] | None]
"""Rows of a key, and those of them that the transaction has changed, by suffix; None: it is not known, or unchanged."""
_KEY_BYTES: Final = 250
"""Memory of a key beside its bytes."""
_ROW_BYTES: Final = 120
"""Memory of a row beside its bytes."""


class Unknown(Enum):
    """The answer for a row that is not here."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


class _CachedKey(msgspec.Struct, gc=False):
    """A key's rows, which are bytes alone, and so nothing that a garbage collection has to walk: a cache has hundreds
    of thousands of keys, and a collection holds up all threads.
    """

    rows: dict[bytes, bytes | None] = msgspec.field(default_factory=dict)
    size: int = 0
    pins: int = 0
    """Transactions that changed a row and are not in the index yet."""


class RowCache:
    """The cache, and the changes of the running transaction."""

    def __init__(self, bytes_max: int) -> None:
        """Begin empty.

        Args:
            bytes_max: Of clean keys; changed ones are in memory in any case.
        """
        self._bytes_max = bytes_max
        self._keys: OrderedDict[bytes, _CachedKey] = OrderedDict()
        self.size = 0
        """Bytes, about."""
        self.changes: Changes = {}
        """Of the running transaction."""

    def get(self, key: bytes, suffix: bytes) -> bytes | Unknown | None:
        """Return a row; None: there is no such row; `UNKNOWN`: it must be looked up."""
        cached = self._keys.get(key)
        return UNKNOWN if cached is None else cached.rows.get(suffix, UNKNOWN)

    def learn(self, key: bytes, suffix: bytes, value: bytes | None) -> None:
        """Take over what the index holds of a row that is not known here."""
        cached = self._keys.get(key)
        if cached is None:
            cached = self._keys[key] = _CachedKey()
            self.size += _KEY_BYTES + len(key)
            cached.size = _KEY_BYTES + len(key)
        self._set(cached, suffix, value)

    def learn_keys(
        self, keys: Sequence[bytes], suffixes: Sequence[bytes], rows: Sequence[bytes | None]
    ) -> None:
        """Take over rows of keys of which nothing is known here.

        Args:
            keys: K of them.
            suffixes: S of them.
            rows: Of each key those of all suffixes, shape (K × S,).
        """
        width = len(suffixes)
        beside = _KEY_BYTES + width * _ROW_BYTES + sum(map(len, suffixes))
        for place, key in enumerate(keys):
            found = rows[place * width : (place + 1) * width]
            cached = self._keys[key] = _CachedKey()
            cached.rows = dict(zip(suffixes, found, strict=True))
            cached.size = beside + len(key) + sum(len(row) for row in found if row is not None)
            self.size += cached.size

    def change(self, key: bytes, suffix: bytes, value: bytes | None) -> None:
        """Change a row in the running transaction."""
        cached = self._keys.get(key)
        if cached is None:
            self.learn(key, suffix, None)
            cached = self._keys[key]
        changed = self.changes.get(key)
        if changed is None:
            self.changes[key] = {suffix: value}
            cached.pins += 1
        else:
            changed[suffix] = value
        self._set(cached, suffix, value)

    def rows(self, key: bytes, prefix: bytes) -> Rows:
        """Return what is known of the rows of a key whose suffixes begin with a prefix."""
        cached = self._keys.get(key)
        if cached is None:
            return {}
        return {suffix: value for suffix, value in cached.rows.items() if suffix.startswith(prefix)}

    def touch(self, keys: Collection[bytes]) -> Iterator[bytes]:
        """Mark keys as used now; yield those of which nothing is known."""
        for key in keys:
            if key in self._keys:
                self._keys.move_to_end(key)
            else:
                yield key

    def savepoint(self, key: bytes) -> Savepoint:
        """Return what is known of a key and what the transaction has changed of it, for `roll_back`."""
        cached, changed = self._keys.get(key), self.changes.get(key)
        rows = None if cached is None else dict(cached.rows)
        return rows, None if changed is None else dict(changed)

    def roll_back(self, key: bytes, savepoint: Savepoint) -> None:
        """Undo the changes of a key since a savepoint, at which the same transaction was running."""
        rows, changed = savepoint
        cached = self._keys.get(key)
        if cached is None:
            return
        if self.changes.pop(key, None) is not None and changed is None:
            cached.pins -= 1
        if changed is not None:
            self.changes[key] = changed
        # Of a key that was not known, nothing is: the index has its rows as they are.
        for suffix in cached.rows.keys() - (rows or {}).keys():
            row = cached.rows.pop(suffix)
            freed = _ROW_BYTES + len(suffix) + (0 if row is None else len(row))
            cached.size -= freed
            self.size -= freed
        for suffix, row in (rows or {}).items():
            self._set(cached, suffix, row)

    def take_changes(self) -> Changes:
        """Return the changes of the running transaction, and begin the next; their keys stay pinned."""
        taken, self.changes = self.changes, {}
        return taken

    def release(self, changes: Changes) -> None:
        """Note that the index has what `take_changes` returned; let keys leave for which there is no room."""
        for key, rows in changes.items():
            self._keys[key].pins -= 1
            self._forget_removed(key, rows)
        for _ in range(len(self._keys)):
            if self.size <= self._bytes_max:
                return
            key, cached = self._keys.popitem(last=False)
            if cached.pins:
                self._keys[key] = cached  # To the end: it was used lately.
            else:
                self.size -= cached.size

    def _forget_removed(self, key: bytes, rows: dict[bytes, bytes | None]) -> None:
        """Forget that rows are gone: a key that is always in use would collect the names of all that it ever had."""
        cached, changed = self._keys[key], self.changes.get(key, {})
        for suffix, row in rows.items():
            # What every transaction reads of a key (a variable's only row) stays known as absent.
            is_clean = suffix not in changed and cached.rows.get(suffix, UNKNOWN) is None
            if row is None and len(suffix) > VARIABLE_BYTES and is_clean:
                del cached.rows[suffix]
                cached.size -= _ROW_BYTES + len(suffix)
                self.size -= _ROW_BYTES + len(suffix)

    def _set(self, cached: _CachedKey, suffix: bytes, value: bytes | None) -> None:
        rows = cached.rows
        before = rows.get(suffix, UNKNOWN)
        grown = 0 if value is None else len(value)
        if before is UNKNOWN:
            grown += _ROW_BYTES + len(suffix)
        elif before is not None:
            grown -= len(before)
        rows[suffix] = value
        cached.size += grown
        self.size += grown
