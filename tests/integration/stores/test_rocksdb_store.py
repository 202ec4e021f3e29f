"""`RocksDbStore` beyond the suite: what RocksDB does on its own while a store commits, and how transactions read."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.rocksdb.database import CommittedView
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.stores.recorded_log import MirroredFiles, RecordedChange, RecordedLog
from broadsheet.testing.stores.subject import FixedShard, offset_of, reading, wait

WRITE_BUFFER_BYTES = 64 << 10
_TABLE_MAGIC = (0x88E241B785F4CFF7).to_bytes(8, "little")
"""Of a block-based table, at its end."""
"""The smallest there is, so that a test sees many flushes and compactions."""

OpenStore = Callable[..., RocksDbStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Opens what a log replays to; destroys it in the end."""
    opened: list[RocksDbStore] = []

    def open_one(log: RecordedLog | None = None) -> RocksDbStore:
        log = log or RecordedLog()
        directory = tmp_path / str(len(opened))
        shard = FixedShard(local_state=LocalState(directory, log.hand_over(directory)))
        store = RocksDbStore(shard, families=("a", "b"), write_buffer_bytes=WRITE_BUFFER_BYTES)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.destroy()


def contents(store: RocksDbStore) -> dict[str, dict[bytes, bytes]]:
    """Return all that is committed."""
    return store.read(
        lambda view: {family: dict(view.items(family=family)) for family in ("default", "a", "b")}
    )


def test_log_of_flushes_and_compactions_opens_at_a_commit_wherever_it_ends(
    open_store: OpenStore,
) -> None:
    """RocksDB moves its data between files on threads of its own. Whatever they were about to do when the log ends, the
    files there are those of one commit.
    """
    shard, seed = FixedShard(), random.Random(4)
    log = RecordedLog()
    states: list[dict[str, dict[bytes, bytes]]] = [{"default": {}, "a": {}, "b": {}}]
    for _ in range(2):
        store = open_store(log)
        assert offset_of(store.restore_checkpoint(shard)) == len(states) - 1
        for _ in range(60):
            contents_after = {name: dict(values) for name, values in states[-1].items()}
            for _ in range(40):
                family, key = seed.choice(("default", "a", "b")), b"k%03d" % seed.randrange(300)
                if seed.random() < 0.2:
                    store.delete(key, family=family)
                    contents_after[family].pop(key, None)
                else:
                    contents_after[family][key] = seed.randbytes(400)
                    store.put(key, contents_after[family][key], family=family)
            wait(store.start_commit(shard, reading(len(states)), ()))
            states.append(contents_after)
        store.destroy()
    _assert_compacted(log)

    cuts = [(count, files.copy()) for count, files in _sampled(log, seed, samples=60)]
    for count, files in cuts:
        survivor = open_store(RecordedLog(files=files))
        step = offset_of(survivor.restore_checkpoint(shard))
        assert contents(survivor) == states[step], f"cut after {count} changes"
        passed = bisect_right(log.barriers, count)
        assert step >= passed - 1 - (passed > 61), f"cut after {count} changes lost a commit"
        survivor.destroy()


def _assert_compacted(log: RecordedLog) -> None:
    """The run was of use only if tables came and went and the manifest began again."""
    tables = [change for change in log.changes if change.path.endswith(".sst")]
    assert sum(change.kind == "create" for change in tables) > 10
    assert sum(change.kind == "remove" for change in tables) > 5
    manifests = {change.path for change in log.changes if change.path.startswith("/MANIFEST")}
    assert len(manifests) >= 2


def _sampled(
    log: RecordedLog, seed: random.Random, *, samples: int
) -> Iterator[tuple[int, MirroredFiles]]:
    """Yield some of the cuts: those next to what is not a plain append of the write-ahead log first of all."""
    rare = {
        index + after
        for index, change in enumerate(log.changes)
        if change.kind != "write" or not change.path.endswith(".log")
        for after in (0, 1)
    }
    chosen = set(seed.sample(sorted(rare), min(samples, len(rare))))
    for count, files in log.cuts(is_whole=_is_growth_of_a_manifest):
        if count in chosen:
            yield count, files


def _is_growth_of_a_manifest(change: RecordedChange) -> bool:
    """It may name a table that came and went since the last look, and is one write for this reason."""
    return change.path.startswith("/MANIFEST") and change.offset > 0


def test_log_holds_only_the_files_that_are_there(open_store: OpenStore) -> None:
    """What RocksDB removed is removed from the log: else a standby plays, and keeps, all tables there ever were."""
    shard, log = FixedShard(), RecordedLog()
    store = open_store(log)
    store.restore_checkpoint(shard)
    for step in range(1, 80):
        for key in range(20):
            store.put(b"k%02d" % key, bytes(1000))
        wait(store.start_commit(shard, reading(step), ()))

    written = sum(len(change.content) for change in log.changes)
    assert written > 1_000_000
    assert log.files.size_bytes() < 800_000
    assert not [path for path in log.files.paths() if path.endswith((".dbtmp", "LOG", "LOCK"))]


