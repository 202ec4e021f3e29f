"""`SqliteStore` beside other programs that read its file, and under an application's settings of connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.stores.recorded_log import RecordedLog
from broadsheet.testing.stores.subject import FixedShard, offset_of, reading, wait
from tests.support.eventually import eventually_sync

SCHEMA = "CREATE TABLE IF NOT EXISTS blobs (key INTEGER PRIMARY KEY, step INTEGER, content BLOB);"
ORDERS = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS lines (
    id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL REFERENCES orders(id) ON DELETE CASCADE
);
"""
WAL_BYTES_MAX = 64 << 10
SHARD = FixedShard()


@pytest.fixture
def opened() -> Iterator[list[SqliteStore]]:
    """Stores to destroy in the end."""
    stores: list[SqliteStore] = []
    yield stores
    for store in stores:
        store.destroy()


def kept(opened: list[SqliteStore], directory: Path, **options: Any) -> SqliteStore:
    """Open a store in a directory that stays."""
    options = {"schema": SCHEMA, "wal_bytes_max": WAL_BYTES_MAX, **options}
    opened.append(SqliteStore(SHARD, LocalState(directory), **options))
    return opened[-1]


def write(store: SqliteStore, step: int) -> None:
    """Write some pages."""
    for key in range(20):
        store.connection.execute(
            "INSERT OR REPLACE INTO blobs VALUES (?, ?, randomblob(1000))", (key, step)
        )


def commit(store: SqliteStore, step: int) -> None:
    """Write some pages, and commit."""
    write(store, step)
    wait(store.start_commit(SHARD, reading(step), ()))


def newest_in(database: Path) -> set[tuple[int]]:
    """Return the steps that wrote the rows, as another program sees them."""
    with closing(sqlite3.connect(database)) as outside:
        return set(outside.execute("SELECT DISTINCT step FROM blobs").fetchall())


def begin_reading(database: Path) -> sqlite3.Connection:
    """Return another program's connection with a SELECT that it leaves open."""
    outside = sqlite3.connect(database)
    outside.execute("BEGIN")
    outside.execute("SELECT count(*) FROM blobs").fetchone()
    return outside


