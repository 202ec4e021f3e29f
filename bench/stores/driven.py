"""Our stores, driven as a shard drives them: some rows, then a commit with its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from broadsheet.consumer.application import Shard, Store
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.aggregate import Aggregates, AggregateStore, Count, Sum
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.runtime.op_future import OpFuture, completed
from broadsheet.testing.stores.subject import FixedShard, reading

Side: TypeAlias = Callable[[int, int], float]
"""(transactions, rows a transaction) -> seconds."""

VALUE = b"v" * 100
KEYS = 50_000
"""Distinct keys; rows go round them in a stride, so that pages and tables are touched all over."""
SCHEMA = "CREATE TABLE IF NOT EXISTS state (key INTEGER PRIMARY KEY, value BLOB)"
UPSERT = "INSERT OR REPLACE INTO state VALUES (?, ?)"


class DroppingRecorder:
    """Implements `FileRecorder`: all is durable at once, and gone."""

    def create(self, path: str) -> None:
        """Drop it."""

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Drop it."""

    def rename(self, path: str, to: str) -> None:
        """Drop it."""

    def remove(self, path: str) -> None:
        """Drop it."""

    def set_property(self, path: str, content: str) -> None:
        """Drop it."""

    def after(self, futures: Collection[Future[object]]) -> None:
        """Drop it whenever it comes."""

    def barrier(self) -> OpFuture:
        """Return what is done."""
        return completed()


def key_of(row: int) -> int:
    """Return the key of the n-th row."""
    return row * 7919 % KEYS


def json_file(directory: Path, recorded: bool) -> Side:
    """A dictionary in a file."""
    shard = _shard(directory, recorded)
    store = JsonFileStore[dict[str, str]](shard, directory, initial={}, state_type=dict[str, str])
    value = VALUE.decode()

    def put(first: int, rows: int) -> None:
        for row in range(first, first + rows):
            store.state[str(key_of(row) % 1000)] = value

    return _side(shard, store, put)


def sql_sqlite(directory: Path, recorded: bool) -> Side:
    """`SqlStore` on a file, through SQLAlchemy."""
    engine = sa.create_engine(f"sqlite:///{directory}/state.db")
    with engine.begin() as connection:
        connection.execute(sa.text(SCHEMA))
    shard = _shard(directory, recorded)
    store = SqlStore(shard, engine)
    upsert = sa.text("INSERT OR REPLACE INTO state VALUES (:key, :value)")

    def put(first: int, rows: int) -> None:
        parameters = [{"key": key_of(row), "value": VALUE} for row in range(first, first + rows)]
        store.connection.execute(upsert, parameters)

    return _side(shard, store, put, after=engine.dispose)


def sqlite(directory: Path, recorded: bool) -> Side:
    """`SqliteStore`."""
    shard = _shard(directory, recorded)
    store = SqliteStore(shard, LocalState(directory), schema=SCHEMA)

    def put(first: int, rows: int) -> None:
        execute = store.connection.execute
        for row in range(first, first + rows):
            execute(UPSERT, (key_of(row), VALUE))

    return _side(shard, store, put)


def rocksdb(directory: Path, recorded: bool) -> Side:
    """`RocksDbStore`."""
    shard = _shard(directory, recorded)
    store = RocksDbStore(shard, LocalState(directory))

    def put(first: int, rows: int) -> None:
        for row in range(first, first + rows):
            store.put(b"%08d" % key_of(row), VALUE)

    return _side(shard, store, put)


# The same with a run of rows in one call; and aggregates, which take nothing else.


def sql_sqlite_run(directory: Path, recorded: bool) -> Side:
    """`SqlStore.upsert` on a file."""
    engine = sa.create_engine(f"sqlite:///{directory}/state.db")
    with engine.begin() as connection:
        connection.execute(sa.text(SCHEMA))
    table = sa.Table(
        "state",
        sa.MetaData(),
        sa.Column("key", sa.Integer, primary_key=True),
        sa.Column("value", sa.LargeBinary),
    )
    shard = _shard(directory, recorded)
    store = SqlStore(shard, engine)

    def put(first: int, rows: int) -> None:
        store.upsert(table, {"key": keys_of(first, rows), "value": [VALUE] * rows})

    return _side(shard, store, put, after=engine.dispose)


def sqlite_run(directory: Path, recorded: bool) -> Side:
    """`SqliteStore.upsert`."""
    shard = _shard(directory, recorded)
    store = SqliteStore(shard, LocalState(directory), schema=SCHEMA)

    def put(first: int, rows: int) -> None:
        store.upsert("state", {"key": keys_of(first, rows), "value": [VALUE] * rows}, key="key")

    return _side(shard, store, put)


def rocksdb_run(directory: Path, recorded: bool) -> Side:
    """`RocksDbStore.put_many`."""
    shard = _shard(directory, recorded)
    store = RocksDbStore(shard, LocalState(directory))

    def put(first: int, rows: int) -> None:
        store.put_many([b"%08d" % key for key in keys_of(first, rows)], [VALUE] * rows)

    return _side(shard, store, put)


def aggregate_run(directory: Path, recorded: bool) -> Side:
    """`AggregateStore`: count and sum by one of `AGGREGATE_KEYS`."""
    shard = _shard(directory, recorded)
    store = AggregateStore(
        shard, Aggregates(key="k", n=Count(), total=Sum("v")), LocalState(directory)
    )

    def put(first: int, rows: int) -> None:
        store.update(table_of(first, rows))

    return _side(shard, store, put)


AGGREGATE_KEYS = 1000
_NAMES = pa.array([f"key-{number}" for number in range(AGGREGATE_KEYS)])


def keys_of(first: int, rows: int) -> list[int]:
    """Return the keys of rows [first, first + rows)."""
    return [key_of(row) for row in range(first, first + rows)]


def table_of(first: int, rows: int) -> pa.Table:
    """Return rows [first, first + rows) as they come from messages: a text key and a number."""
    keys = np.arange(first, first + rows) * 7919 % AGGREGATE_KEYS
    return pa.table({"k": _NAMES.take(pa.array(keys)), "v": keys})


def _shard(directory: Path, recorded: bool) -> FixedShard:
    shard = FixedShard()
    return (
        replace(shard, local_state=LocalState(directory, DroppingRecorder())) if recorded else shard
    )


def _side(
    shard: Shard,
    store: Store,
    put: Callable[[int, int], None],
    *,
    after: Callable[[], Any] = lambda: None,
) -> Side:
    def run(txns: int, rows: int) -> float:
        store.restore_checkpoint(shard)
        begin = time.perf_counter()
        for txn in range(txns):
            put(txn * rows, rows)
            store.start_commit(shard, reading(txn), ()).result()
        seconds = time.perf_counter() - begin
        store.destroy()
        after()
        return seconds

    return run


DRIVEN: dict[str, Callable[[Path, bool], Side]] = {
    "json_file": json_file,
    "sql_sqlite": sql_sqlite,
    "sqlite": sqlite,
    "rocksdb": rocksdb,
}
DRIVEN_BY_RUNS: dict[str, Callable[[Path, bool], Side]] = {
    "sql_sqlite": sql_sqlite_run,
    "sqlite": sqlite_run,
    "rocksdb": rocksdb_run,
    "aggregate": aggregate_run,
}
