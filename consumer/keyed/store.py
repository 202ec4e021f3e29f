"""The store of a keyed shard: rows by key, with indexes of timers and of expiries.

    transaction ─► cache of rows, changes ─┐ commit: the rows that changed
                        ▲ rows that miss   ▼
                    local index ◄─ durable ─ files (a frame a commit, snapshots of ranges now and then)

With a recovery log a commit is durable when the log has its frame; without one when the file is synced, and the
directory's lock keeps others out. The local index follows what is durable, so it is what queries read. It is not
recorded: a RocksDB that records its own files ships each byte as often as it has levels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
import structlog

from broadsheet.consumer.application import Shard
from broadsheet.consumer.elastic.fork import drop_parents_intents
from broadsheet.consumer.elastic.group_load import Counts
from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.keyed.absorption import Absorption, LendingFollower, hull
from broadsheet.consumer.keyed.committed_index import CommittedIndex, CommittedRowsView
from broadsheet.consumer.keyed.entry_index import EntryIndex
from broadsheet.consumer.keyed.follower import INDEX_DIRECTORY, KeyedFollower
from broadsheet.consumer.keyed.purge import OwnedRows, Purge
from broadsheet.consumer.keyed.recording import (
    GROUPS_PER_RANGE,
    SNAPSHOT_BYTES_MIN,
    KeyedFiles,
    KeyedFrame,
    ReadTo,
    new_frame,
)
from broadsheet.consumer.keyed.row_cache import UNKNOWN, Changes, RowCache
from broadsheet.consumer.keyed.row_index import (
    MemoryIndex,
    RocksIndex,
    RowIndex,
    Rows,
    RowSnapshot,
    after_prefix,
    all_items,
    is_damage,
    remove_index,
)
from broadsheet.consumer.keyed.state_rows import (
    DUE,
    FILED,
    GROUP_BYTES,
    META,
    STATE,
    TIMERS,
    VARIABLE_BYTES,
    due_entry,
    entries_of,
    entries_replaced,
    filed_entry,
    group_bytes,
    place_of,
)
from broadsheet.consumer.keyed.timers import expiries_of, row_of, with_expiry, without_expiry
from broadsheet.consumer.recoverylog.local_state import LocalState, local_state_of
from broadsheet.consumer.stores.commit_thread import CommitRunner, CommitSteps, CommitThread
from broadsheet.consumer.stores.directory_lock import StoreDirectory
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint, whole_checkpoint
from broadsheet.journals.message.checkpoint import EncodedCheckpoint, encoded
from broadsheet.runtime.errors import ExtraMissingError
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.key_range import ALL_KEYS, GROUPS, KeyRange
from broadsheet.wire.shard_pb2 import Checkpoint

_log = structlog.get_logger()
CACHE_BYTES: Final = 64 << 20
IndexKind = Literal["rocksdb", "memory"]
_STEP: Final = 4096
_PART_ROWS: Final = 1024
"""Rows of a part of a snapshot: what a commit may wait for."""
_DUE_STEP: Final = 128
"""Timers that are looked up at once. The look holds up all threads of the process for some milliseconds."""
FORKED: Final = b"fork"
"""What is kept of no key: the attempt by which a split made this shard, once its first transaction has begun."""
PURGED: Final = b"purged"
"""What is kept of no key: the range of groups outside of which no rows are left, or how far their removal is."""
_TIMERS_SUFFIX: Final = b""
"""Stands in the cache for the row of a key's timers."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A commit."""

    rows: Rows
    entries: Rows
    """Of the two indexes by time."""
    checkpoint: EncodedCheckpoint


