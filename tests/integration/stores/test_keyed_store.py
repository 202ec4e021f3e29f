"""The files and the index of a keyed store: what a commit costs, what a restart reads, and what it does not believe."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from broadsheet.consumer.errors import ForeignStoreError, StoreError
from broadsheet.consumer.keyed.recording import RANGES
from broadsheet.consumer.keyed.state_rows import key_at, new_row, place_of
from broadsheet.consumer.keyed.store import IndexKind, KeyedStore
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.testing.stores.subject import FixedShard, RecordedSubject, reading, wait

SHARD = FixedShard()
SUFFIX = b"\x00\x01"
VALUE_BYTES = 400


def put(store: KeyedStore, key: int, content: bytes | None) -> None:
    """Set the row of a key."""
    row = None if content is None else new_row(SUFFIX, None, content)
    store.put(place_of(b"%06d" % key), SUFFIX, row)


def rows_in(store: KeyedStore) -> dict[int, bytes]:
    """Return the rows of all keys."""
    return {int(key_at(name)[:-2]): row[3:] for name, row in store.committed_rows()}


class Life:
    """A store in a directory that stays, and what it should hold."""

    def __init__(self, directory: Path, index: IndexKind = "rocksdb") -> None:
        self.store = KeyedStore(
            SHARD,
            LocalState(directory),
            index=index,
            snapshot_bytes_min=8 << 10,
            lock_wait_seconds=0,
        )
        try:
            self.checkpoint = self.store.restore_checkpoint(SHARD)
        except StoreError:
            self.end()
            raise

    def commit(self, number: int, expected: dict[int, bytes], *, keys: int = 20) -> None:
        """Change some keys, and remove one."""
        chosen = random.Random(number)
        for _ in range(keys):
            key, content = chosen.randrange(400), chosen.randbytes(VALUE_BYTES)
            put(self.store, key, content)
            expected[key] = content
        gone = chosen.choice(sorted(expected))
        put(self.store, gone, None)
        del expected[gone]
        wait(self.store.start_commit(SHARD, reading(number), ()))

    def end(self) -> None:
        """Destroy it."""
        self.store.destroy()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory that stays."""
    return tmp_path / "state"


def test_log_grows_by_less_than_twice_what_changes(tmp_path: Path) -> None:
    """Snapshots go range by range, and cost less than the changes: through many times the state, the log gets at most
    two bytes for a byte of value, no snapshot is of everything, and what is left of it is bounded.
    """
    subject = RecordedSubject(
        tmp_path,
        new_store=lambda shard: KeyedStore(shard, index="memory", snapshot_bytes_min=8 << 10),
        put=lambda *_: None,
        committed=lambda _: {},
    )
    store = subject.open(SHARD)
    assert isinstance(store, KeyedStore)
    store.restore_checkpoint(SHARD)
    keys, rounds, changed = 800, 150, 0
    chosen = random.Random(1)
    for number in range(rounds):
        written = chosen.sample(range(keys), keys if number == 0 else 40)
        for key in written:
            put(store, key, chosen.randbytes(VALUE_BYTES))
        changed += len(written) * VALUE_BYTES
        wait(store.start_commit(SHARD, reading(number + 1), ()))
    state = keys * VALUE_BYTES
    assert changed > 7 * state

    log = subject.log_of(SHARD)
    assert sum(len(change.content) for change in log.changes) < 2 * changed

    live = log.replay(tmp_path / "live")
    files = [path.stat().st_size for path in live.iterdir() if path.name[0] in "sc"]
    assert sum(files) < 4 * state
    assert max(files) < state / 4 + state / RANGES
    store.destroy()


def test_restart_reads_only_what_its_index_lacks(directory: Path) -> None:
    """An index of an earlier commit, as a crash leaves it, catches up from the files; one that is up to date reads no
    rows; and one whose missing commits are only in snapshots is made again.
    """
    expected: dict[int, bytes] = {}
    life = Life(directory)
    for number in range(1, 4):
        life.commit(number, expected)
    life.end()
    shutil.copytree(directory / "index", directory.parent / "early")
    life = Life(directory)
    assert rows_in(life.store) == expected
    life.commit(4, expected, keys=2)
    life.end()

    def with_early_index() -> Life:
        shutil.rmtree(directory / "index")
        shutil.copytree(directory.parent / "early", directory / "index")
        return Life(directory)

    life = with_early_index()
    assert rows_in(life.store) == expected
    for number in range(5, 60):
        life.commit(number, expected)
    life.end()
    life = with_early_index()
    assert rows_in(life.store) == expected
    assert life.checkpoint == reading(59)
    life.end()


def spoil_snapshots(directory: Path) -> dict[Path, bytes]:
    """Make the rows of each snapshot unreadable; return what they were."""
    sound = {
        path: path.read_bytes() for path in directory.iterdir() if path.name[:9] == "snapshot-"
    }
    for path, content in sound.items():
        path.write_bytes(content[:-20] + bytes(20))
    return sound


