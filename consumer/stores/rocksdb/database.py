"""A RocksDB and its column families, opened and closed together.

A family's handle and an iterator each keep the database open, and its lock held, for as long as they are
referred to. They are therefore referred to here only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, cast

from rocksdict import (
    BlockBasedOptions,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

CHECKPOINT_KEY = b"\x00\x12checkpoint\x00\x01"
"""Key of the checkpoint: an ordered encoding of (null, "checkpoint"), as in Gazette's store."""
SEGMENT_PREFIX = b"\x00\x12producers\x00"
"""Prefix of the ids of segments that the checkpoint rests on."""
Tune = Callable[[str, Options], None]

MANIFEST_BYTES_MAX = 128 << 10
"""Length after which the manifest is started again, so that the recovery log need not keep old changes."""
TABLE_FORMAT_VERSION: Final = 5
"""Of the tables that are written, so that Gazette's members can read them: those have RocksDB 7.8, which refuses
version 6, the default of ours. Tables of both are read.
"""


Changes = dict[bytes, bytes | None]
"""New values by key; None is a deletion."""

DEFAULT_FAMILY: Final = "default"
RESERVED_PREFIX: Final = b"\x00"
"""Prefix of the store's own keys in the default family."""
_RUN_KEYS: Final = 256
"""Number of keys read at a time, under the lock."""


