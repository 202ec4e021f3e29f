"""A recovery log that Gazette's SQLite store recorded, as our store takes it over."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from broadsheet.consumer.errors import ForeignStoreError, StoreError
from broadsheet.consumer.recoverylog.local_state import CHUNK_BYTES, LocalState
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.testing.stores.recorded_log import RecordedLog
from broadsheet.testing.stores.subject import FixedShard, reading

SHARD = FixedShard()
CHECKPOINT = reading(4096)
ROWS = {f"key-{number:04}": number for number in range(3000)}


def _gazettes_files(directory: Path, *, journal_mode: str) -> None:
    """Write what Gazette's store leaves: the pages in a RocksDB, and in WAL mode its newest commits beside it."""
    directory.mkdir()
    made = directory / "primary.db"
    with closing(sqlite3.connect(made, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal_mode}").fetchall()
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        connection.execute("CREATE TABLE sums (key TEXT PRIMARY KEY, value INTEGER)")
        connection.execute(
            "CREATE TABLE gazette_checkpoint (rowid INTEGER PRIMARY KEY DEFAULT 0 CHECK (rowid = 0), checkpoint BLOB)"
        )
        connection.execute("INSERT INTO gazette_checkpoint VALUES (0, '')")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO sums VALUES (?, ?)", ROWS.items())
        connection.execute(
            "UPDATE gazette_checkpoint SET checkpoint = ?", (CHECKPOINT.SerializeToString(),)
        )
        connection.execute("COMMIT")
        pages = made.read_bytes()
        wal = directory / "primary.db-wal"
        journal = wal.read_bytes() if wal.exists() else b""
    made.unlink()
    if journal:
        wal.write_bytes(journal)
    _write_pages(directory / "pageDB", pages)


def _write_pages(directory: Path, content: bytes, *families: str) -> None:
    database = Rdict(str(directory), Options(raw_mode=True))
    family = database.create_column_family("primary.db", Options(raw_mode=True))
    for begin in range(0, len(content), 4096):
        family[begin.to_bytes(8, "big")] = content[begin : begin + 4096]
    for name in families:
        database.create_column_family(name, Options(raw_mode=True)).close()
    family.close()
    database.close()


def _log_of(directory: Path) -> RecordedLog:
    """Return a log of these files."""
    log = RecordedLog()
    recorder = log.recorder()
    for path in sorted(each for each in directory.rglob("*") if each.is_file()):
        name = f"/{path.relative_to(directory)}"
        recorder.create(name)
        content = path.read_bytes()
        for begin in range(0, len(content), CHUNK_BYTES):
            recorder.write(name, begin, content[begin : begin + CHUNK_BYTES])
    return log


def _opened(log: RecordedLog, directory: Path, *, from_gazette: bool = True) -> SqliteStore:
    shard = replace(SHARD, local_state=LocalState(directory, log.hand_over(directory)))
    return SqliteStore(shard, from_gazette=from_gazette)


@pytest.mark.parametrize("journal_mode", ["TRUNCATE", "WAL"])
def test_log_of_gazettes_store_is_taken_over_with_rows_and_checkpoint(
    tmp_path: Path, journal_mode: str
) -> None:
    """A shard that moves from Go goes on from its checkpoint, whichever journal Go's SQLite was built with. The log
    then holds our files alone, and each next life goes on from them.
    """
    _gazettes_files(tmp_path / "go", journal_mode=journal_mode)
    log = _log_of(tmp_path / "go")

    for life in (1, 2):
        store = _opened(log, tmp_path / str(life))
        try:
            found = store.restore_checkpoint(SHARD)
            assert found == (CHECKPOINT if life == 1 else reading(5000))
            rows = dict(store.connection.execute("SELECT key, value FROM sums"))
            assert rows == ROWS | ({} if life == 1 else {"new": 1})
            store.connection.execute("INSERT OR REPLACE INTO sums VALUES ('new', 1)")
            store.start_commit(SHARD, reading(5000), ()).result(timeout=30)
        finally:
            store.destroy()
        assert not [path for path in log.files.paths() if "pageDB" in path or "primary" in path]


def test_take_over_cut_off_anywhere_is_done_by_the_next_life(tmp_path: Path) -> None:
    """A log that ends anywhere in the take-over still holds Gazette's files whole, or ours."""
    _gazettes_files(tmp_path / "go", journal_mode="TRUNCATE")
    log = _log_of(tmp_path / "go")
    before = len(log.changes)
    store = _opened(log, tmp_path / "first")
    store.restore_checkpoint(SHARD)
    store.destroy()

    for number, (changes, files) in enumerate(log.cuts()):
        if changes < before:
            continue
        cut = RecordedLog(changes=log.changes[:changes], files=files.copy())
        later = _opened(cut, tmp_path / f"cut-{number}")
        assert later.restore_checkpoint(SHARD) == CHECKPOINT
        later.destroy()
        assert not [path for path in cut.files.paths() if "pageDB" in path]


def test_log_of_gazettes_store_is_refused_unless_asked_for(tmp_path: Path) -> None:
    """The take-over goes one way: a Go standby would then begin with an empty database, so it must be asked for."""
    _gazettes_files(tmp_path / "go", journal_mode="TRUNCATE")
    store = _opened(_log_of(tmp_path / "go"), tmp_path / "1", from_gazette=False)
    with pytest.raises(ForeignStoreError, match="from_gazette=True"):
        store.restore_checkpoint(SHARD)
    store.destroy()


@pytest.mark.parametrize("damage", ["page missing", "attached database", "no database"])
def test_pages_that_make_no_database_are_refused_by_name(tmp_path: Path, damage: str) -> None:
    """What cannot be taken over whole is not taken over in part."""
    _gazettes_files(tmp_path / "made", journal_mode="TRUNCATE")
    families = {name: Options(raw_mode=True) for name in ("default", "primary.db")}
    database = Rdict(
        str(tmp_path / "made/pageDB"), Options(raw_mode=True), column_families=families
    )
    content = b"".join(value for _, value in database.get_column_family("primary.db").items())
    database.close()
    (tmp_path / "go").mkdir()
    if damage == "page missing":
        _write_pages(tmp_path / "go/pageDB", content[:4096] + content[8192:])
    elif damage == "attached database":
        _write_pages(tmp_path / "go/pageDB", content, "other.db")
    else:
        _write_pages(tmp_path / "go/pageDB", b"x" * 8192)
    store = _opened(_log_of(tmp_path / "go"), tmp_path / "1")
    with pytest.raises(StoreError, match=r"in its recovery log|expected one database"):
        store.restore_checkpoint(SHARD)
    store.destroy()