def test_restart_reads_no_snapshot_that_its_index_knows(directory: Path) -> None:
    """A restart must not cost what the state costs: it opens with all rows though no snapshot can be read."""
    expected: dict[int, bytes] = {}
    life = Life(directory)
    for number in range(1, 40):
        life.commit(number, expected)
    life.end()
    assert len(spoil_snapshots(directory)) > 3

    life = Life(directory)
    assert rows_in(life.store) == expected
    assert life.checkpoint == reading(39)
    life.commit(40, expected)
    life.end()


def test_index_that_was_half_made_is_made_again(directory: Path) -> None:
    """A life that ends while it makes the index has rows of some ranges only, though it read a snapshot with a number.
    The next one must not go on from there: all other rows would be lost.
    """
    expected: dict[int, bytes] = {}
    life = Life(directory)
    for number in range(1, 40):
        life.commit(number, expected)
    life.end()
    shutil.rmtree(directory / "index")
    sound = spoil_snapshots(directory)
    readable = sorted(sound)[: len(sound) // 2]
    for path in readable:
        path.write_bytes(sound[path])
    with pytest.raises(StoreError, match="is damaged"):
        Life(directory)
    for path, content in sound.items():
        path.write_bytes(content)

    life = Life(directory)
    assert rows_in(life.store) == expected
    life.end()


def test_index_of_another_history_is_refused(directory: Path) -> None:
    """Files that were put back to an older copy, and went on from there, have other commits of the same numbers."""
    expected: dict[int, bytes] = {}
    life = Life(directory)
    life.commit(1, expected, keys=1)
    life.end()
    other = directory.parent / "other"
    shutil.copytree(directory, other)
    life = Life(directory)
    life.commit(2, expected, keys=1)
    life.end()
    life = Life(other)
    wait(life.store.start_commit(SHARD, reading(3), ()))
    life.end()
    shutil.rmtree(other / "index")
    shutil.copytree(directory / "index", other / "index")

    with pytest.raises(StoreError, match="commit 2 of its index is another one: restore"):
        Life(other)


def test_restart_with_another_kind_of_index_has_the_same_rows(directory: Path) -> None:
    """The index is no part of the state: it may be changed, lost and made again."""
    expected: dict[int, bytes] = {}
    kinds: tuple[IndexKind, ...] = ("rocksdb", "memory", "rocksdb")
    for number, kind in enumerate(kinds, start=1):
        life = Life(directory, kind)
        assert rows_in(life.store) == expected
        life.commit(number, expected)
        life.end()


def test_restart_behind_an_index_that_was_not_made_whole(directory: Path) -> None:
    """The power failed while RocksDB created its first files. The index is rebuilt, because the store's files have all
    of it. An index that cannot be opened for another reason stays, and the error names it.
    """
    expected: dict[int, bytes] = {}
    life = Life(directory)
    life.commit(1, expected)
    life.end()
    (index,) = directory.rglob("index")
    (index / "CURRENT").unlink()
    (index / "000004.log").touch()

    life = Life(directory)
    assert rows_in(life.store) == expected
    life.commit(2, expected)
    life.end()
    (index / "CURRENT").unlink()
    (index / "CURRENT").mkdir()
    with pytest.raises(StoreError, match=r"cannot open .*/index"):
        Life(directory)
    assert (index / "CURRENT").exists()


@pytest.mark.parametrize("content", [b"", b"\x00\x00"], ids=["empty", "torn"])
def test_restart_behind_a_first_commit_that_was_cut_off(directory: Path, content: bytes) -> None:
    """A life that is killed at its first commit leaves a file of changes that has none. The index of the life before is
    at the last commit, which that file follows: nothing is missing.
    """
    expected: dict[int, bytes] = {}
    life = Life(directory)
    for number in (1, 2):
        life.commit(number, expected, keys=1)
    life.end()
    (changes,) = directory.rglob("changes-*")
    (changes.parent / f"changes-{2:020}").write_bytes(content)

    for number in (3, 4):
        life = Life(directory)
        assert rows_in(life.store) == expected
        life.commit(number, expected, keys=1)
        life.end()


def test_index_that_is_ahead_of_its_files_is_refused(directory: Path) -> None:
    """Files of an older copy with the index of today are two states; neither may be taken for the shard's."""
    expected: dict[int, bytes] = {}
    life = Life(directory)
    life.commit(1, expected, keys=1)
    life.end()
    older = directory.parent / "older"
    shutil.copytree(directory, older)
    life = Life(directory)
    life.commit(2, expected, keys=1)
    life.end()
    shutil.rmtree(older / "index")
    shutil.copytree(directory / "index", older / "index")

    with pytest.raises(
        StoreError, match="its index is at commit 2, and its files end at 1: restore"
    ):
        Life(older)


def test_directory_of_another_store_is_refused_and_left_as_it_is(directory: Path) -> None:
    """A keyed store that began with nothing there would apply again what the other one applied."""
    other: JsonFileStore[dict[str, int]] = JsonFileStore(
        SHARD, directory, initial={}, state_type=dict[str, int]
    )
    other.restore_checkpoint(SHARD)
    wait(other.start_commit(SHARD, reading(1), ()))
    other.destroy()
    state = next(directory.rglob("state.json")).parent

    with pytest.raises(ForeignStoreError, match="files of a json store"):
        Life(state)

    assert not (state / "index").exists()
