"""A store never starts from nothing where the files of another one, or of another shard, are."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.application import Store
from broadsheet.consumer.errors import ForeignStoreError
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.consumer.stores.aggregate import Aggregates, AggregateStore, Last
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.consumer.stores.store_record import RECORD
from broadsheet.testing.stores.recorded_log import MirroredFiles, RecordedLog
from broadsheet.testing.stores.subject import FixedShard, reading

KINDS = ("json", "sqlite", "rocksdb", "aggregate")
MAIN = {
    "json": "state.json",
    "sqlite": "state.db",
    "rocksdb": "CURRENT",
    "aggregate": "changes-00000000000000000000",
}


def _opened(kind: str, shard: FixedShard, local_state: LocalState) -> Store:
    shard = replace(shard, local_state=local_state)
    if kind == "json":
        return JsonFileStore(shard, initial={}, state_type=dict[str, int])
    if kind == "sqlite":
        return SqliteStore(shard, schema="CREATE TABLE IF NOT EXISTS t (k TEXT)")
    if kind == "rocksdb":
        return RocksDbStore(shard)
    return AggregateStore(shard, Aggregates(key="k", last=Last("v", "int64")))


def _commit(kind: str, shard: FixedShard, local_state: LocalState, number: int) -> int:
    """Open, commit a checkpoint, close; return the number of the checkpoint that was found."""
    store: Any = _opened(kind, shard, local_state)
    try:
        found = store.restore_checkpoint(shard)
        if kind == "aggregate":
            store.update({"k": ["a"], "v": [number]})
        store.start_commit(shard, reading(number), ()).result(timeout=30)
    finally:
        store.destroy()
    return max((source.read_through for source in found.sources.values()), default=0)


def _next_life(log: RecordedLog, directory: Path) -> LocalState:
    return LocalState(directory, log.hand_over(directory))


@pytest.mark.parametrize("recorded", [True, False], ids=["record", "no record"])
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(KINDS, 2)))
def test_log_of_another_kind_of_store_is_refused_by_name(
    tmp_path: Path, first: str, second: str, recorded: bool
) -> None:
    """An application that changes its store's class would apply all messages again. The refusal names what is there,
    changes nothing, and also holds for logs of releases that wrote no record.
    """
    shard, log = FixedShard(), RecordedLog()
    _commit(first, shard, _next_life(log, tmp_path / "1"), 7)
    if not recorded:
        log = _without_record(log)
    before = log.files.paths()

    with pytest.raises(ForeignStoreError, match=first) as refusal:
        _commit(second, shard, _next_life(log, tmp_path / "2"), 8)

    assert failure_kind(refusal.value) is FailureKind.SPEC
    assert log.files.paths() == before
    assert _commit(first, shard, _next_life(log, tmp_path / "3"), 9) == 7


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(KINDS, 2)))
def test_directory_of_another_kind_of_store_is_refused(
    tmp_path: Path, first: str, second: str
) -> None:
    """The same without a recovery log, where the directory is the store."""
    shard, local_state = FixedShard(), LocalState(tmp_path / "kept")
    _commit(first, shard, local_state, 7)

    with pytest.raises(ForeignStoreError, match=first):
        _commit(second, shard, local_state, 8)

    assert _commit(first, shard, local_state, 9) == 7


@pytest.mark.parametrize("kind", KINDS)
def test_directory_of_another_roots_shard_is_refused_until_its_record_is_removed(
    tmp_path: Path, kind: str
) -> None:
    """Two roots with one directory and one shard id would fence each other for ever, each with the other's state. A
    rename of the root is deliberate, and has a way.
    """
    local_state = LocalState(tmp_path / "kept")
    production, staging = FixedShard(root="/production"), FixedShard(root="/staging")
    _commit(kind, production, local_state, 7)

    with pytest.raises(ForeignStoreError, match="/production/items/shard-0001"):
        _commit(kind, staging, local_state, 8)
    assert _commit(kind, production, local_state, 9) == 7

    (local_state.directory / RECORD).unlink()
    assert _commit(kind, staging, local_state, 10) == 9


@pytest.mark.parametrize("kind", KINDS)
def test_directory_that_lost_its_file_is_refused(tmp_path: Path, kind: str) -> None:
    """A partial restore leaves the record and not the state: that is a loss, and not a new shard."""
    shard, local_state = FixedShard(), LocalState(tmp_path / "kept")
    _commit(kind, shard, local_state, 7)
    (local_state.directory / MAIN[kind]).unlink()

    with pytest.raises(ForeignStoreError, match="they are gone"):
        _commit(kind, shard, local_state, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_directory_with_hidden_files_of_a_file_system_is_that_of_a_new_shard(
    tmp_path: Path, kind: str
) -> None:
    """Volumes come with such files; a refusal would lock out every new shard on them. Other files are still refused."""
    shard, local_state = FixedShard(), LocalState(tmp_path / "kept")
    local_state.directory.mkdir(mode=0o700)
    for name in (".nfs000000000001", ".snapshot", ".DS_Store"):
        (local_state.directory / name).touch()
    (local_state.directory / "lost+found").mkdir()

    assert _commit(kind, shard, local_state, 7) == 0
    assert _commit(kind, shard, local_state, 8) == 7

    other = LocalState(tmp_path / "other")
    other.directory.mkdir(mode=0o700)
    (other.directory / "counts.bin").touch()
    with pytest.raises(ForeignStoreError, match=r"another store \(counts\.bin\)"):
        _commit(kind, shard, other, 7)


@pytest.mark.parametrize("has_record", [True, False], ids=["record", "no record"])
@pytest.mark.parametrize("kind", KINDS)
def test_shard_that_gets_a_log_later_does_not_leave_its_state_behind(
    tmp_path: Path, kind: str, has_record: bool
) -> None:
    """An application gives its store a directory, and the spec a recovery log: an empty log is no new shard then, also
    where a release that left no record wrote the directory.
    """
    shard = FixedShard()
    kept = LocalState(tmp_path / shard.id)
    _commit(kind, shard, kept, 7)
    if not has_record:
        (kept.directory / RECORD).unlink()
    recorded = replace(shard, local_state=_next_life(RecordedLog(), tmp_path / "1"))
    store: Store
    if kind == "json":
        store = JsonFileStore(recorded, tmp_path, initial={})
    elif kind == "aggregate":
        store = AggregateStore(recorded, Aggregates(key="k", last=Last("v", "int64")), kept)
    else:
        store = (SqliteStore if kind == "sqlite" else RocksDbStore)(recorded, kept)

    with pytest.raises(ForeignStoreError, match="holds its state of before it had a log"):
        store.restore_checkpoint(shard)
    store.destroy()


@pytest.mark.parametrize("kind", KINDS)
def test_log_of_an_application_that_recorded_files_itself_is_refused(
    tmp_path: Path, kind: str
) -> None:
    """Files of a store that we do not know are no sign of a new shard either."""
    log = RecordedLog()
    recorder = log.hand_over(tmp_path / "1")
    recorder.create("/counts.bin")

    with pytest.raises(ForeignStoreError, match=r"another store \(counts\.bin\)"):
        _commit(kind, FixedShard(), _next_life(log, tmp_path / "2"), 8)


@pytest.mark.parametrize("kind", KINDS)
def test_log_of_an_older_release_is_adopted_and_recorded(tmp_path: Path, kind: str) -> None:
    """What was recorded before there were records goes on, and has one after the next commit."""
    shard, log = FixedShard(), RecordedLog()
    _commit(kind, shard, _next_life(log, tmp_path / "1"), 7)
    log = _without_record(log)

    assert _commit(kind, shard, _next_life(log, tmp_path / "2"), 8) == 7
    assert f"/{RECORD}" in log.files.paths()


def _without_record(log: RecordedLog) -> RecordedLog:
    """Return the log as a release that wrote no record would have left it."""
    changes = [change for change in log.changes if change.path != f"/{RECORD}"]
    files = MirroredFiles()
    for change in changes:
        files.apply(change)
    return RecordedLog(changes=changes, files=files)
