"""Each kind of store that we ship, for the suite of `broadsheet.testing.stores`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec
import sqlalchemy as sa

from broadsheet.consumer.application import Shard
from broadsheet.consumer.keyed import (
    KeyedApplication,
    KeyedProcessor,
    KeyedShardStore,
    KeyRows,
    StateHandle,
    StateOptions,
    TxnTime,
)
from broadsheet.consumer.keyed.state_rows import (
    VARIABLE_BYTES,
    content_of,
    key_at,
    new_row,
    place_of,
)
from broadsheet.consumer.keyed.store import IndexKind, KeyedStore
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.aggregate import Aggregates, AggregateStore, Last
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.testing.shards.stores import FencedRowStore, FencedTable
from broadsheet.testing.stores.scan_suite import ScannedRows
from broadsheet.testing.stores.subject import RecordedSubject
from tests.support.failing_disk import descriptors_under

LOCK_WAIT_SECONDS = 0.2
KEYED_ROWS = ScannedRows("state", lambda row: (row["key"], row["value"]))
JSON_ROWS = ScannedRows("state", lambda row: (row["key"], int(row["value"])))
SQL_ROWS = ScannedRows("state", lambda row: (row["key"], row["value"]))


class ScannedRecordedSubject(RecordedSubject):
    """A store that records and shows tables."""

    def __init__(self, directory: Path, *, scans: ScannedRows, **parts: Any) -> None:
        """Describe it. `Any`: the parts are those of a `RecordedSubject`."""
        super().__init__(directory, **parts)
        self.scans = scans


class JsonSubject:
    """`JsonFileStore` in a directory that stays."""

    excludes = False
    open_txn_blocks = False
    scans = JSON_ROWS

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, shard: Shard) -> JsonFileStore[dict[str, int]]:
        """Open it."""
        return JsonFileStore(
            shard, self._directory, initial={}, state_type=dict[str, int], lock_wait_seconds=2
        )

    def put(self, store: JsonFileStore[dict[str, int]], key: str, value: int) -> None:
        """Set a key."""
        store.state[key] = value

    def committed(self, store: JsonFileStore[dict[str, int]]) -> dict[str, int]:
        """Read it back."""
        return store.committed_state()

    def leftovers(self, shard: Shard) -> list[str]:
        """Open files, and unfinished ones."""
        del shard
        unfinished = [str(path) for path in self._directory.rglob("next.json")]
        return descriptors_under(self._directory) + unfinished


class SqlSubject:
    """`SqlStore` with a table of its own."""

    excludes = False
    scans = SQL_ROWS

    def __init__(self, engine: sa.Engine, table_name: str = "") -> None:
        self._engine = engine
        self.open_txn_blocks = engine.dialect.name == "sqlite"
        self._table = sa.Table(
            table_name or f"state_{uuid4().hex}",
            sa.MetaData(),
            sa.Column("shard", sa.String(255), primary_key=True),
            sa.Column("key", sa.String(255), primary_key=True),
            sa.Column("value", sa.Integer),
        )
        self._table.create(engine, checkfirst=True)
        self._fqns: WeakKeyDictionary[SqlStore, str] = WeakKeyDictionary()

    def open(self, shard: Shard) -> SqlStore:
        """Open it."""
        mine = sa.select(self._table.c.key, self._table.c.value).where(
            self._table.c.shard == shard.fqn
        )
        store = SqlStore(
            shard, self._engine, tables={"state": mine}, lock_wait_seconds=5, takeover_seconds=0.1
        )
        self._fqns[store] = shard.fqn
        return store

    def put(self, store: SqlStore, key: str, value: int) -> None:
        """Insert or update a row."""
        table, fqn = self._table, self._fqns[store]
        mine = sa.and_(table.c.shard == fqn, table.c.key == key)
        store.connection.execute(sa.delete(table).where(mine))
        store.connection.execute(sa.insert(table).values(shard=fqn, key=key, value=value))

    def committed(self, store: SqlStore) -> dict[str, int]:
        """Read the shard's rows."""
        query = sa.select(self._table.c.key, self._table.c.value).where(
            self._table.c.shard == self._fqns[store]
        )
        return store.read(
            lambda connection: {row.key: row.value for row in connection.execute(query)}
        )

    def leftovers(self, shard: Shard) -> list[str]:
        """Connections that were not returned."""
        del shard
        held = self._engine.pool.checkedout()  # type: ignore[attr-defined]  # Of the pools we use.
        return ["connection"] * int(held)


SQLITE_SCHEMA = "CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value INTEGER)"


