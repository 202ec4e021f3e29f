"""What scans show of SQLite tables, and what they cost those who commit meanwhile."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broadsheet.consumer.stores.sqlite.store as store_module
from broadsheet.consumer.errors import StoreError, StoreUnavailableError
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.consumer.stores.state_tables import ROWS_PER_BATCH
from broadsheet.testing.stores.subject import FixedShard, reading, wait

SCHEMA = """
    CREATE TABLE IF NOT EXISTS kinds (
        i INTEGER, b BOOLEAN, t VARCHAR(20), d DATE, x BLOB, r REAL, n DECIMAL(10, 2), "odd ""name" INT
    );
    CREATE TABLE IF NOT EXISTS many (id INTEGER PRIMARY KEY, text TEXT);
    CREATE VIEW IF NOT EXISTS summed AS SELECT count(*) AS count, i + 0 AS i FROM kinds;
"""
SHARD = FixedShard()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store whose write-ahead log is short."""
    opened = SqliteStore(SHARD, LocalState(tmp_path), schema=SCHEMA, wal_bytes_max=64 << 10)
    opened.restore_checkpoint(SHARD)
    yield opened
    opened.destroy()


def _commit(store: SqliteStore, statement: str, *values: Any) -> None:
    store.connection.execute(statement, values)
    wait(store.start_commit(SHARD, reading(1), ()))
    assert store.connection.in_transaction  # The next one begins once the log is copied back.


def _rows(store: SqliteStore, table: str) -> list[dict[str, Any]]:
    with store.scan(table) as scan:
        return [row for batch in scan.batches for row in batch.to_pylist()]


def test_scan_has_the_types_that_columns_are_declared_with(store: SqliteStore) -> None:
    """SQLite's own tables are not shown, a view is, and a name may be anything."""
    values = (7, 1, "text", "2026-01-31", b"\0", 1.5, 2, 9)
    _commit(
        store, "INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?, ?, ?), (0,0,0,'',x'',0,0,0)", *values
    )
    _commit(store, "INSERT INTO kinds (i) VALUES (NULL)")

    assert sorted(store.tables()) == ["kinds", "many", "summed"]
    assert [str(field.type) for field in store.tables()["kinds"]] == [
        *("int64", "bool", "string", "string", "binary", "double", "double", "int64")
    ]
    first, _, nulls = _rows(store, "kinds")
    assert tuple(first.values()) == (7, True, "text", "2026-01-31", b"\0", 1.5, 2.0, 9)
    assert set(nulls.values()) == {None}
    assert [str(field.type) for field in store.tables()["summed"]] == ["int64", "int64"]


def test_scan_of_a_value_that_is_none_of_its_column_names_it(store: SqliteStore) -> None:
    """SQLite keeps any value in any column; a scan neither guesses nor drops it."""
    _commit(store, "INSERT INTO kinds (i) VALUES ('seven')")

    with pytest.raises(StoreError, match="column i holds a value that is no int64"):
        _rows(store, "kinds")


def test_scan_of_many_batches_is_one_commit_and_holds_up_none(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows change between two batches: the scan shows them as they were. Commits that find the log long enough to be
    copied back do not wait for the scan, which would cost each of them the patience that queries are given.
    """
    rows = 2 * ROWS_PER_BATCH + 1
    monkeypatch.setattr(store_module, "QUIET_SECONDS", 10.0)
    _commit(
        store,
        "INSERT INTO many WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        " SELECT i, 'first' FROM n",
        rows,
    )
    with store.scan("many") as scan:
        counted = next(scan.batches).num_rows
        began = time.perf_counter()
        for step in range(4):
            _commit(store, "UPDATE many SET text = 'later' WHERE id % 4 = ? AND id > 30000", step)
            assert store.read(_count) == rows
        seconds = time.perf_counter() - began
        texts = set()
        for batch in scan.batches:
            counted += batch.num_rows
            texts |= set(batch.column(1).to_pylist())

    assert (counted, texts) == (rows, {"first"})
    assert seconds < 10
    assert {row["text"] for row in _rows(store, "many")} == {"first", "later"}


def _count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM many").fetchone()[0])


def test_scan_that_holds_the_log_back_for_too_long_is_ended(store: SqliteStore) -> None:
    """The log must not grow for ever behind a reader that has gone to sleep; the error says what helps."""
    _commit(
        store,
        "INSERT INTO many WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)"
        " SELECT i, 'some text' FROM n",
    )
    with (
        store.scan("many") as scan,
        pytest.raises(StoreUnavailableError, match="write-ahead log grew too long"),
    ):
        next(scan.batches)
        for step in range(6):
            _commit(store, "UPDATE many SET text = ?", f"text {step}")
        list(scan.batches)

    assert len(_rows(store, "many")) == 40_000