class KeyedStore:
    """Keeps the rows of a shard's keys."""

    def __init__(
        self,
        shard: Shard,
        local_state: LocalState | None = None,
        *,
        index: IndexKind = "rocksdb",
        cache_bytes: int = CACHE_BYTES,
        snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
        lock_wait_seconds: float = 10.0,
        commits: CommitRunner | None = None,
    ) -> None:
        """Create a store; nothing is read before `restore_checkpoint`.

        Args:
            shard: The shard; if it has a recovery log, its `local_state` is where the files are.
            local_state: Where the files are if the shard has no recovery log.
            index: Where rows are looked up: in a RocksDB, or in memory, where all of them must fit.
            cache_bytes: Of rows that are kept in memory beside those that a transaction changed.
            snapshot_bytes_min: Least bytes of changes after which a part of the state is written again.
            lock_wait_seconds: Longest wait for another holder of a directory that stays.
            commits: Runs the commits; None: a thread of the store's own.

        Raises:
            UnsupportedSpecError: there is neither a recovery log nor a `local_state`.
        """
        self._fqn = shard.fqn
        self._local_state = local_state_of(shard, local_state)
        self._is_shards_own = shard.local_state is not None
        self._index_kind = index
        self._cache_bytes = cache_bytes
        self._files = KeyedFiles(
            shard.fqn, self._local_state, snapshot_bytes_min=snapshot_bytes_min
        )
        self._directory = StoreDirectory(
            shard.fqn, self._local_state, lock_wait_seconds=lock_wait_seconds
        )
        self._commits: CommitRunner = commits or CommitThread(
            shard.fqn, recorded=self._local_state.recorder is not None
        )
        self.keeps_segments = True
        self._index: CommittedIndex | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._group_rows: Counts | None = None
        self.owned = ALL_KEYS
        """Groups whose rows count; rows of others, which a split has given away, are removed in time."""
        self.absorption: Absorption | None = None
        """The taking in of another shard's rows; None: none is taken in."""
        self._begin(MemoryIndex())

    def _begin(self, index: RowIndex) -> None:
        """Begin with no changes to what an index has."""
        self._cache = RowCache(self._cache_bytes)
        self._committing: Changes = {}
        self._meta: dict[bytes, bytes | None] = {}
        self._dropped: dict[bytes, bytes | None] = {}
        """Removals of rows and entries, whatever their keys."""
        self._due = EntryIndex(index, DUE)
        self._filed = EntryIndex(index, FILED)
        self._prefetched: set[bytes] = set()
        """Suffixes that transactions read, which are fetched for all keys of the next at once."""
        self._has_learned = False
        """There are some more of them since the last fetch."""

    # -- the rows of the running transaction, on the worker thread

    def get(self, place: bytes, suffix: bytes) -> bytes | None:
        """Return a row of a key; None if there is none.

        Args:
            place: `place_of` the key.
            suffix: Of the row.
        """
        known = self._cache.get(place, suffix)
        if known is not UNKNOWN:
            return known
        (value,) = self._required().get_many([_name(place, suffix)])
        self._cache.learn(place, suffix, value)
        if len(suffix) <= VARIABLE_BYTES and suffix not in self._prefetched:
            self._prefetched.add(suffix)
            self._has_learned = True
        return value

    def fetch(self, names: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        """Return rows of keys, those that are not in memory in one look; shape (len(names),).

        Args:
            names: (place, suffix) of each, distinct.
        """
        for _ in self._cache.touch(dict.fromkeys(place for place, _ in names)):
            pass
        rows: list[bytes | None] = []
        unknown = []
        for at, (place, suffix) in enumerate(names):
            known = self._cache.get(place, suffix)
            if known is UNKNOWN:
                unknown.append(at)
                known = None
            rows.append(known)
        if unknown:
            found = self._required().get_many([_name(*names[at]) for at in unknown])
            for at, row in zip(unknown, found, strict=True):
                self._cache.learn(*names[at], row)
                rows[at] = row
        return rows

    def put(self, place: bytes, suffix: bytes, row: bytes | None) -> None:
        """Change a row of a key; None removes it."""
        self._cache.change(place, suffix, row)

    def rows_of(self, place: bytes, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return (suffix, row) of the rows of a key whose suffixes begin with a prefix, in order."""
        begin = STATE + place + prefix
        stored = all_items(self._required(), begin, after_prefix(begin), step=_STEP)
        at = 1 + len(place)
        rows: dict[bytes, bytes | None] = {name[at:]: row for name, row in stored}
        rows |= self._cache.rows(place, prefix)
        return sorted((suffix, row) for suffix, row in rows.items() if row is not None)

    def prefetch(self, places: Sequence[bytes]) -> None:
        """Fetch what transactions usually read of keys that are not in memory, in one look."""
        unknown = list(self._cache.touch(places))
        self._has_learned = False
        suffixes = sorted(self._prefetched)
        if not unknown or not suffixes:
            return
        wanted = [_name(place, suffix) for place in unknown for suffix in suffixes]
        self._cache.learn_keys(unknown, suffixes, self._required().get_many(wanted))

    def prefetch_learned(self, places: Sequence[bytes]) -> None:
        """Fetch once more if the transaction has read what none did before it."""
        if self._has_learned:
            self.prefetch(places)

    def count_rows(self, places: Sequence[bytes], ends: Sequence[int]) -> None:
        """Count the rows of a transaction by group, if anybody asked for that.

        Args:
            places: Of its distinct keys, shape (K,).
            ends: Where the rows of each key end, shape (K,).
        """
        if self._group_rows is None:
            return
        groups = np.frombuffer(b"".join(place[:GROUP_BYTES] for place in places), ">u2")
        rows = np.diff(np.asarray(ends, np.int64), prepend=0)
        # In place, because another thread may hold the counters.
        np.add.at(self._group_rows, groups, rows)

    def group_rows(self) -> Counts:
        """Return the rows handled by group since the first call, shape (GROUPS,); on any thread."""
        if self._group_rows is None:
            self._group_rows = np.zeros(GROUPS, np.int64)
        return self._group_rows.copy()

    @contextmanager
    def savepoint(self, place: bytes) -> Iterator[None]:
        """Undo what the block changed of a key, its timers and its expiries, if the block raises.

        The block may change no other key.
        """
        saved = self._cache.savepoint(place)
        self._due.savepoint()
        self._filed.savepoint()
        try:
            yield
        except BaseException:
            self._cache.roll_back(place, saved)
            self._due.roll_back()
            self._filed.roll_back()
            raise
        self._due.release()
        self._filed.release()

    def stored_rows(self, begin: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return (place and suffix, row) of the first rows of keys at or behind a place, as of the last commit.

        Args:
            begin: A place and suffix.
            limit: Rows at most.
        """
        found = self._required().scan(STATE + begin, after_prefix(STATE), limit)
        return [(name[1:], row) for name, row in found]

    # -- the rows of another shard, which a merge is to give to this one

    def absorb(self, follower: LendingFollower, given: KeyRange) -> Absorption:
        """Begin to take in the rows of some groups of another shard, a part with each transaction.

        Args:
            follower: Keeps the index of that shard.
            given: Its groups.
        """
        self.absorption = Absorption(follower, given)
        return self.absorption

    def stop_absorbing(self) -> None:
        """Take in no more; idempotent. Rows of groups that are not owned by then are removed in time."""
        absorption, self.absorption = self.absorption, None
        if absorption is not None:
            # Entries whose keys are not owned are dropped when they come up.
            for entry in absorption.set_aside:
                self._entries_with(entry).add(entry)

    @property
    def kept(self) -> KeyRange:
        """Groups whose rows are not removed: those that are owned, and those that are taken in."""
        absorption = self.absorption
        return self.owned if absorption is None else hull(self.owned, absorption.given)

    def names_between(self, begin: bytes, end: bytes) -> list[bytes]:
        """Return the names of the recorded rows in [begin, end) as of the last commit."""
        return self._required().names(begin, end, sys.maxsize)

    def take_rows(self, rows: Rows, key_end: Callable[[bytes], int]) -> None:
        """Make recorded rows what they are elsewhere, with their entries in the indexes by time.

        Args:
            rows: By name; None removes one.
            key_end: Returns where the key ends in a name.
        """
        names = list(rows)
        places = [(name[1 : (end := key_end(name))], name[end:]) for name in names]
        for name, (place, suffix), before in zip(names, places, self.fetch(places), strict=True):
            row = rows[name]
            if row != before:
                for entry in entries_replaced([(name, before)]):
                    self._entries_with(entry).remove(entry)
                self.put(place, suffix, row)
            # Also of a row that is here already: what came up while its key was neither ours nor taken in is dropped.
            for entry in entries_of({name: row}):
                self._entries_with(entry).add(entry)

    def _entries_with(self, entry: bytes) -> EntryIndex:
        return self._due if entry[:1] == DUE else self._filed

    def foreign_names(self, begin: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """Return names of rows of keys that are not owned, as of the last commit, and where to go on.

        Args:
            begin: Where an earlier call said; empty: at the beginning.
            limit: Rows at most.

        Returns:
            Family, group, key and suffix of each; None in place of the second: these were the last.
        """
        found: list[bytes] = []
        for first, end in self._foreign_ranges():
            at = max(first, begin)
            while at < end:
                part = self._required().names(at, end, limit - len(found))
                found += part
                if len(found) >= limit:
                    return found, found[-1] + b"\x00"
                if not part:
                    break
                at = part[-1] + b"\x00"
        return found, None

    def _foreign_ranges(self) -> list[tuple[bytes, bytes]]:
        """Return where rows of groups lie that are not owned, ascending."""
        owned = self.kept
        ranges = []
        for family in sorted((STATE, TIMERS)):
            ranges.append((family, family + group_bytes(owned.begin)))
            ranges.append((family + group_bytes(owned.end), after_prefix(family)))
        return [(begin, end) for begin, end in ranges if begin < end]

    def purged_groups(self, owned: KeyRange) -> tuple[int, int]:
        """Return of how many other groups no rows are left, and how many are to do, as of the last durable commit.

        On any thread.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        return Purge.of(self._required().get_many([META + PURGED])[0], owned).groups()

    def meta(self, name: bytes) -> bytes | None:
        """Return what is kept of no key under a name."""
        if name in self._meta:
            return self._meta[name]
        return self._required().get_many([META + name])[0]

    def put_meta(self, name: bytes, content: bytes | None) -> None:
        """Keep something that is of no key, under a name that does not begin with a zero byte; None removes it."""
        self._meta[name] = content

    # -- all of the state at once, while no transaction runs

    @property
    def has_commits(self) -> bool:
        """True if there is any commit."""
        return bool(self._committed().number)

    def meta_names(self) -> list[bytes]:
        """Return the names under which something is kept that is of no key, as of the last commit."""
        return [name[len(META) :] for name in self._committed().others()]

    def drop_rows(self, limit: int) -> int:
        """Have the next commit remove rows and entries of all kinds, as of the last commit; return how many.

        Their keys need not be those of the application.

        Args:
            limit: Rows at most of each kind.
        """
        for family in (STATE, TIMERS, DUE, FILED):
            found = self._required().scan(family, after_prefix(family), limit)
            self._dropped |= dict.fromkeys(name for name, _ in found)
        return len(self._dropped)

    # -- timers and expiries of the running transaction

    def expiries(self, key: bytes) -> list[int]:
        """Return the expiries of a key's timers, ascending."""
        return expiries_of(self.get(place_of(key), _TIMERS_SUFFIX))

    def add_timer(self, key: bytes, expiry_ms: int) -> None:
        """Add a timer; nothing if it is there."""
        expiries = with_expiry(self.expiries(key), expiry_ms)
        if expiries is not None:
            self.put(place_of(key), _TIMERS_SUFFIX, row_of(expiries))
            self._due.add(due_entry(expiry_ms, key))

    def remove_timer(self, key: bytes, expiry_ms: int) -> None:
        """Remove a timer, and its entry in the index; nothing if there is none."""
        self._due.remove(due_entry(expiry_ms, key))
        place = place_of(key)
        expiries = without_expiry(expiries_of(self.get(place, _TIMERS_SUFFIX)), expiry_ms)
        if expiries is not None:
            self.put(place, _TIMERS_SUFFIX, row_of(expiries))

    def due_timers(self, bound_ms: int) -> Iterator[list[tuple[int, bytes]]]:
        """Return an iterator of (expiry, key) of the timers that are due as of now, in this order, in parts.

        A part is looked up when it is asked for, so a storm costs a transaction no more than the timers that it fires.
        Timers that are added or removed meanwhile change nothing. A part may be empty.

        Args:
            bound_ms: The last expiry that is due.
        """
        return map(self._due_among, self._due.iterate(bound_ms, _DUE_STEP))

    def _due_among(self, entries: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Return the entries that keys confirm; remove the others, which the index may have after a making of it."""
        self._prefetched.add(_TIMERS_SUFFIX)
        places = [place_of(key) for _, key in entries]
        self.prefetch(list(dict.fromkeys(places)))
        timers = []
        for (expiry, key), place in zip(entries, places, strict=True):
            is_set = expiry in expiries_of(self.get(place, _TIMERS_SUFFIX))
            # The handler of an earlier timer may have removed it: what was due at the beginning fires all the same.
            is_set = is_set or self._due.is_removed(due_entry(expiry, key))
            if is_set and self._is_owned(place):
                timers.append((expiry, key))
                continue
            self._due.remove(due_entry(expiry, key))
            self._set_aside(place, due_entry(expiry, key))
        return timers

    def _is_owned(self, place: bytes) -> bool:
        return self.owned.is_all or _group_at(place) in self.owned

    def _set_aside(self, place: bytes, entry: bytes) -> None:
        """Keep an entry that came up for when its key is ours, if the key is taken in."""
        if self.absorption is not None and _group_at(place) in self.absorption.given:
            self.absorption.set_aside.add(entry)

    def next_timer_ms(self) -> int | None:
        """Return the earliest expiry of any timer; None if there is none."""
        return self._due.first()

    def file(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        """Have a sweep look at a row at a time."""
        self._filed.add(filed_entry(time_ms, place, suffix))

    def unfile(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        """Have no sweep look at a row at a time."""
        self._filed.remove(filed_entry(time_ms, place, suffix))

    def take_filed(self, time_ms: int, place: bytes, suffix: bytes) -> bool:
        """Have no sweep look at a row that has come up; return whether its key is owned.

        Rows of other keys are another shard's to change: what is taken in must be what is there, and a list may be here
        in part.
        """
        self.unfile(time_ms, place, suffix)
        is_owned = self._is_owned(place)
        if not is_owned:
            self._set_aside(place, filed_entry(time_ms, place, suffix))
        return is_owned

    def filed_until(self, time_ms: int, limit: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Return (time, place and suffix) of what a sweep looks at, and whether there is more."""
        return self._filed.until(time_ms, limit)

    def first_filed_ms(self) -> int | None:
        """Return the earliest time at which a sweep looks at a row; None if there is none."""
        return self._filed.first()

    # -- the last durable commit, on any thread

    def committed(self, place: bytes, suffix: bytes) -> bytes | None:
        """Return a row of a key as of the last durable commit; None if there is none.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        return self._required().get_many([_name(place, suffix)])[0]

    def committed_scan(self, place: bytes, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return (suffix, row) of rows of a key as of the last durable commit, in order.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        begin = STATE + place + prefix
        # In one scan, so that all rows are of one commit.
        stored = self._required().scan(begin, after_prefix(begin), sys.maxsize)
        return [(name[1 + len(place) :], row) for name, row in stored]

    @contextmanager
    def view(self) -> Iterator[CommittedRowsView]:
        """Return all rows as of one commit, whatever is committed later; on any thread.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        view = self._committed().view(self.owned)
        try:
            yield view
        finally:
            # An iterator that somebody still refers to would keep the database open.
            view.drop()

    @contextmanager
    def reading(self) -> Iterator[tuple[RowSnapshot, Checkpoint]]:
        """Return the rows of the last durable commit, and its checkpoint, for brief look-ups; on any thread.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        with self._committed().reading() as (rows, checkpoint):
            owned = self.owned
            yield (rows if owned.is_all else OwnedRows(rows, owned)), checkpoint

    def size(self) -> tuple[int, int]:
        """Return the number of rows and their bytes, about, in constant time; on any thread.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        index = self._committed()
        # Another thread may destroy the store meanwhile, and an index that is closed cannot be asked.
        if not index.acquire():
            raise StoreClosedError(self._fqn)
        try:
            return index.rows.size()
        finally:
            index.release()

    def committed_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place and suffix, row) of all rows of keys; each step shows the commits that are durable by then.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        begin, end = STATE, after_prefix(STATE)
        while part := self._required().scan(begin, end, _STEP):
            yield from ((name[1:], row) for name, row in part)
            begin = part[-1][0] + b"\x00"

    # -- the shard's interface

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Read the files if they are not read yet, drop what is not committed, and return the last checkpoint."""
        del shard
        try:
            if self._index is None:
                self._open()
            else:
                self._check_writable()
                self._commits.wait()
        except OSError as error:
            raise StoreError(self._fqn, f"cannot restore: {error}") from error
        index = self._committed()
        self._begin(index.rows)
        self.stop_absorbing()
        checkpoint = stored_checkpoint(self._fqn, index.checkpoint)
        whole = whole_checkpoint(self._fqn, checkpoint, index.segments)
        fork = self._local_state.fork.encode()
        if fork and self.meta(FORKED) != fork:
            drop_parents_intents(whole)
            self.put_meta(FORKED, fork)
        return whole

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Commit the changes so far and `checkpoint` together, on a separate thread, after `wait_for`."""
        del shard
        self._check_writable()
        # The commit before is durable, so the index has its rows.
        self._cache.release(self._committing)
        self._committing = self._cache.take_changes()
        rows: dict[bytes, bytes | None] = {
            _name(place, suffix): row
            for place, changed in self._committing.items()
            for suffix, row in changed.items()
        }
        rows |= {META + name: content for name, content in self._meta.items()}
        entries = self._due.take_changes() | self._filed.take_changes()
        dropped, self._dropped = self._dropped, {}
        for name in dropped:
            # The indexes by time are not recorded.
            (rows if name[:1] in (STATE, TIMERS) else entries)[name] = None
        change = _Change(rows, entries, encoded(checkpoint))
        return self._commits.start(
            CommitSteps(
                write=partial(self._write, change),
                recorder=self._local_state.recorder,
                settle=partial(self._settle, change),
                tidy=partial(self._tidy, change),
                fail=self._fail,
            ),
            wait_for,
        )

    def open_copy(self) -> None:
        """Read what a standby has played, for scans only: its index if it keeps one, else a copy of its files.

        Raises:
            StoreError: the primary has made no files yet, or they are damaged.
        """
        if not self._is_shards_own:
            raise StoreError(self._fqn, "its files are its primary's, and no standby has them")
        follower = self._local_state.follower
        if isinstance(follower, KeyedFollower):
            self._index = follower.lend()
            return
        try:
            index = self._loaded(self._new_index(), {}, tidies=False)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot open a copy: {error}") from error
        self._index = index
        if not index.number:
            raise StoreError(self._fqn, "the primary has not made its files yet")

    def destroy(self) -> None:
        """Abort a commit that still waits; remove the files if the recovery log has them."""
        self._closed = True
        try:
            self._commits.close()
        finally:
            index, self._index = self._index, None
            if index is not None:
                index.release()
            self._files.close()
            self._directory.leave()

    # -- opening

    def _open(self) -> None:
        self._check_open()
        self._directory.claim()
        # Before the index is made, which would be a stranger among another store's files.
        self._files.check()
        follower = self._local_state.follower
        taken = follower.take() if isinstance(follower, KeyedFollower) else None
        index, read_to = taken or (self._own_index(), {})
        if index.number and not self._files.resumes(index.number):
            # Changes are gone that it lacks, so only the snapshots have them.
            index.release()
            remove_index(self._index_directory)
            index, read_to = self._new_index(), {}
        before = index.number
        self._index = self._loaded(index, read_to, tidies=True)
        # An index that is made of all files takes as long as the state is large.
        _log.info(
            "keyed.index_opened",
            shard=self._fqn,
            commit=index.number,
            commits_behind=index.number - before if before else None,
            from_standby=bool(before and taken),
        )

    def _own_index(self) -> CommittedIndex:
        """Open the index of this directory; rebuild it from the files if it is damaged."""
        try:
            return self._new_index()
        except StoreError as error:
            if not is_damage(error.__cause__):
                raise
            # For example because the power failed while RocksDB created its first files.
            _log.warning("keyed.index_rebuilt", shard=self._fqn, cause=str(error))
            remove_index(self._index_directory)
            return self._new_index()

    def _new_index(self) -> CommittedIndex:
        return CommittedIndex(
            self._fqn, opened_index(self._fqn, self._index_kind, self._index_directory)
        )

    @property
    def _index_directory(self) -> Path:
        return self._local_state.directory / INDEX_DIRECTORY

    def _loaded(self, index: CommittedIndex, read_to: ReadTo, *, tidies: bool) -> CommittedIndex:
        """Bring an index from its commit to the last one."""
        try:
            if index.number:
                self._continue(index, read_to, tidies=tidies)
            else:
                for frame, rows in self._files.load(tidies=tidies):
                    index.begin_again(frame, rows)
                index.complete()
        except BaseException:
            index.release()
            raise
        return index

    def _continue(self, index: CommittedIndex, read_to: ReadTo, *, tidies: bool) -> None:
        known = index.number
        for frame, rows in self._files.load(after=known, read_to=read_to, tidies=tidies):
            if frame.number > known:
                index.follow(frame, rows)
            elif frame.checkpoint != index.checkpoint:
                raise self._strange_index(f"commit {known} of its index is another one")
        ends = self._files.last_number
        if index.number < ends:
            raise self._strange_index(
                f"its index is at commit {index.number}, and its files lack what leads to {ends}"
            )
        if known > ends:
            raise self._strange_index(
                f"its index is at commit {known}, and its files end at {ends}"
            )

    def _strange_index(self, what: str) -> StoreError:
        return StoreError(
            self._fqn, f"{what}: restore the files, or remove {self._index_directory}"
        )

    # -- committing, on the commit's thread

    def _write(self, change: _Change) -> OpFuture | None:
        frame = new_frame(
            change.rows,
            self._committed().number + 1,
            change.checkpoint.checkpoint,
            dict(change.checkpoint.new_segments),
        )
        try:
            return self._files.append(frame)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot commit: {error}") from error

    def _settle(self, change: _Change) -> None:
        index, checkpoint = self._committed(), change.checkpoint
        rows = {**change.rows, **change.entries}
        index.apply(rows, index.number + 1, checkpoint.checkpoint, checkpoint.new_segments)

    def _tidy(self, change: _Change) -> None:
        index = self._committed()
        try:
            if self._files.advance(self._rows_of_range, change.rows):
                last = KeyedFrame(index.number, index.checkpoint, dict(index.segments))
                self._files.snapshot(index.others(), last)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot write a snapshot: {error}") from error

    def _rows_of_range(self, number: int) -> Iterator[Rows]:
        """Yield the rows of a range, in parts; commits may come between two of them."""
        first, behind = number * GROUPS_PER_RANGE, (number + 1) * GROUPS_PER_RANGE
        for family in (STATE, TIMERS):
            begin, end = family + group_bytes(first), family + group_bytes(behind)
            while part := self._required().scan(begin, end, _PART_ROWS):
                yield dict(part)
                begin = part[-1][0] + b"\x00"

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    # -- its state

    def _required(self) -> RowIndex:
        return self._committed().rows

    def _committed(self) -> CommittedIndex:
        index = self._index
        if index is None:
            raise StoreClosedError(self._fqn)
        return index

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(self._fqn)

    def _check_writable(self) -> None:
        self._check_open()
        if self._failure is not None:
            raise StoreError(
                self._fqn, f"it has failed, open a new store: {self._failure}"
            ) from self._failure
        if self._index is None:
            raise StoreError(self._fqn, "not restored yet: call restore_checkpoint first")


def _group_at(place: bytes) -> int:
    return int.from_bytes(place[:GROUP_BYTES])


def _name(place: bytes, suffix: bytes) -> bytes:
    return STATE + place + suffix if suffix else TIMERS + place


def opened_index(fqn: str, kind: IndexKind, directory: Path) -> RowIndex:
    """Open the index of a directory, or make it.

    Raises:
        ExtraMissingError: what it needs is not installed.
        StoreError: it cannot be opened.
    """
    if kind == "memory":
        return MemoryIndex()
    try:
        return RocksIndex(directory)
    except ImportError as error:
        what = "a keyed store whose index is in RocksDB"
        raise ExtraMissingError(what, "keyed", "rocksdict", module="rocksdict") from error
    except Exception as error:  # RocksDB's binding raises nothing more special.
        raise StoreError(fqn, f"cannot open {directory}: {error}") from error


def new_follower(fqn: str, kind: IndexKind, directory: Path) -> KeyedFollower:
    """Return what keeps the index of a standby.

    Args:
        fqn: The shard.
        kind: Of its application's index.
        directory: Of the standby's files, where the index will be.
    """

    def new_index() -> RowIndex:
        remove_index(directory / INDEX_DIRECTORY)
        return opened_index(fqn, kind, directory / INDEX_DIRECTORY)

    return KeyedFollower(fqn, new_index)