def put_row(store: SqliteStore, key: str, value: int) -> None:
    """Insert or update a row."""
    store.connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))


def committed_rows(store: SqliteStore) -> dict[str, int]:
    """Read all rows."""
    return store.read(lambda connection: dict(connection.execute("SELECT key, value FROM state")))


def recorded_sqlite(shard: Shard) -> SqliteStore:
    """Return a store that copies its log back every few commits, and records its file again now and then."""
    return SqliteStore(
        shard, schema=SQLITE_SCHEMA, wal_bytes_max=32 << 10, rewrite_bytes_min=64 << 10
    )


class SqliteSubject:
    """`SqliteStore` in a directory that stays."""

    excludes = True
    open_txn_blocks = False
    scans = SQL_ROWS

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, shard: Shard) -> SqliteStore:
        """Open it."""
        return SqliteStore(
            shard,
            LocalState(self._directory / quote(shard.id, safe="")),
            schema=SQLITE_SCHEMA,
            wal_bytes_max=32 << 10,
            lock_wait_seconds=LOCK_WAIT_SECONDS,
        )

    def put(self, store: Any, key: str, value: int) -> None:
        """Insert or update a row."""
        put_row(store, key, value)

    def committed(self, store: Any) -> dict[str, int]:
        """Read all rows."""
        return committed_rows(store)

    def leftovers(self, shard: Shard) -> list[str]:
        """Open files."""
        del shard
        return descriptors_under(self._directory)


ROCKSDB_FAMILY = "values"
ROCKSDB_ROWS = ScannedRows(
    ROCKSDB_FAMILY, lambda row: (row["key"].decode(), int(row["value"].decode()))
)


def put_value(store: RocksDbStore, key: str, value: int) -> None:
    """Set a key, in a family of its own."""
    store.put(key.encode(), b"%d" % value, family=ROCKSDB_FAMILY)
    store.put(b"last", b"%d" % value)


def committed_values(store: RocksDbStore) -> dict[str, int]:
    """Read all keys of the family."""
    return store.read(
        lambda view: {key.decode(): int(value) for key, value in view.items(family=ROCKSDB_FAMILY)}
    )


def recorded_rocksdb(shard: Shard) -> RocksDbStore:
    """Return a store with the smallest memory tables that there are."""
    return RocksDbStore(shard, families=(ROCKSDB_FAMILY,), write_buffer_bytes=64 << 10)


class RocksDbSubject:
    """`RocksDbStore` in a directory that stays."""

    excludes = True
    open_txn_blocks = False
    scans = ROCKSDB_ROWS

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, shard: Shard) -> RocksDbStore:
        """Open it."""
        return RocksDbStore(
            shard,
            LocalState(self._directory / quote(shard.id, safe="")),
            families=(ROCKSDB_FAMILY,),
            lock_wait_seconds=LOCK_WAIT_SECONDS,
        )

    def put(self, store: Any, key: str, value: int) -> None:
        """Set a key."""
        put_value(store, key, value)

    def committed(self, store: Any) -> dict[str, int]:
        """Read all keys."""
        return committed_values(store)

    def leftovers(self, shard: Shard) -> list[str]:
        """Open files."""
        del shard
        return descriptors_under(self._directory)


AGGREGATE_ROWS = ScannedRows("aggregates", lambda row: (row["key"], row["value"]))


def put_last(store: AggregateStore, key: str, value: int) -> None:
    """Add a row, whose value is the last one of its key."""
    store.update({"key": [key], "value": [value]})


def committed_aggregates(store: AggregateStore) -> dict[str, int]:
    """Read all keys."""
    return {row["key"]: row["value"] for row in store.to_arrow().to_pylist()}


def recorded_aggregates(shard: Shard) -> AggregateStore:
    """Return a store that writes a snapshot every few commits."""
    return AggregateStore(
        shard, Aggregates(key="key", value=Last("value", "int64")), snapshot_bytes_min=1500
    )


class AggregateSubject:
    """`AggregateStore` in a directory that stays."""

    excludes = True
    open_txn_blocks = False
    scans = AGGREGATE_ROWS

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, shard: Shard) -> AggregateStore:
        """Open it."""
        return AggregateStore(
            shard,
            Aggregates(key="key", value=Last("value", "int64")),
            LocalState(self._directory / quote(shard.id, safe="")),
            snapshot_bytes_min=1500,
            lock_wait_seconds=LOCK_WAIT_SECONDS,
        )

    def put(self, store: Any, key: str, value: int) -> None:
        """Add a row."""
        put_last(store, key, value)

    def committed(self, store: Any) -> dict[str, int]:
        """Read all keys."""
        return committed_aggregates(store)

    def leftovers(self, shard: Shard) -> list[str]:
        """Open files."""
        del shard
        return descriptors_under(self._directory)


