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
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.keyed.entry_index import EntryIndex
from broadsheet.consumer.keyed.recording import (
    GROUPS_PER_RANGE,
    SNAPSHOT_BYTES_MIN,
    KeyedFiles,
    KeyedFrame,
    new_frame,
)
from broadsheet.consumer.keyed.row_cache import UNKNOWN, Changes, RowCache
from broadsheet.consumer.keyed.row_index import (
    MemoryIndex,
    RocksIndex,
    RowIndex,
    Rows,
    after_prefix,
    all_items,
    remove_index,
)
from broadsheet.consumer.keyed.state_rows import (
    DUE,
    FILED,
    META,
    STATE,
    TIMERS,
    VARIABLE_BYTES,
    due_entry,
    entries_of,
    filed_entry,
    group_bytes,
    place_of,
)
from broadsheet.consumer.keyed.timers import expiries_of, row_of, with_expiry, without_expiry
from broadsheet.consumer.recoverylog.local_state import LocalState, local_state_of
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.consumer.stores.directory_lock import StoreDirectory
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint, whole_checkpoint
from broadsheet.journals.message.checkpoint import EncodedCheckpoint, encoded
from broadsheet.runtime.errors import ExtraMissingError
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint

CACHE_BYTES: Final = 64 << 20
IndexKind = Literal["rocksdb", "memory"]
_INDEX: Final = "index"
"""Directory of the RocksDB, beside the files."""
_NUMBER: Final = META + b"\x00number"
"""The commit that the index is at; local, as all names that begin with a zero byte."""
_STEP: Final = 4096
_TIMERS_SUFFIX: Final = b""
"""Stands in the cache for the row of a key's timers."""
_LOCAL_END: Final = META + b"\x01"


@dataclass(frozen=True, slots=True)
class _Change:
    """A commit."""

    rows: Rows
    entries: Rows
    """Of the two indexes by time."""
    checkpoint: EncodedCheckpoint


