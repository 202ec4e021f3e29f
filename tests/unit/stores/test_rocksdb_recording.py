"""Recording RocksDB's files while RocksDB changes them: with files of our own, so that each moment can be chosen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.stores.rocksdb.recording import RocksDbRecording
from broadsheet.testing.stores.recorded_log import RecordedLog
from tests.support.failing_disk import descriptors_under


class Database:
    """Files as RocksDB leaves them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.write("MANIFEST-000001", b"adds 2;")
        self.write("CURRENT", b"MANIFEST-000001\n")
        self.write("000002.sst", b"table 2")
        self.write("000003.log", b"batch;")

    def write(self, name: str, content: bytes) -> None:
        """Append to a file."""
        with (self.directory / name).open("ab") as file:
            file.write(content)

    def compact(self) -> None:
        """End a compaction of table 2 into table 4, as RocksDB does: table, manifest, removal."""
        self.write("000004.sst", b"table 4")
        self.write("MANIFEST-000001", b"adds 4, removes 2;")
        (self.directory / "000002.sst").unlink()


@pytest.fixture
def log() -> RecordedLog:
    """A log in memory."""
    return RecordedLog()


@pytest.fixture
def recording(tmp_path: Path, log: RecordedLog) -> RocksDbRecording:
    """Of a directory in which nothing is yet."""
    return RocksDbRecording(log.recorder(), tmp_path)


def order(log: RecordedLog) -> list[str]:
    """Return what was written or renamed to, in order."""
    return [
        change.to or change.path
        for change in log.changes
        if change.kind == "rename" or (change.kind == "write" and "dbtmp" not in change.path)
    ]


def test_tables_come_first_and_current_last(
    tmp_path: Path, log: RecordedLog, recording: RocksDbRecording
) -> None:
    """A manifest must not name a table, nor CURRENT a manifest, that the log does not have yet."""
    Database(tmp_path)

    recording.record_changes()

    assert order(log) == ["/000002.sst", "/000003.log", "/MANIFEST-000001", "/CURRENT"]


def test_only_what_was_appended_is_recorded_next(
    tmp_path: Path, log: RecordedLog, recording: RocksDbRecording
) -> None:
    """A commit costs what it wrote, not what there is."""
    database = Database(tmp_path)
    recording.record_changes()
    before = len(log.changes)
    database.write("000003.log", b"batch 2;")

    recording.record_changes()

    (change,) = log.changes[before:]
    assert (change.path, change.offset, change.content) == ("/000003.log", 6, b"batch 2;")


@pytest.mark.parametrize("moment", ["after the files were listed", "before the manifest is read"])
def test_compaction_that_ends_meanwhile_is_seen_whole_or_not_at_all(
    tmp_path: Path,
    log: RecordedLog,
    recording: RocksDbRecording,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """The table that the manifest names must be in the log, whichever side of our look it came to be on."""
    database = Database(tmp_path)
    recording.record_changes()
    _once_around(monkeypatch, tmp_path, database.compact, after=moment.startswith("after"))

    recording.record_changes()

    assert log.files.paths() == ["/000003.log", "/000004.sst", "/CURRENT", "/MANIFEST-000001"]
    written = [change.path for change in log.changes if change.kind == "write"]
    assert written.index("/000004.sst") < len(written) - 1
    removed = [change.path for change in log.changes if change.kind == "remove"]
    assert removed == ["/000002.sst"]
    assert log.changes[-1].kind == "remove"


def test_file_made_anew_under_an_old_name_is_recorded_anew(
    tmp_path: Path, log: RecordedLog
) -> None:
    """A log that was cut off may leave a file which no manifest names, and whose number RocksDB uses again."""
    database = Database(tmp_path)
    database.write("000009.sst", b"an orphan of some length")
    for path in sorted(tmp_path.iterdir()):
        log.recorder().create(f"/{path.name}")
    recording = RocksDbRecording(log.recorder(), tmp_path)
    (tmp_path / "000009.sst").write_bytes(b"another")

    recording.record_changes()

    assert log.files.content_of("/000009.sst") == b"another"


def test_played_files_are_not_recorded_again(tmp_path: Path) -> None:
    """Taking over must not cost what the log already has."""
    Database(tmp_path)
    log = RecordedLog()
    recording = RocksDbRecording(log.recorder(), tmp_path)

    recording.record_changes()

    assert log.changes == []


def test_manifest_that_begins_anew_is_named_once_it_is_there(
    tmp_path: Path, log: RecordedLog, recording: RocksDbRecording
) -> None:
    """The old one goes last."""
    database = Database(tmp_path)
    recording.record_changes()
    before = len(log.changes)
    database.write("MANIFEST-000005", b"all again;")
    (tmp_path / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    (tmp_path / "MANIFEST-000001").unlink()

    recording.record_changes()

    kinds = [(change.kind, change.to or change.path) for change in log.changes[before:]]
    assert kinds[:2] == [("create", "/MANIFEST-000005"), ("write", "/MANIFEST-000005")]
    assert kinds[-2:] == [("rename", "/CURRENT"), ("remove", "/MANIFEST-000001")]


def test_descriptors_are_closed(
    tmp_path: Path, log: RecordedLog, recording: RocksDbRecording
) -> None:
    """A commit opens files; thousands of commits must not run out of descriptors."""
    database = Database(tmp_path)

    for _ in range(20):
        database.write("000003.log", b"batch;")
        recording.record_changes()

    assert descriptors_under(tmp_path) == []
    assert log.files.content_of("/000003.log") == b"batch;" * 21


def _once_around(
    monkeypatch: pytest.MonkeyPatch, directory: Path, event: Callable[[], None], *, after: bool
) -> None:
    """Have `event` happen once, just before or after the recording lists the files of a directory."""
    scandir = os.scandir
    pending = [event]

    @contextmanager
    def disturbed(path: Any) -> Iterator[Iterator[os.DirEntry[str]]]:
        if pending and not after:
            pending.pop()()
        with scandir(path) as entries:
            yield entries
        if pending:
            pending.pop()()

    def scanned(path: Any = ".") -> Any:
        return disturbed(path) if Path(path) == directory else scandir(path)

    monkeypatch.setattr(os, "scandir", scanned)
