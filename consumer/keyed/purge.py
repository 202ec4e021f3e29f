"""Rows of keys that a split has given away: they are hidden, and their removal, as far as the store keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from broadsheet.consumer.keyed.row_index import RowRange, RowSnapshot
from broadsheet.consumer.keyed.state_rows import GROUP_BYTES, STATE, TIMERS
from broadsheet.wire.key_range import ALL_KEYS, GROUPS, KeyRange

PURGED_BUSY: Final = 250
"""Rows that a transaction with rows of its own removes: some milliseconds, with its commit."""
PURGED_IDLE: Final = 1_000
"""The same of a transaction without rows: rows that come meanwhile wait for it."""


@dataclass(frozen=True, slots=True)
class Purge:
    """The removal of all rows outside of a range of groups."""

    owned: KeyRange
    begin: bytes = b""
    """Where it goes on."""
    is_over: bool = False

    @classmethod
    def of(cls, stored: bytes | None, owned: KeyRange) -> Purge:
        """Return what is left to do for a range.

        Args:
            stored: What `encode` returned, perhaps for another range.
            owned: The groups that the shard owns.
        """
        if stored is None:
            return cls(owned, is_over=owned.is_all)
        begin, end, at, is_over = msgspec.msgpack.decode(stored, type=tuple[int, int, bytes, bool])
        return cls(KeyRange(begin, end), at, is_over).of_range(owned)

    @staticmethod
    def kept_range(stored: bytes | None) -> KeyRange:
        """Return the groups whose rows the state has had all along: those of others were removed, or never came.

        Args:
            stored: What `encode` returned; None: nothing was to be removed.
        """
        if stored is None:
            return ALL_KEYS
        begin, end, _, _ = msgspec.msgpack.decode(stored, type=tuple[int, int, bytes, bool])
        return KeyRange(begin, end)

    def of_range(self, owned: KeyRange) -> Purge:
        """Return what is left to do once the shard owns a range: all of it, if that is another one."""
        if owned == self.owned:
            return self
        return Purge(owned, is_over=owned.is_all)

    def advanced(self, begin: bytes | None) -> Purge:
        """Return what is left to do behind a step; None: nothing."""
        if begin is None:
            return replace(self, begin=b"", is_over=True)
        return replace(self, begin=begin)

    def groups(self) -> tuple[int, int]:
        """Return how many foreign groups are done, and how many are left; a group has rows in two families."""
        foreign = GROUPS - (self.owned.end - self.owned.begin)
        if self.is_over:
            return foreign, 0
        if not self.begin:
            return 0, foreign
        family, group = self.begin[:1], int.from_bytes(self.begin[1 : 1 + GROUP_BYTES])
        # Of this family: those below the owned range, and those above it that were passed.
        passed = min(group, self.owned.begin) + max(0, group - self.owned.end)
        done = (passed + foreign * (family != min(STATE, TIMERS))) // 2
        return done, foreign - done

    def encode(self) -> bytes:
        """Return what the store keeps."""
        return msgspec.msgpack.encode((self.owned.begin, self.owned.end, self.begin, self.is_over))


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """A snapshot without the rows of keys that are not owned; implements `RowSnapshot`."""

    rows: RowSnapshot
    owned: KeyRange

    def get(self, key: bytes) -> bytes | None:
        """Return a value; None if there is none, or its key is not owned."""
        return self.rows.get(key) if self._shows(key) else None

    def items(self, ranges: Iterable[RowRange]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items of ranges whose keys are owned, in order."""
        return (item for item in self.rows.items(ranges) if self._shows(item[0]))

    def _shows(self, name: bytes) -> bool:
        if name[:1] not in (STATE, TIMERS):
            return True
        return int.from_bytes(name[1 : 1 + GROUP_BYTES]) in self.owned
