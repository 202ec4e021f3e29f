"""The local index of a shard's rows: ordered keys and values as of the last durable commit.

It is not recorded: what it holds can be made from the store's files. A RocksDB of the shard's own keeps it where it
does not fit in memory. All rows are in one column family, because without a write-ahead log families are flushed one by
one, and then a crash could leave rows of one commit in one family and not in another.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from sortedcontainers import SortedDict

if TYPE_CHECKING:
    from rocksdict import Cache

RowRange = tuple[bytes, bytes]
"""The first key of a range, and the one behind it."""
Rows = Mapping[bytes, bytes | None]
"""New values by key; None is a deletion."""
BLOCK_CACHE_BYTES: Final = 64 << 20
"""Of blocks of tables, for all indexes of a process together."""
WRITE_BUFFER_BYTES: Final = 32 << 20
SYNC_BYTES: Final = 1 << 20
"""Of a table, after which the system begins to write them to the disk."""
_BLOOM_BITS: Final = 10
_STOPPED: Final = "rocksdb.is-write-stopped"
_DELAYED_RATE: Final = "rocksdb.actual-delayed-write-rate"
"""Of writes, bytes a second; 0: they are not delayed."""
_ERRORS: Final = "rocksdb.background-errors"
_LOOK_SECONDS: Final = 0.005
_ESTIMATES: Final = (
    "rocksdb.estimate-num-keys",
    "rocksdb.estimate-live-data-size",
    "rocksdb.cur-size-all-mem-tables",
)
_DELETIONS_WINDOW: Final = 4096
_DELETIONS_MAX: Final = 2048
"""Deletions in so many rows in a row of a table after which it is compacted."""


class RowSnapshot(Protocol):
    """The rows of an index as of one moment, whatever is written later. Of one thread."""

    def get(self, key: bytes) -> bytes | None:
        """Return a value; None if there is none."""
        ...

    def items(self, ranges: Iterable[RowRange]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items of ranges, in order of keys; several iterators may be under way.

        Args:
            ranges: Ascending, which do not overlap.
        """
        ...


class RowIndex(Protocol):
    """An index. Any thread may read; one writes at a time, and each write shows as a whole."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of several keys, shape (len(keys),)."""
        ...

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the first items of [begin, end), at most `limit` of them, in order of keys."""
        ...

    def names(self, begin: bytes, end: bytes, limit: int) -> list[bytes]:
        """Return the first keys of [begin, end), at most `limit` of them, in order; values may be large."""
        ...

    def view(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over [begin, end) as of now, whatever is written later."""
        ...

    def snapshot(self) -> AbstractContextManager[RowSnapshot]:
        """Return what the index holds now, for look-ups within the block, which should be brief."""
        ...

    def write(self, rows: Rows) -> None:
        """Make changes, all or nothing."""
        ...

    def size(self) -> tuple[int, int]:
        """Return the number of rows and their bytes, about; in constant time."""
        ...

    def close(self) -> None:
        """Close it; idempotent."""
        ...