_VARIABLE = b"\x00\x01"


def put_keyed(store: KeyedStore, key: str, value: int) -> None:
    """Set the row of a variable of a key."""
    row = new_row(_VARIABLE, None, str(value).encode())
    store.put(place_of(key.encode()), _VARIABLE, row)


def committed_keyed(store: KeyedStore) -> dict[str, int]:
    """Read the rows of all keys."""
    return {
        key_at(name)[:-VARIABLE_BYTES].decode(): int(content_of(row))
        for name, row in store.committed_rows()
    }


def recorded_keyed(shard: Shard, index: IndexKind) -> KeyedStore:
    """Return a store that writes a snapshot every few commits."""
    return KeyedStore(shard, index=index, snapshot_bytes_min=1500)


class KeyedSubject:
    """`KeyedStore` in a directory that stays."""

    excludes = True
    open_txn_blocks = False

    def __init__(self, directory: Path, index: IndexKind) -> None:
        self._directory = directory
        self._index = index

    def open(self, shard: Shard) -> KeyedStore:
        """Open it."""
        return KeyedStore(
            shard,
            LocalState(self._directory / quote(shard.id, safe="")),
            index=self._index,
            snapshot_bytes_min=1500,
            lock_wait_seconds=LOCK_WAIT_SECONDS,
        )

    def put(self, store: KeyedStore, key: str, value: int) -> None:
        """Set a row."""
        put_keyed(store, key, value)

    def committed(self, store: KeyedStore) -> dict[str, int]:
        """Read all keys."""
        return committed_keyed(store)

    def leftovers(self, shard: Shard) -> list[str]:
        """Open files."""
        del shard
        return descriptors_under(self._directory)


class KeyedState(KeyedProcessor):
    """One value for each key, which the suite sets by itself."""

    def init(self, state: StateHandle) -> None:
        """Declare it."""
        self.value = state.value("value", int)

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> None:
        """There are none."""


def keyed_application(index: IndexKind, directory: Path | None = None) -> KeyedApplication:
    """Return an application that keeps a value for each text."""
    return KeyedApplication(
        KeyedState,
        key="key string",
        rows="key string",
        state=StateOptions(
            index=index,
            directory=None
            if directory is None
            else lambda shard: LocalState(directory / quote(shard.id, safe="")),
        ),
    )


def put_keyed_value(store: KeyedShardStore, key: str, value: int) -> None:
    """Set the value of a key."""
    row = new_row(b"\x00\x00", None, msgspec.msgpack.encode((value,)))
    store.put(place_of(b"\x01" + key.encode() + b"\x00\x00"), _VARIABLE, row)


def committed_keyed_values(store: KeyedShardStore) -> dict[str, int]:
    """Read the values of all keys, one by one."""
    keys = [key_at(name)[1 : -2 - VARIABLE_BYTES].decode() for name, _ in store.committed_rows()]
    return {key: store.state("value", key) for key in keys}


class KeyedStateSubject(KeyedSubject):
    """The store of a keyed application in a directory that stays."""

    scans = KEYED_ROWS

    def open(self, shard: Shard) -> KeyedShardStore:
        """Open it."""
        return keyed_application(self._index, self._directory).new_store(shard)

    def put(self, store: Any, key: str, value: int) -> None:
        """Set a value."""
        put_keyed_value(store, key, value)

    def committed(self, store: Any) -> dict[str, int]:
        """Read all values."""
        return committed_keyed_values(store)


def put_number(store: Any, key: str, value: int) -> None:
    """Set a key of a simulated store."""
    store.state[key] = value


class FencedRowSubject:
    """The simulator's store in a table."""

    excludes = False
    open_txn_blocks = False

    def __init__(self) -> None:
        self._table = FencedTable()

    def open(self, shard: Shard) -> FencedRowStore:
        """Open it."""
        return FencedRowStore(shard, self._table)

    def put(self, store: FencedRowStore, key: str, value: int) -> None:
        """Set a key."""
        put_number(store, key, value)

    def committed(self, store: FencedRowStore) -> dict[str, int]:
        """Read it back."""
        return store.committed_state()

    def leftovers(self, shard: Shard) -> list[str]:
        """Nothing could be left."""
        del shard
        return []
