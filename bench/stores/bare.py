"""The libraries below the stores, doing the same writes: synced at each commit, or never where a log has them."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from bench.stores.driven import SCHEMA, UPSERT, VALUE, Side, key_of
from broadsheet.consumer.stores.conformance.subject import reading


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
        for row in range(first, first + rows):
            connection.execute(UPSERT, (key_of(row), VALUE))
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
