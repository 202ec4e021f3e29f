"""The taking in of another shard's rows, before its keys are ours: in steps, while that shard goes on changing them.

    its log ─► follower ─► its index, and the names that changed ─► a step in each of our transactions ─► our rows

Until a merge is committed the rows are of keys that are not owned: hidden from queries and scans, and removed if the
merge is given up. A step compares with what is here, so that what an earlier life took in costs no second write.

A name is noted *behind* its change in the index, and a step takes the names *before* it reads the index: so none is
taken in as it was before a change that is no longer looked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed.committed_index import CommittedIndex
from broadsheet.consumer.keyed.registry import REGISTRY, REMOVAL, Removal
from broadsheet.consumer.keyed.row_index import Rows
from broadsheet.consumer.keyed.state_rows import META, STATE, TIMERS, group_bytes
from broadsheet.consumer.keyed.txn_time import TIMES, TimeState
from broadsheet.wire.key_range import KeyRange

KEY_TYPES: Final = b"key"
"""Name under which the types of keys are kept."""
_STEP: Final = 1024
STEP_BYTES: Final = 1 << 18
"""Of rows that a transaction takes in, about: rows that arrive meanwhile wait until all of it is recorded."""
_NEAR_ROWS: Final = 4096
"""Rows that may be left when the other shard is asked to rest: they are taken in meanwhile."""


class ChangedNames:
    """Names of the rows that changed in an index since they were taken last. Any thread may call."""

    def __init__(self) -> None:
        """Know of no change."""
        self._lock = threading.Lock()
        self._names: dict[bytes, None] = {}
        self.round = 0
        """Grows whenever the index is rebuilt: all of its rows may have changed."""

    def begin_round(self) -> None:
        """Forget all names: the index is rebuilt."""
        with self._lock:
            self._names.clear()
            self.round += 1

    def note(self, names: Iterable[bytes]) -> None:
        """Note rows whose changes are in the index."""
        with self._lock:
            self._names.update(dict.fromkeys(names))

    def take(self, limit: int | None, *, of_round: int) -> list[bytes] | None:
        """Return the names that were noted first, and forget them; None if another round has begun.

        Args:
            limit: Names at most; None: all.
            of_round: The round that the caller reads.
        """
        with self._lock:
            if self.round != of_round:
                return None
            if limit is None or limit >= len(self._names):
                taken, self._names = list(self._names), {}
                return taken
            taken = [name for name, _ in zip(self._names, range(limit), strict=False)]
            for name in taken:
                del self._names[name]
            return taken

    def __len__(self) -> int:
        return len(self._names)


class LendingFollower(Protocol):
    """Follower of the other shard's files; `KeyedFollower` is one."""

    changed: ChangedNames | None

    def lend(self) -> CommittedIndex:
        """Return the index, which the caller is to release.

        Raises:
            StoreError: there is none that is complete.
        """
        ...


class TakingStore(Protocol):
    """The store that takes the rows in."""

    def meta(self, name: bytes) -> bytes | None:
        """Return what is kept of no key under a name."""
        ...

    def names_between(self, begin: bytes, end: bytes) -> list[bytes]:
        """Return the names of the rows in [begin, end) as of the last commit."""
        ...

    def take_rows(self, rows: Rows, key_end: Callable[[bytes], int]) -> None:
        """Make rows what they are elsewhere, with their entries; None removes one."""
        ...


