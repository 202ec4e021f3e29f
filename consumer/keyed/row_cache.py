"""Rows of keys in memory, bounded by bytes: what was read lately, and what transactions changed.

A key's rows that a transaction changed are pinned until the index has them, so a row that is not here is in the index
as it is now. Clean keys leave in the order in which transactions used them last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Final

from broadsheet.consumer.keyed.row_index import Rows

Changes = dict[bytes, dict[bytes, bytes | None]]
"""Changed rows: by key, then by suffix; None is a deletion."""
_KEY_BYTES: Final = 250
"""Memory of a key beside its bytes."""
_ROW_BYTES: Final = 120
"""Memory of a row beside its bytes."""


class _CachedKey:
    __slots__ = ("pins", "rows", "size")

    def __init__(self, size: int) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.size = size
        self.pins = 0
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

    def known(self, key: bytes, suffix: bytes) -> tuple[bool, bytes | None]:
        """Return whether a row is known here, and its value; None: there is no such row."""
        cached = self._keys.get(key)
        if cached is None or suffix not in cached.rows:
            return False, None
        return True, cached.rows[suffix]

    def learn(self, key: bytes, suffix: bytes, value: bytes | None) -> None:
        """Take over what the index holds of a row that is not known here."""
        self._set(self._key(key), suffix, value)

    def change(self, key: bytes, suffix: bytes, value: bytes | None) -> None:
        """Change a row in the running transaction."""
        cached = self._key(key)
        changed = self.changes.get(key)
        if changed is None:
            changed = self.changes[key] = {}
            cached.pins += 1
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

    def take_changes(self) -> Changes:
        """Return the changes of the running transaction, and begin the next; their keys stay pinned."""
        taken, self.changes = self.changes, {}
        return taken

    def release(self, changes: Changes) -> None:
        """Note that the index has what `take_changes` returned; let keys leave for which there is no room."""
        for key in changes:
            self._keys[key].pins -= 1
        for _ in range(len(self._keys)):
            if self.size <= self._bytes_max:
                return
            key, cached = self._keys.popitem(last=False)
            if cached.pins:
                self._keys[key] = cached  # To the end: it was used lately.
            else:
                self.size -= cached.size

    def _key(self, key: bytes) -> _CachedKey:
        cached = self._keys.get(key)
        if cached is None:
            cached = self._keys[key] = _CachedKey(_KEY_BYTES + len(key))
            self.size += cached.size
        return cached

    def _set(self, cached: _CachedKey, suffix: bytes, value: bytes | None) -> None:
        before = cached.rows.get(suffix)
        grown = len(value or b"") - len(before or b"")
        if suffix not in cached.rows:
            grown += _ROW_BYTES + len(suffix)
        cached.rows[suffix] = value
        cached.size += grown
        self.size += grown