def test_reader_outside_holds_the_log_and_not_the_shard(
    opened: list[SqliteStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup, or an operator's shell: the write-ahead log grows, and the shard says for what, until it is over."""
    store = kept(opened, tmp_path)
    store.restore_checkpoint(SHARD)
    commit(store, 1)
    wal = tmp_path / "state.db-wal"

    with closing(begin_reading(tmp_path / "state.db")):
        for step in range(2, 12):
            commit(store, step)
        held_bytes = wal.stat().st_size

    assert held_bytes > 3 * WAL_BYTES_MAX
    assert "sqlite.log_held" in capsys.readouterr().out
    step = 12
    while wal.stat().st_size >= WAL_BYTES_MAX and step < 100:
        commit(store, step)
        step += 1
    assert step < 100, "the log is folded once the reader is gone"


def test_store_starts_beside_a_reader_outside(opened: list[SqliteStore], tmp_path: Path) -> None:
    """A restart must not wait for a report that somebody runs."""
    kept(opened, tmp_path).restore_checkpoint(SHARD)
    commit(opened[0], 1)
    reader = begin_reading(tmp_path / "state.db")
    opened.pop().destroy()

    following = kept(opened, tmp_path)

    assert offset_of(following.restore_checkpoint(SHARD)) == 1
    commit(following, 2)
    reader.close()
    assert newest_in(tmp_path / "state.db") == {(2,)}


class RecordedLife:
    """A recorded store, whose recovery log is played after every commit."""

    def __init__(self, directory: Path, *, wal_bytes_max: int) -> None:
        self._directory = directory
        life = directory / "life"
        self.log = RecordedLog()
        self.shard = FixedShard(local_state=LocalState(life, self.log.hand_over(life)))
        self.store = SqliteStore(self.shard, schema=SCHEMA, wal_bytes_max=wal_bytes_max)
        self.database = life / "state.db"
        self.step = 0

    def commit(self) -> None:
        """Commit, and see that the recovery log has it."""
        self.step += 1
        commit(self.store, self.step)
        self.check()

    def check(self) -> None:
        """Play the recovery log."""
        replayed = self.log.replay(self._directory / f"replayed-{self.step}")
        assert newest_in(replayed / "state.db") == {(self.step,)}

    def commit_under_reader(self) -> sqlite3.Connection:
        """Commit such that a reader of this commit is there when the write-ahead log is copied; return it."""
        self.step += 1
        write(self.store, self.step)
        self.log.hold()
        future = self.store.start_commit(self.shard, reading(self.step), ())
        # What is committed is copied once the recovery log has it.
        eventually_sync(lambda: newest_in(self.database) == {(self.step,)})
        reader = begin_reading(self.database)
        self.log.release()
        wait(future)
        return reader


def test_recorded_log_is_whole_while_a_reader_holds_an_old_commit(
    opened: list[SqliteStore], tmp_path: Path
) -> None:
    """SQLite copies a part of its log into the database, and keeps all of it."""
    life = RecordedLife(tmp_path, wal_bytes_max=WAL_BYTES_MAX)
    opened.append(life.store)
    life.store.restore_checkpoint(life.shard)

    for _ in range(2):
        life.commit()
        with closing(begin_reading(life.database)):
            for _ in range(6):
                life.commit()
        for _ in range(4):
            life.commit()


def test_recorded_log_is_whole_after_a_reader_held_the_newest_commit(
    opened: list[SqliteStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite copies all of its log, and begins it again without emptying it: the recovery log must follow."""
    life = RecordedLife(tmp_path, wal_bytes_max=1)
    opened.append(life.store)
    life.store.restore_checkpoint(life.shard)
    life.commit()

    with closing(life.commit_under_reader()):
        eventually_sync(lambda: "sqlite.log_held" in capsys.readouterr().out)
    for _ in range(6):
        life.commit()


def test_rows_as_dictionaries_are_the_applications_alone(
    opened: list[SqliteStore], tmp_path: Path
) -> None:
    """The recipe of Python's own manual. The store's statements run on the same connections."""

    def as_dictionaries(connection: sqlite3.Connection) -> object:
        connection.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        connection.text_factory = bytes
        return connection.execute("SELECT count(*) AS n FROM blobs").fetchone()

    store = kept(opened, tmp_path)
    store.restore_checkpoint(SHARD)
    for step in range(1, 6):
        assert isinstance(as_dictionaries(store.connection), dict)
        commit(store, step)
        assert store.read(as_dictionaries) == {"n": 20}

    assert store.read(lambda reader: reader.execute("SELECT 'text'").fetchone()) == ("text",)
    assert offset_of(store.restore_checkpoint(SHARD)) == 5
    with store.scan("blobs", ("key", "step")) as scan:
        assert sum(len(batch) for batch in scan.batches) == 20


def test_foreign_keys_as_a_setting_of_the_store_are_obeyed(
    opened: list[SqliteStore], tmp_path: Path
) -> None:
    """An order that is deleted takes its lines with it; a line of no order is refused."""
    store = kept(opened, tmp_path, schema=ORDERS, pragmas={"foreign_keys": "ON"})
    store.restore_checkpoint(SHARD)
    store.connection.execute("INSERT INTO orders VALUES (1)")
    store.connection.execute("INSERT INTO lines VALUES (10, 1)")
    store.connection.execute("DELETE FROM orders WHERE id = 1")

    assert store.connection.execute("SELECT count(*) FROM lines").fetchone() == (0,)
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        store.connection.execute("INSERT INTO lines VALUES (11, 999)")


def test_pragma_without_effect_is_refused(
    opened: list[SqliteStore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite passes over it in silence, and the application relies on it."""
    store = kept(opened, tmp_path / "1", schema="PRAGMA foreign_keys = ON;" + ORDERS)
    with pytest.raises(StoreError, match=r"schema: PRAGMA foreign_keys.*pragmas=\{'foreign_keys'"):
        store.restore_checkpoint(SHARD)

    other = kept(opened, tmp_path / "2")
    other.restore_checkpoint(SHARD)
    assert other.connection.execute("PRAGMA foreign_keys").fetchone() == (0,)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        other.connection.execute("PRAGMA foreign_keys = ON")
    assert "sqlite.pragma_refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pragmas", "problem"),
    [
        ({"journal_mode": "DELETE"}, r"pragmas\.journal_mode: expected one of analysis_limit"),
        ({"user_version": 7}, r"pragmas\.user_version"),
        ({"foreign_keys": "ON; DROP TABLE x"}, r"pragmas\.foreign_keys: expected a number or"),
    ],
    ids=str,
)
def test_pragma_that_is_no_setting_of_connections_is_refused(
    tmp_path: Path, pragmas: dict[str, str | int], problem: str
) -> None:
    """It would undo what recording relies on, or write outside of a transaction."""
    with pytest.raises(ValidationError, match=problem):
        SqliteStore(SHARD, LocalState(tmp_path), pragmas=pragmas)