class CommittedView:
    """The column families as of a commit, unaffected by later writes. Valid only within the call that it is given to.

    An iterator of RocksDB sees the database as of its creation. One is created for each family after each commit, and
    all queries are answered from these, because the snapshots of `rocksdict` (0.3.29) have iterators that see newer
    writes.
    """

    def __init__(self, iterators: Mapping[str, RdictIter]) -> None:
        self._iterators = iterators
        # Queries of several threads move the same iterators.
        self._lock = threading.Lock()

    @property
    def families(self) -> Iterable[str]:
        """The names of the column families."""
        return self._iterators.keys()

    def get(self, key: bytes, *, family: str = DEFAULT_FAMILY) -> bytes | None:
        """Return the value of `key`; None if it has none."""
        iterator = self._iterators[family]
        with self._lock:
            iterator.seek(key)
            if not iterator.valid() or iterator.key() != key:
                return None
            value: bytes = iterator.value()
            return value

    def items(
        self, begin: bytes = b"", end: bytes | None = None, *, family: str = DEFAULT_FAMILY
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys in [begin, end) and their values, in order of keys."""
        iterator = self._iterators[family]
        begin = first_key(family, begin)
        while run := self._run(iterator, begin, end):
            yield from run
            begin = run[-1][0] + b"\x00"  # the next key there can be

    def _run(
        self, iterator: RdictIter, begin: bytes, end: bytes | None
    ) -> list[tuple[bytes, bytes]]:
        """Return the first items of [begin, end)."""
        run: list[tuple[bytes, bytes]] = []
        with self._lock:
            iterator.seek(begin)
            while len(run) < _RUN_KEYS and iterator.valid():
                key: bytes = iterator.key()
                if end is not None and key >= end:
                    break
                run.append((key, iterator.value()))
                iterator.next()
        return run


def first_key(family: str, begin: bytes) -> bytes:
    """Return the first key of a scan from `begin`, past the store's own keys."""
    if family == DEFAULT_FAMILY and begin[:1] <= RESERVED_PREFIX:
        return b"\x01"
    return begin


class PendingWrites:
    """The changes of one transaction by column family, laid over the database so that it reads its own writes."""

    def __init__(self) -> None:
        self.families: dict[str, Changes] = {}

    def of(self, family: str) -> Changes:
        """Return the changes of a family, for adding to them."""
        changes = self.families.get(family)
        if changes is None:
            changes = self.families[family] = {}
        return changes


def changes_between(
    layers: Iterable[PendingWrites], family: str, begin: bytes, end: bytes | None
) -> Changes:
    """Return the changes of keys in [begin, end) that `layers`, oldest first, make together; in order of keys."""
    changes: Changes = {}
    for layer in layers:
        for key, value in layer.families.get(family, {}).items():
            if key >= begin and (end is None or key < end):
                changes[key] = value
    return dict(sorted(changes.items()))


def overlaid(
    stored: Iterator[tuple[bytes, bytes]], changes: Changes
) -> Iterator[tuple[bytes, bytes]]:
    """Yield `stored` with `changes` made to it. Both are in order of keys; so is the result."""
    following = iter(changes.items())
    changed = next(following, None)
    for key, value in stored:
        while changed is not None and changed[0] < key:
            if changed[1] is not None:
                yield changed[0], changed[1]
            changed = next(following, None)
        if changed is not None and changed[0] == key:
            continue  # It precedes the next stored key.
        yield key, value
    while changed is not None:
        if changed[1] is not None:
            yield changed[0], changed[1]
        changed = next(following, None)


def with_options(
    items: Iterator[tuple[bytes, bytes]], options: ReadOptions
) -> Iterator[tuple[bytes, bytes]]:
    """Yield items, and keep the options that they are read with.

    An iterator of `rocksdict` (0.3.29) does not keep them, and the bound in them is read at each step: without this it
    would be whatever takes their memory next.
    """
    yield from items
    del options


def new_options(write_buffer_bytes: int) -> Options:
    """Return the options of the database and of each column family, to be tuned and then fixed (`fix_options`).

    Args:
        write_buffer_bytes: Size of the memory table of each family: also what opening replays from the log, at most.
    """
    options = Options(raw_mode=True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_total_wal_size(4 * write_buffer_bytes)
    options.set_target_file_size_base(write_buffer_bytes)
    options.set_max_bytes_for_level_base(8 * write_buffer_bytes)
    options.set_max_background_jobs(2)
    tables = BlockBasedOptions()
    tables.set_format_version(TABLE_FORMAT_VERSION)
    options.set_block_based_table_factory(tables)
    return options


def fix_options(options: Options) -> None:
    """Set the options that recording and commits rely on: files may only be added, appended to and removed."""
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # A commit that is cut off at the end of the write-ahead log did not happen; nothing after it is valid.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_recycle_log_file_num(0)
    options.set_allow_mmap_writes(False)
    options.set_use_direct_io_for_flush_and_compaction(False)
    options.set_max_manifest_file_size(MANIFEST_BYTES_MAX)
    # Text logs of its own doings: local, not recorded, one small file.
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)


class Database:
    """An open database, for the store's threads, of which one writes at a time."""

    def __init__(
        self,
        directory: Path,
        families: Collection[str],
        *,
        write_buffer_bytes: int,
        tune: Tune | None,
        durable: bool,
    ) -> None:
        path = str(directory)
        existing = Rdict.list_cf(path) if (directory / "CURRENT").exists() else []
        options = {
            name: _options(name, write_buffer_bytes, tune)
            for name in sorted({DEFAULT_FAMILY, *families, *existing})
        }
        default = options.pop(DEFAULT_FAMILY)
        self._main = Rdict(path, default, column_families=options)
        self._families = {DEFAULT_FAMILY: self._main}
        self._families.update({name: self._main.get_column_family(name) for name in options})
        self._write_options = WriteOptions()
        self._write_options.sync = durable

    def __contains__(self, family: str) -> bool:
        """Return whether there is such a family."""
        return family in self._families

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return a value as of the last write."""
        value: bytes | None = self._families[family].get(key)
        return value

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        """Return several values as of the last write, shape (len(keys),)."""
        values: list[bytes | None] = self._families[family].get(keys)  # type: ignore[assignment, arg-type]
        return values

    def items(self, family: str, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield what [begin, end) holds as of now, in order of keys."""
        begin = first_key(family, begin)
        if end is not None and end <= begin:
            return iter(())
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        items = self._families[family].items(from_key=begin, read_opt=options)
        return with_options(cast("Iterator[tuple[bytes, bytes]]", items), options)

    def segments(self) -> dict[bytes, bytes]:
        """Return the contents of segments, by id."""
        options = ReadOptions()
        options.set_iterate_upper_bound(SEGMENT_PREFIX[:-1] + b"\x01")
        items = self._main.items(from_key=SEGMENT_PREFIX, read_opt=options)
        stored = cast("Iterator[tuple[bytes, bytes]]", items)
        return {key[len(SEGMENT_PREFIX) :]: content for key, content in stored}

    def write(
        self, pending: PendingWrites, checkpoint: bytes, segments: Mapping[bytes, bytes | None]
    ) -> None:
        """Write a transaction and its checkpoint, all or nothing.

        Args:
            pending: The transaction.
            checkpoint: As it is kept.
            segments: Changes of segments, by id; None removes one.
        """
        batch = WriteBatch(raw_mode=True)
        batch.put(CHECKPOINT_KEY, checkpoint)
        for segment_id, content in segments.items():
            if content is None:
                batch.delete(SEGMENT_PREFIX + segment_id)
            else:
                batch.put(SEGMENT_PREFIX + segment_id, content)
        for name, changes in pending.families.items():
            handle = self._main.get_column_family_handle(name)
            for key, value in changes.items():
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
        self._main.write(batch, self._write_options)

    def committed_view(self) -> CommittedView:
        """Return a view of the present content.

        Requires:
            No other thread writes meanwhile.
        """
        return CommittedView({name: family.iter() for name, family in self._families.items()})

    def close(self) -> None:
        """Close it. Idempotent."""
        families = [self._families[name] for name in self._families if name != DEFAULT_FAMILY]
        self._families = {}
        for family in families:
            family.close()
        self._main.close()


def _options(family: str, write_buffer_bytes: int, tune: Tune | None) -> Options:
    options = new_options(write_buffer_bytes)
    if tune is not None:
        tune(family, options)
    fix_options(options)
    return options
