"""The index that a standby keeps of a keyed store's files: whatever it saw of them, it is the index of their state."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from broadsheet.consumer.keyed.committed_index import LOCAL_END, CommittedIndex
from broadsheet.consumer.keyed.follower import KeyedFollower
from broadsheet.consumer.keyed.key_codec import from_sortable
from broadsheet.consumer.keyed.recording import KeyedFiles
from broadsheet.consumer.keyed.row_index import MemoryIndex, all_items
from broadsheet.consumer.keyed.state_rows import entries_of, new_row, place_of
from broadsheet.consumer.keyed.store import KeyedStore, new_follower
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.testing.stores.recorded_log import MirroredFiles, RecordedLog
from broadsheet.testing.stores.subject import FixedShard, RecordedSubject, reading, wait

SHARD = FixedShard()
SUFFIX = b"\x00\x01"
KEYS = 40


def change(store: KeyedStore, chosen: random.Random) -> None:
    """Change rows, expiries and timers of some keys."""
    for _ in range(chosen.randrange(1, 12)):
        key = b"%03d" % chosen.randrange(KEYS)
        expiry = chosen.randrange(1_000) if key[-1] % 2 else None
        content = chosen.randbytes(chosen.randrange(300))
        row = None if chosen.random() < 0.2 else new_row(SUFFIX, expiry, content)
        store.put(place_of(key), SUFFIX, row)
        store.add_timer(key, chosen.randrange(1_000))
        for timer in store.expiries(key)[:-2]:
            store.remove_timer(key, timer)
    store.put_meta(b"times", chosen.randbytes(8))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> RecordedLog:
    """The log of a store whose snapshots went round some times."""
    subject = RecordedSubject(
        tmp_path_factory.mktemp("primary"),
        new_store=lambda shard: KeyedStore(shard, index="memory", snapshot_bytes_min=1 << 9),
        put=lambda *_: None,
        committed=lambda _: {},
    )
    store = subject.open(SHARD)
    assert isinstance(store, KeyedStore)
    store.restore_checkpoint(SHARD)
    for number in range(1, 60):
        change(store, random.Random(number))
        wait(store.start_commit(SHARD, reading(number), ()))
    store.destroy()
    return subject.log_of(SHARD)


def items_of(index: CommittedIndex) -> dict[bytes, bytes]:
    """Return everything in an index that is not its own."""
    found = dict(all_items(index.rows, b"\x00", b"\xff", step=1 << 20))
    return {name: row for name, row in found.items() if not b"m" <= name < LOCAL_END}


def state_of(files: MirroredFiles, directory: Path) -> tuple[int, dict[bytes, bytes]]:
    """Return the commit, and what an index of it must have: the recorded rows, and the entries that these ask for."""
    reader = KeyedFiles(SHARD.fqn, LocalState(files.write_to(directory)))
    rows: dict[bytes, bytes | None] = {}
    number = 0
    for frame, changed in reader.load(tidies=False):
        rows |= changed
        number = max(number, frame.number)
    rows = {name: row for name, row in rows.items() if row is not None}
    entries = {name: b"" for name, row in entries_of(rows).items() if row is not None}
    return number, {**{name: row for name, row in rows.items() if row is not None}, **entries}


def show(files: MirroredFiles, directory: Path) -> None:
    """Make a directory hold files as of a point in the log."""
    shutil.rmtree(directory, ignore_errors=True)
    files.write_to(directory)


@pytest.mark.parametrize("seed", range(3))
def test_followed_index_is_that_of_the_files_whatever_was_seen_between(
    log: RecordedLog, tmp_path: Path, seed: int
) -> None:
    """A standby sees the files as of some points of the log, in the middle of writes, too, and may miss files of
    changes that came and went between two of them. Each time its index is that of the last commit. Entries of timers
    and expiries that are too many are those of its making: others would pile up for as long as it stands by.
    """
    chosen = random.Random(seed)
    follower = KeyedFollower(SHARD.fqn, MemoryIndex)
    seen, made, excess = 0, None, set[bytes]()
    for count, files in log.cuts():
        if count < len(log.changes) and chosen.random() > (0.02, 0.05, 0.12)[seed]:
            continue
        show(files, tmp_path / "links")
        follower.follow(tmp_path / "links")
        seen += 1
        if count < len(log.changes) and seen % 8:
            continue
        number, expected = state_of(files, tmp_path / f"opened-{count}-{seen}")
        if number:
            index = follower.lend()
            items = items_of(index)
            assert index.number == number
            assert {name: items.get(name) for name in expected} == expected
            too_many = items.keys() - expected.keys()
            assert all(name[:1] in b"te" for name in too_many)
            assert index is not made or too_many <= excess
            made, excess = index, too_many
            index.release()
    follower.discard()


def test_store_of_a_promoted_standby_reads_no_file_that_its_index_knows(
    log: RecordedLog, tmp_path: Path
) -> None:
    """A promotion must not cost what the state costs: with each snapshot made unreadable behind its first frame, the
    store still opens, with all rows, because the standby's index has them.
    """
    directory = log.replay(tmp_path / "standby")
    follower = new_follower(SHARD.fqn, "rocksdb", directory)
    follower.follow(directory)
    number, expected = state_of(log.files, tmp_path / "expected")
    spoilt = [path for path in directory.iterdir() if path.name.startswith("snapshot-")]
    for path in spoilt:
        content = bytearray(path.read_bytes())
        content[-20:] = bytes(20)
        path.write_bytes(content)
    assert len(spoilt) > 1

    store = KeyedStore(SHARD, LocalState(directory, log.recorder(), follower=follower))
    assert store.restore_checkpoint(SHARD) == reading(number)

    rows = {b"s" + name: row for name, row in store.committed_rows()}
    assert rows == {name: row for name, row in expected.items() if name[:1] == b"s"}
    due = {timer for part in store.due_timers(1_000) for timer, _ in part}
    assert due == {from_sortable(name, 1) for name in expected if name[:1] == b"t"}
    store.destroy()
    follower.discard()
    assert not directory.exists()


def test_follower_that_is_stopped_on_its_way_leaves_no_index_behind(
    log: RecordedLog, tmp_path: Path
) -> None:
    """A promotion stops an index that is half made; the store must not take it for the state, but make its own."""
    directory = log.replay(tmp_path / "standby")
    follower = new_follower(SHARD.fqn, "rocksdb", directory)
    follower.stop()
    follower.follow(directory)
    number, expected = state_of(log.files, tmp_path / "expected")

    store = KeyedStore(SHARD, LocalState(directory, log.recorder(), follower=follower))
    assert store.restore_checkpoint(SHARD) == reading(number)

    rows = {b"s" + name: row for name, row in store.committed_rows()}
    assert rows == {name: row for name, row in expected.items() if name[:1] == b"s"}
    store.destroy()
    follower.discard()