class MemoryIndex:
    """An index in memory, which is empty when it is made."""

    def __init__(self) -> None:
        self._rows: SortedDict[bytes, bytes] = SortedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of several keys."""
        with self._lock:
            return list(map(self._rows.get, keys))

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the first items of [begin, end)."""
        with self._lock:
            found = self._rows.irange(begin, end, inclusive=(True, False))
            return [(key, self._rows[key]) for key in islice(found, limit)]

    def names(self, begin: bytes, end: bytes, limit: int) -> list[bytes]:
        """Return the first keys of [begin, end)."""
        with self._lock:
            return list(islice(self._rows.irange(begin, end, inclusive=(True, False)), limit))

    def view(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return a copy of [begin, end)."""
        return iter(self.scan(begin, end, sys.maxsize))

    @contextmanager
    def snapshot(self) -> Iterator[RowSnapshot]:
        """Keep writers out within the block: a copy would cost as much as the index has rows."""
        with self._lock:
            yield _MemorySnapshot(self._rows)

    def write(self, rows: Rows) -> None:
        """Make changes."""
        with self._lock:
            for key, value in rows.items():
                if value is None:
                    before = self._rows.pop(key, None)
                else:
                    before = self._rows.get(key)
                    self._rows[key] = value
                    self._bytes += len(key) + len(value)
                if before is not None:
                    self._bytes -= len(key) + len(before)

    def size(self) -> tuple[int, int]:
        """Return the number of rows and their bytes."""
        return len(self._rows), self._bytes

    def close(self) -> None:
        """Forget all rows."""
        with self._lock:
            self._rows.clear()
            self._bytes = 0


class _MemorySnapshot:
    """The rows of a memory index, whose lock is held."""

    def __init__(self, rows: SortedDict[bytes, bytes]) -> None:
        self._rows = rows

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._rows.get(key)
        return value

    def items(self, ranges: Iterable[RowRange]) -> Iterator[tuple[bytes, bytes]]:
        for begin, end in ranges:
            for key in self._rows.irange(begin, end, inclusive=(True, False)):
                yield key, self._rows[key]


class RocksIndex:
    """An index in a RocksDB, without a write-ahead log: a crash loses its last commits, which the files have."""

    def __init__(self, directory: Path) -> None:
        """Open it, or make it.

        Raises:
            Exception: RocksDB's, of no class of its own: it cannot be opened.
        """
        import rocksdict

        from broadsheet.consumer.stores.rocksdb.database import (
            fix_options,
            new_options,
            with_options,
        )

        options = new_options(WRITE_BUFFER_BYTES)
        tables = rocksdict.BlockBasedOptions()
        tables.set_block_cache(_block_cache())
        tables.set_bloom_filter(_BLOOM_BITS, block_based=False)
        options.set_block_based_table_factory(tables)
        # Timers that fired are deletions at the begin of a scan, which would walk over millions of them.
        options.add_compact_on_deletion_collector_factory(_DELETIONS_WINDOW, _DELETIONS_MAX, 0.0)
        # Otherwise a table comes to the disk as a whole, in front of the appends of a broker on the same one.
        options.set_bytes_per_sync(SYNC_BYTES)
        fix_options(options)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._database = rocksdict.Rdict(str(directory), options)
        self._with_options = with_options
        self._new_batch = rocksdict.WriteBatch
        self._new_read_options = rocksdict.ReadOptions
        self._write_options = rocksdict.WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[assignment, method-assign]  # an attribute
        self._closed = False

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of several keys."""
        values: list[bytes | None] = self._database.get(keys)  # type: ignore[assignment, arg-type]
        return values

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the first items of [begin, end)."""
        if end <= begin:
            return []
        options = self._new_read_options()
        options.set_iterate_upper_bound(end)
        items = self._database.items(from_key=begin, read_opt=options)
        return list(islice(items, limit))  # type: ignore[arg-type]  # bytes, because of the raw mode

    def names(self, begin: bytes, end: bytes, limit: int) -> list[bytes]:
        """Return the first keys of [begin, end)."""
        if end <= begin:
            return []
        options = self._new_read_options()
        options.set_iterate_upper_bound(end)
        keys = self._database.keys(from_key=begin, read_opt=options)
        return list(islice(keys, limit))  # type: ignore[arg-type]  # bytes, because of the raw mode

    def view(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator of RocksDB, which keeps the database open until it is dropped."""
        options = self._new_read_options()
        options.set_iterate_upper_bound(end)
        items = self._database.items(from_key=begin, read_opt=options)
        return self._with_options(cast("Iterator[tuple[bytes, bytes]]", items), options)

    @contextmanager
    def snapshot(self) -> Iterator[RowSnapshot]:
        """Return a snapshot of RocksDB."""
        snapshot = _RocksSnapshot(self._database.snapshot(), self._new_read_options())
        try:
            yield snapshot
        finally:
            # A reference that is left must not keep the database open.
            snapshot.drop()

    def write(self, rows: Rows) -> None:
        """Make changes."""
        batch = self._new_batch(raw_mode=True)
        for key, value in rows.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._wait_for_room(batch.size_in_bytes())
        self._database.write(batch, self._write_options)

    def _wait_for_room(self, size: int) -> None:
        """Wait as long as RocksDB is going to hold a write back, because it has yet to compact others.

        It would sleep within the write, and keep the interpreter meanwhile: all threads of the process would rest.

        Source: RocksDB's wiki, "Write Stalls".

        Args:
            size: Of the write, bytes.
        """
        told = self._database.property_int_value
        # After an error it stays stopped, and the write tells the error.
        while told(_STOPPED) and not told(_ERRORS):
            time.sleep(_LOOK_SECONDS)
        if rate := told(_DELAYED_RATE):
            time.sleep(size / rate)

    def size(self) -> tuple[int, int]:
        """Return RocksDB's estimates, of tables and of what is in memory."""
        found = map(self._database.property_int_value, _ESTIMATES)
        rows, tables, memory = (each or 0 for each in found)
        return rows, tables + memory

    def close(self) -> None:
        """Write what is in memory to its files, and close it."""
        if self._closed:
            return
        self._closed = True
        try:
            self._database.flush()
            self._database.close()
        except Exception:
            # A standby's files, or those of a log, may be removed while a reader still has the index open.
            if self._directory.exists():
                raise


class _RocksSnapshot:
    """A snapshot of RocksDB, whose binding has iterators only: a look-up is a step of one."""

    def __init__(self, snapshot: Any, options: Any) -> None:  # rocksdict's types are incomplete
        self._snapshot = snapshot
        # Iterators refer to their options by address.
        self._options = options
        self._iterator = snapshot.iter(options)

    def get(self, key: bytes) -> bytes | None:
        iterator = self._iterator
        iterator.seek(key)
        if not iterator.valid() or iterator.key() != key:
            return None
        value: bytes = iterator.value()
        return value

    def items(self, ranges: Iterable[RowRange]) -> Iterator[tuple[bytes, bytes]]:
        # One iterator for all: to make one costs as much as several steps.
        iterator = self._snapshot.iter(self._options)
        at: Any = None
        for begin, end in ranges:
            # Where the last step ended tells of the ranges before that there is nothing in them.
            if at is not None and at >= end:
                continue
            if at is None or at < begin:
                iterator.seek(begin)
            while iterator.valid() and (at := iterator.key()) < end:
                yield at, iterator.value()
                iterator.next()
            if not iterator.valid():
                return

    def drop(self) -> None:
        self._iterator = self._snapshot = None


@lru_cache(maxsize=1)
def _block_cache() -> Cache:
    """Return the cache of all indexes of this process: one each would grow with the shards that it stands by for."""
    import rocksdict

    return rocksdict.Cache(BLOCK_CACHE_BYTES)


def is_damage(error: BaseException | None) -> bool:
    """Tell whether an index could not be opened because of what its files are, and not for want of anything."""
    # Errors of RocksDB's binding have no class of their own, and begin with the code.
    return str(error).startswith("Corruption: ")


def remove_index(directory: Path) -> None:
    """Remove the files of a RocksDB index; it is made again from the store's files."""
    shutil.rmtree(directory, ignore_errors=True)


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key behind all those that begin with a prefix, which must not consist of FF alone."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def all_items(
    index: RowIndex, begin: bytes, end: bytes, *, step: int
) -> Sequence[tuple[bytes, bytes]]:
    """Return all items of [begin, end), fetched in steps of so many."""
    found: list[tuple[bytes, bytes]] = []
    while part := index.scan(begin, end, step):
        found += part
        if len(part) < step:
            break
        begin = part[-1][0] + b"\x00"
    return found