class Absorption:
    """The rows of one range of groups on their way into a store. `step` is called on the store's thread."""

    def __init__(self, follower: LendingFollower, given: KeyRange) -> None:
        """Take in nothing yet.

        Args:
            follower: Of the shard that has the rows. Rows of changes that it has followed by now are read with all.
            given: Its groups.
        """
        self.given = given
        self._follower = follower
        self._changed = follower.changed = ChangedNames()
        self._round = -1
        self._ranges = [
            (family + group_bytes(given.begin), family + group_bytes(given.end))
            for family in sorted((STATE, TIMERS))
        ]
        self._at: bytes | None = None
        """All before is taken in, but for what changed since; None: all is."""
        self.refusal = ""
        """Why rows cannot be taken in, if they cannot: for the caller of the merge."""
        self.taken_rows = 0
        """That were looked at, in this life."""
        self._total_rows = 0
        """Of the other shard, about."""
        self.ends = False
        """The other shard rests, and its index is at its end: the next step takes in all that is left."""
        self.is_complete = False
        """All is taken in, by the running transaction or before."""
        self.times: TimeState | None = None
        """The other shard's, once all is taken in."""
        self.set_aside: set[bytes] = set()
        """Entries of the indexes by time that came up before their keys were ours."""

    @property
    def has_begun(self) -> bool:
        """Report whether an index was there to read."""
        return self._round >= 0

    @property
    def has_work(self) -> bool:
        """Report whether a step would do something now."""
        if self.is_complete or self.refusal:
            return False
        is_scanned = self._at is None and self._round == self._changed.round
        return self.ends or (self.has_begun and (not is_scanned or len(self._changed) > 0))

    @property
    def is_near(self) -> bool:
        """Report whether so little is left that the other shard may rest for it."""
        is_scanned = self._at is None and self._round == self._changed.round
        return self.has_begun and is_scanned and len(self._changed) <= _NEAR_ROWS

    def left_rows(self) -> int:
        """Return about how many rows are left; negative: unknown."""
        if not self.has_begun:
            return -1
        unread = 0 if self._at is None else max(0, self._total_rows - self.taken_rows)
        return unread + len(self._changed)

    def are_all_taken(self) -> bool:
        """Report whether all rows are taken in, by the running transaction or before."""
        return self.is_complete

    def finish(self) -> None:
        """Have the next step take in all that is left, because the other shard rests and its index is at its end."""
        self.ends = True

    def step(self, store: TakingStore, key_end: Callable[[bytes], int], budget: int) -> bool:
        """Take rows in; all that are left once `finish` was called. Return whether all are.

        Args:
            store: Into which.
            key_end: Returns where the key ends in a name.
            budget: Rows to look at, about; fewer if they are large.
        """
        of_round = self._changed.round
        try:
            index = self._follower.lend()
        except StoreError:
            return False
        try:
            if self._changed.round == of_round:
                affordable = None if self.ends else min(budget, _rows_of(STEP_BYTES, index))
                self._take(index, of_round, store, key_end, affordable)
        finally:
            index.release()
        return self.is_complete

    def _take(
        self,
        index: CommittedIndex,
        of_round: int,
        store: TakingStore,
        key_end: Callable[[bytes], int],
        budget: int | None,
    ) -> None:
        if of_round != self._round:
            self._round, self._at = of_round, self._ranges[0][0]
        self._total_rows, _ = index.rows.size()
        self.refusal = _why_foreign(index, store)
        if self.refusal:
            return
        names = self._changed.take(budget, of_round=of_round)
        if names is None:
            return
        wanted = [name for name in names if self._is_behind(name)]
        rows: Rows = dict(zip(wanted, index.rows.get_many(wanted), strict=True)) if wanted else {}
        store.take_rows(rows, key_end)
        self.taken_rows += len(rows)
        left = None if budget is None else budget - len(names)
        while self._at is not None and (left is None or left > 0):
            rows = self._next_part(index, store, _STEP if left is None else min(_STEP, left))
            store.take_rows(rows, key_end)
            self.taken_rows += len(rows)
            left = None if left is None else left - max(1, len(rows))
        if self.ends and self._at is None:
            (times,) = index.rows.get_many([META + TIMES])
            self.times = None if times is None else msgspec.msgpack.decode(times, type=TimeState)
            self.is_complete = True

    def _is_behind(self, name: bytes) -> bool:
        """Report whether a row is of our groups, and before what is still to be read in order."""
        if not any(begin <= name < end for begin, end in self._ranges):
            return False
        return self._at is None or name < self._at

    def _next_part(self, index: CommittedIndex, store: TakingStore, limit: int) -> Rows:
        """Return the next rows in order, with None for those that are here only; go on behind them."""
        at = self._at
        assert at is not None, "not all is read"
        position = next(
            place for place, (begin, end) in enumerate(self._ranges) if begin <= at < end
        )
        end = self._ranges[position][1]
        found = index.rows.scan(at, end, limit)
        behind = found[-1][0] + b"\x00" if len(found) == limit else end
        theirs = dict(found)
        ours = {name: None for name in store.names_between(at, behind) if name not in theirs}
        if behind < end:
            self._at = behind
        else:
            following = self._ranges[position + 1 :]
            self._at = following[0][0] if following else None
        return {**theirs, **ours}


def _rows_of(size_bytes: int, index: CommittedIndex) -> int:
    """Return how many rows have so many bytes on average; one at least."""
    rows, total_bytes = index.rows.size()
    return max(1, size_bytes * rows // total_bytes) if total_bytes else size_bytes


def _why_foreign(index: CommittedIndex, store: TakingStore) -> str:
    """Return why another shard's rows cannot be read as ours; empty if they can."""
    names = (KEY_TYPES, REGISTRY, REMOVAL)
    theirs = index.rows.get_many([META + name for name in names])
    ours = [store.meta(name) for name in names]
    if theirs[0] != ours[0]:
        return "its keys have other types"
    if _numbers(theirs[1]) != _numbers(ours[1]):
        return (
            "its variables are stored under other numbers, because the two shards began with other releases of the "
            "application"
        )
    if _is_removing(theirs[2]) or _is_removing(ours[2]):
        return "rows of a variable that was removed are still there: they go with the next transactions"
    return ""


def _numbers(registry: bytes | None) -> object:
    return None if registry is None else msgspec.msgpack.decode(registry)


def _is_removing(removal: bytes | None) -> bool:
    return removal is not None and bool(msgspec.msgpack.decode(removal, type=Removal).numbers)


def hull(one: KeyRange, other: KeyRange) -> KeyRange:
    """Return the groups from the first of two ranges to the last."""
    return KeyRange(min(one.begin, other.begin), max(one.end, other.end))