class CommittedRowsView:
    """All rows as of one commit, to be iterated over once."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        rows: Iterator[tuple[bytes, bytes]],
        timers: Iterator[tuple[bytes, bytes]],
    ) -> None:
        self.checkpoint = checkpoint
        self._rows = rows
        self._timers = timers

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place and suffix, row) of the rows of variables, in order."""
        for name, row in self._rows:
            yield name[1:], row

    def timers(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place, row) of the timers of keys, in order."""
        for name, row in self._timers:
            yield name[1:], row

    def drop(self) -> None:
        """Forget the iterators."""
        self._rows = self._timers = iter(())


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
    ) -> None:
        """Create a store; nothing is read before `restore_checkpoint`.

        Args:
            shard: The shard; if it has a recovery log, its `local_state` is where the files are.
            local_state: Where the files are if the shard has no recovery log.
            index: Where rows are looked up: in a RocksDB, or in memory, where all of them must fit.
            cache_bytes: Of rows that are kept in memory beside those that a transaction changed.
            snapshot_bytes_min: Least bytes of changes after which a part of the state is written again.
            lock_wait_seconds: Longest wait for another holder of a directory that stays.

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
        self._commits = CommitThread(shard.fqn, recorded=self._local_state.recorder is not None)
        self.keeps_segments = True
        self._index: RowIndex | None = None
        self._number = 0
        self._checkpoint = b""
        self._segments: Mapping[bytes, bytes] = {}
        self._settling = threading.Lock()
        """Held while the index goes from one commit to the next."""
        self._failure: BaseException | None = None
        self._closed = False
        self._begin(MemoryIndex())

    def _begin(self, index: RowIndex) -> None:
        """Begin with no changes to what an index has."""
        self._cache = RowCache(self._cache_bytes)
        self._committing: Changes = {}
        self._meta: dict[bytes, bytes] = {}
        self._due = EntryIndex(index, DUE)
        self._filed = EntryIndex(index, FILED)
        self._prefetched: set[bytes] = set()
        """Suffixes that transactions read, which are fetched for all keys of the next at once."""

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
        if len(suffix) <= VARIABLE_BYTES:
            self._prefetched.add(suffix)
        return value

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
        suffixes = sorted(self._prefetched)
        if not unknown or not suffixes:
            return
        wanted = [_name(place, suffix) for place in unknown for suffix in suffixes]
        self._cache.learn_keys(unknown, suffixes, self._required().get_many(wanted))

    def meta(self, name: bytes) -> bytes | None:
        """Return what is kept of no key under a name."""
        if name in self._meta:
            return self._meta[name]
        return self._required().get_many([META + name])[0]

    def put_meta(self, name: bytes, content: bytes) -> None:
        """Keep something that is of no key, under a name that does not begin with a zero byte."""
        self._meta[name] = content

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
        expiries = without_expiry(self.expiries(key), expiry_ms)
        if expiries is not None:
            self.put(place_of(key), _TIMERS_SUFFIX, row_of(expiries))

    def due_timers(self, bound_ms: int, limit: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Return (expiry, key) of the timers that are due, in this order, and whether there are more.

        Args:
            bound_ms: The last expiry that is due.
            limit: Timers at most.
        """
        entries, more = self._due.until(bound_ms, limit)
        self.prefetch(list({place_of(key) for _, key in entries}))
        timers = []
        for expiry, key in entries:
            # The index may have entries too many.
            if expiry in self.expiries(key):
                timers.append((expiry, key))
            else:
                self._due.remove(due_entry(expiry, key))
        return timers, more

    def next_timer_ms(self) -> int | None:
        """Return the earliest expiry of any timer; None if there is none."""
        return self._due.first()

    def file(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        """Have a sweep look at a row at a time."""
        self._filed.add(filed_entry(time_ms, place, suffix))

    def unfile(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        """Have no sweep look at a row at a time."""
        self._filed.remove(filed_entry(time_ms, place, suffix))

    def filed_until(self, time_ms: int, limit: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Return (time, place and suffix) of what a sweep looks at, and whether there is more."""
        return self._filed.until(time_ms, limit)

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
        with self._settling:
            index = self._required()
            checkpoint = stored_checkpoint(self._fqn, self._checkpoint)
            rows = index.view(STATE, after_prefix(STATE))
            timers = index.view(TIMERS, after_prefix(TIMERS))
        view = CommittedRowsView(checkpoint, rows, timers)
        del rows, timers
        try:
            yield view
        finally:
            # An iterator that somebody still refers to would keep the database open.
            view.drop()

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
        self._begin(self._required())
        checkpoint = stored_checkpoint(self._fqn, self._checkpoint)
        return whole_checkpoint(self._fqn, checkpoint, self._segments)

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
        change = _Change(rows, entries, encoded(checkpoint))
        return self._commits.start(
            CommitSteps(
                write=partial(self._write, change),
                recorder=self._local_state.recorder,
                settle=partial(self._settle, change),
                tidy=self._tidy,
                fail=self._fail,
            ),
            wait_for,
        )

    def open_copy(self) -> None:
        """Read a copy of what a standby played, for scans only.

        Raises:
            StoreError: the primary has made no files yet, or they are damaged.
        """
        if not self._is_shards_own:
            raise StoreError(self._fqn, "its files are its primary's, and no standby has them")
        try:
            self._load_into(self._new_index(), 0, tidies=False)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot open a copy: {error}") from error
        if not self._number:
            raise StoreError(self._fqn, "the primary has not made its files yet")

    def destroy(self) -> None:
        """Abort a commit that still waits; remove the files if the recovery log has them."""
        self._closed = True
        try:
            self._commits.close()
        finally:
            index, self._index = self._index, None
            if index is not None:
                index.close()
            self._files.close()
            self._directory.leave()

    # -- opening

    def _open(self) -> None:
        self._check_open()
        self._directory.claim()
        # Before the index is made, which would be a stranger among another store's files.
        self._files.check()
        directory = self._local_state.directory / _INDEX
        index = self._new_index()
        known = _number_of(index)
        if known and not self._files.resumes(known):
            # Changes are gone that it lacks, so only the snapshots have them.
            index.close()
            remove_index(directory)
            index, known = self._new_index(), 0
        self._load_into(index, known, tidies=True)

    def _load_into(self, index: RowIndex, known: int, *, tidies: bool) -> None:
        try:
            self._load(index, known, tidies=tidies)
        except BaseException:
            index.close()
            raise
        self._index = index

    def _new_index(self) -> RowIndex:
        if self._index_kind == "memory":
            return MemoryIndex()
        directory = self._local_state.directory / _INDEX
        try:
            return RocksIndex(directory)
        except ImportError as error:
            what = "a keyed store whose index is in RocksDB"
            raise ExtraMissingError(what, "keyed", "rocksdict", module="rocksdict") from error
        except Exception as error:  # RocksDB's binding raises nothing more special.
            raise StoreError(self._fqn, f"cannot open {directory}: {error}") from error

    def _load(self, index: RowIndex, known: int, *, tidies: bool) -> None:
        """Bring an index from a commit to the last one."""
        segments: dict[bytes, bytes] = {}
        for frame, rows in self._files.load(after=known, tidies=tidies):
            segments |= frame.segments
            changes = {**rows, **entries_of(rows)}
            if frame.number:
                self._number, self._checkpoint = frame.number, frame.checkpoint
                changes[_NUMBER] = max(known, frame.number).to_bytes(8)
            index.write(changes)
        self._segments = segments
        if known > self._number:
            raise StoreError(
                self._fqn,
                f"its index is at commit {known}, and its files end at {self._number}: restore the files, or remove "
                f"{self._local_state.directory / _INDEX}",
            )

    # -- committing, on the commit's thread

    def _write(self, change: _Change) -> OpFuture | None:
        frame = new_frame(
            change.rows,
            self._number + 1,
            change.checkpoint.checkpoint,
            dict(change.checkpoint.new_segments),
        )
        try:
            return self._files.append(frame)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot commit: {error}") from error

    def _settle(self, change: _Change) -> None:
        self._number += 1
        number = {_NUMBER: self._number.to_bytes(8)}
        rows = {**change.rows, **change.entries, **number}
        try:
            with self._settling:
                self._required().write(rows)
                self._checkpoint = change.checkpoint.checkpoint
        except StoreError:
            raise
        except Exception as error:  # RocksDB's binding raises nothing more special.
            raise StoreError(
                self._fqn,
                f"cannot write to its index: {error}; the commit is durable, and the next life goes on from it",
            ) from error
        if change.checkpoint.new_segments:
            known = {**self._segments, **change.checkpoint.new_segments}
            self._segments = {each: known[each] for each in change.checkpoint.named & known.keys()}

    def _tidy(self) -> None:
        if not self._files.is_due:
            return
        others = dict(all_items(self._required(), _LOCAL_END, after_prefix(META), step=_STEP))
        last = KeyedFrame(self._number, self._checkpoint, dict(self._segments))
        try:
            self._files.snapshot(self._rows_of_range, others, last)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot write a snapshot: {error}") from error

    def _rows_of_range(self, number: int) -> Iterator[Rows]:
        """Yield the rows of a range; only this thread changes the index."""
        first, behind = number * GROUPS_PER_RANGE, (number + 1) * GROUPS_PER_RANGE
        for family in (STATE, TIMERS):
            begin, end = family + group_bytes(first), family + group_bytes(behind)
            while part := self._required().scan(begin, end, _STEP):
                yield dict(part)
                begin = part[-1][0] + b"\x00"

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    # -- its state

    def _required(self) -> RowIndex:
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


def _name(place: bytes, suffix: bytes) -> bytes:
    return STATE + place + suffix if suffix else TIMERS + place


def _number_of(index: RowIndex) -> int:
    (content,) = index.get_many([_NUMBER])
    return 0 if content is None else int.from_bytes(content)