def test_transaction_reads_its_own_writes(open_store: OpenStore) -> None:
    """Also those of the transaction before, while that one still waits: they are in no file yet."""
    shard = FixedShard()
    store = open_store()
    store.restore_checkpoint(shard)
    for key in (b"a", b"b", b"c", b"d"):
        store.put(key, b"0")
    wait(store.start_commit(shard, reading(1), ()))
    store.put(b"b", b"1")
    store.delete(b"c")
    append: Future[object] = Future()
    commit = store.start_commit(shard, reading(2), (append,))
    store.put(b"bb", b"2")
    store.delete(b"d")

    expected = [(b"a", b"0"), (b"b", b"1"), (b"bb", b"2")]
    assert list(store.items()) == expected
    assert list(store.items(b"b", b"bb")) == [(b"b", b"1")]
    assert [store.get(key) for key in (b"a", b"b", b"c", b"d")] == [b"0", b"1", None, None]
    assert store.get_many((b"bb", b"c", b"a")) == [b"2", None, b"0"]
    append.set_result(None)
    wait(commit)
    assert list(store.items()) == expected
    assert dict(store.read(lambda view: list(view.items())))[b"d"] == b"0"


def test_query_sees_one_commit_while_others_follow(open_store: OpenStore) -> None:
    """A scan over a large state takes a while; what is committed meanwhile must not slip into it."""
    shard = FixedShard()
    store = open_store()
    store.restore_checkpoint(shard)
    for key in range(1000):
        store.put(b"k%04d" % key, b"old")
    wait(store.start_commit(shard, reading(1), ()))

    def scan(view: CommittedView) -> set[bytes]:
        items = view.items()
        seen = {next(items)[1]}
        for key in range(1000):
            store.put(b"k%04d" % key, b"new")
        wait(store.start_commit(shard, reading(2), ()))
        return seen | {value for _, value in items}

    assert store.read(scan) == {b"old"}
    assert store.read(lambda view: view.get(b"k0999")) == b"new"


def test_keys_of_the_store_are_refused_and_hidden(open_store: OpenStore) -> None:
    """The checkpoint is a key, too; an application must neither see nor overwrite it."""
    shard = FixedShard()
    store = open_store()
    store.restore_checkpoint(shard)
    wait(store.start_commit(shard, reading(1), ()))

    with pytest.raises(ValidationError, match="zero byte"):
        store.put(b"\x00mine", b"")
    store.put(b"\x00mine", b"x", family="a")

    assert list(store.items()) == []
    assert store.read(lambda view: list(view.items())) == []
    assert list(store.items(family="a")) == [(b"\x00mine", b"x")]


def test_family_that_was_not_named_is_refused(open_store: OpenStore) -> None:
    """A misspelt family must not become one."""
    store = open_store()
    store.restore_checkpoint(FixedShard())

    with pytest.raises(ValidationError, match="family"):
        store.put(b"a", b"1", family="c")
    with pytest.raises(ValidationError, match="family"):
        store.get(b"a", family="c")


def test_store_that_is_not_restored_says_so(open_store: OpenStore) -> None:
    """In place of an error of the library's."""
    with pytest.raises(StoreError, match="restore_checkpoint"):
        open_store().get(b"a")


def test_tables_are_written_in_the_format_that_members_of_gazette_read(
    open_store: OpenStore,
) -> None:
    """RocksDB 7.8, which Gazette's members have, refuses tables of a later format: a standby of theirs could not open
    the files of a log that we wrote. The version stands in each table's footer, before its magic number of 8 bytes.
    """
    shard, log = FixedShard(), RecordedLog()
    store = open_store(log)
    store.restore_checkpoint(shard)
    for step in range(1, 40):
        for key in range(20):
            store.put(b"k%02d" % key, bytes(1000), family="a")
            store.put(b"k%02d" % key, bytes(1000))
        wait(store.start_commit(shard, reading(step), ()))
    store.destroy()

    tables = [log.files.content_of(path) for path in log.files.paths() if path.endswith(".sst")]
    # One that a compaction had begun has no footer yet.
    tables = [table for table in tables if table.endswith(_TABLE_MAGIC)]
    assert tables
    assert {int.from_bytes(table[-12:-8], "little") for table in tables} == {5}


def test_items_of_a_range_end_at_its_bound_however_many_ranges_are_read_beside(
    open_store: OpenStore,
) -> None:
    """The library's iterators read their bound at each step, from memory that they do not keep: the ranges that are
    begun meanwhile must not become the end of this one.
    """
    shard = FixedShard()
    store = open_store()
    store.restore_checkpoint(shard)
    for number in range(26):
        store.put(b"s%c" % (97 + number), b"")
    wait(store.start_commit(shard, reading(1), ()))

    def range_of(prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return store.items(prefix, prefix[:-1] + bytes((prefix[-1] + 1,)))

    whole = [range_of(b"s") for _ in range(3)]
    others = [range_of(bytes((104, number))) for number in range(20)]

    assert [len(list(each)) for each in whole] == [26, 26, 26]
    assert [len(list(each)) for each in others] == [0] * 20
