"""The libraries below the stores, doing the same writes: synced at each commit, or never where a log has them."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from bench.stores.driven import SCHEMA, UPSERT, VALUE, Side, key_of, keys_of, table_of
from broadsheet.testing.stores.subject import reading


def json_file(directory: Path, recorded: bool) -> Side:
    """Encode, write, rename."""
    state: dict[str, str] = {}
    value = VALUE.decode()

    def txn(first: int, rows: int) -> None:
        for row in range(first, first + rows):
            state[str(key_of(row) % 1000)] = value
        with (directory / "next").open("wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            if not recorded:
                os.fsync(file.fileno())
        (directory / "next").replace(directory / "state")

    return _side(txn)


def sqlite(directory: Path, recorded: bool) -> Side:
    """A statement a row."""

    def put(connection: sqlite3.Connection, first: int, rows: int) -> None:
        for row in range(first, first + rows):
            connection.execute(UPSERT, (key_of(row), VALUE))

    return _sqlite(directory, recorded, put)


def sqlite_run(directory: Path, recorded: bool) -> Side:
    """The driver's own loop over the rows."""

    def put(connection: sqlite3.Connection, first: int, rows: int) -> None:
        connection.executemany(UPSERT, zip(keys_of(first, rows), [VALUE] * rows, strict=True))

    return _sqlite(directory, recorded, put)


def _sqlite(
    directory: Path, recorded: bool, put: Callable[[sqlite3.Connection, int, int], None]
) -> Side:
    """One connection in WAL mode, with the checkpoint in a row."""
    connection = sqlite3.connect(directory / "state.db", isolation_level=None)
    synced = "OFF" if recorded else "FULL"
    for statement in (
        "PRAGMA journal_mode = WAL",
        f"PRAGMA synchronous = {synced}",
        f"PRAGMA cache_size = -{32 << 10}",
        SCHEMA,
        "CREATE TABLE checkpoint (id INTEGER PRIMARY KEY, checkpoint BLOB)",
    ):
        connection.execute(statement)

    def txn(first: int, rows: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        put(connection, first, rows)
        checkpoint = reading(first).SerializeToString()
        connection.execute("INSERT OR REPLACE INTO checkpoint VALUES (0, ?)", (checkpoint,))
        connection.execute("COMMIT")

    return _side(txn, after=connection.close)


def rocksdb(directory: Path, recorded: bool) -> Side:
    """One batch, with the checkpoint under a key."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(16 << 20)
    database = Rdict(str(directory), options)
    write_options = WriteOptions()
    write_options.sync = not recorded

    def txn(first: int, rows: int) -> None:
        batch = WriteBatch(raw_mode=True)
        for row in range(first, first + rows):
            batch.put(b"%08d" % key_of(row), VALUE)
        batch.put(b"\x00checkpoint", reading(first).SerializeToString())
        database.write(batch, write_options)

    return _side(txn, after=database.close)


def aggregate(directory: Path, recorded: bool) -> Side:
    """Arrow's group-by of each run, and again of its result with the state's; the state in a file."""
    state = pa.table(
        {
            "k": pa.array([], pa.string()),
            "n": pa.array([], pa.int64()),
            "total": pa.array([], pa.int64()),
        }
    )

    def txn(first: int, rows: int) -> None:
        nonlocal state
        run = table_of(first, rows).group_by("k", use_threads=False)
        new = run.aggregate([("v", "count"), ("v", "sum")]).rename_columns(["k", "n", "total"])
        whole = pa.concat_tables([state, new]).group_by("k", use_threads=False)
        state = whole.aggregate([("n", "sum"), ("total", "sum")]).rename_columns(
            ["k", "n", "total"]
        )
        with (directory / "next").open("wb") as file:
            with pa.ipc.new_stream(file, state.schema) as writer:
                writer.write_table(state)
            file.write(reading(first).SerializeToString())
            file.flush()
            if not recorded:
                os.fsync(file.fileno())
        (directory / "next").replace(directory / "state")

    return _side(txn)


def _side(txn: Callable[[int, int], None], *, after: Callable[[], None] = lambda: None) -> Side:
    def run(txns: int, rows: int) -> float:
        begin = time.perf_counter()
        for number in range(txns):
            txn(number * rows, rows)
        seconds = time.perf_counter() - begin
        after()
        return seconds

    return run


BARE: dict[str, Callable[[Path, bool], Side]] = {
    "json_file": json_file,
    "sql_sqlite": sqlite,
    "sqlite": sqlite,
    "rocksdb": rocksdb,
}
BARE_BY_RUNS: dict[str, Callable[[Path, bool], Side]] = {
    "sql_sqlite": sqlite_run,
    "sqlite": sqlite_run,
    "rocksdb": rocksdb,
    "aggregate": aggregate,
}
