"""`DeltaStore` and `IcebergStore` for the conformance suite, and their rows as any reader sees them."""

from __future__ import annotations

from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from broadsheet.consumer.application import Shard
from broadsheet.consumer.stores.delta.store import DeltaStore
from broadsheet.consumer.stores.iceberg.store import IcebergStore

SCHEMA = pa.schema(
    [pa.field("key", pa.string()), pa.field("value", pa.int64()), pa.field("step", pa.int64())]
)


class DeltaSubject:
    """`DeltaStore`, whose state is the last value of each key."""

    excludes = False
    open_txn_blocks = False

    def __init__(self, directory: Path) -> None:
        """Describe it.

        Args:
            directory: Of the tables.
        """
        self._directory = directory
        self._steps = count()
        self._tables: dict[int, str] = {}

    def open(self, shard: Shard) -> DeltaStore:
        """Return a holder of the shard's own table."""
        table = str(self._directory / shard.fqn.strip("/").replace("/", "."))
        store = DeltaStore(shard, table, schema=SCHEMA)
        self._tables[id(store)] = table
        return store

    def put(self, store: Any, key: str, value: int) -> None:
        """Append a row."""
        row = {"key": key, "value": value, "step": next(self._steps)}
        store.append(pa.Table.from_pylist([row], SCHEMA))

    def committed(self, store: Any) -> dict[str, int]:
        """Return the last value of each key."""
        return last_values(DeltaTable(self._tables[id(store)]).to_pyarrow_table())

    def leftovers(self, shard: Shard) -> list[str]:
        """Return nothing: the table is what stays."""
        del shard
        return []


class IcebergSubject:
    """`IcebergStore`, whose state is the last value of each key."""

    excludes = False
    open_txn_blocks = False

    def __init__(self, directory: Path) -> None:
        """Describe it.

        Args:
            directory: Of the tables and their catalog.
        """
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }
        self._steps = count()
        self._tables: dict[int, str] = {}
        self._files: dict[str, pa.Table] = {}

    def open(self, shard: Shard) -> IcebergStore:
        """Return a holder of the shard's own table."""
        table = "lake." + shard.fqn.strip("/").replace("/", "_").replace("-", "_")
        store = IcebergStore(shard, table, self.catalog, schema=SCHEMA)
        self._tables[id(store)] = table
        return store

    def put(self, store: Any, key: str, value: int) -> None:
        """Append a row."""
        row = {"key": key, "value": value, "step": next(self._steps)}
        store.append(pa.Table.from_pylist([row], SCHEMA))

    def committed(self, store: Any) -> dict[str, int]:
        """Return the last value of each key."""
        with closing(load_catalog("default", **self.catalog)) as catalog:
            table = catalog.load_table(self._tables[id(store)])
        # Files never change: each is read once.
        paths = [task.file.file_path for task in table.scan().plan_files()]
        for path in {*paths} - self._files.keys():
            self._files[path] = pq.read_table(path.removeprefix("file://")).cast(SCHEMA)
        return last_values(pa.concat_tables([SCHEMA.empty_table(), *map(self._files.get, paths)]))

    def leftovers(self, shard: Shard) -> list[str]:
        """Return nothing: the table is what stays."""
        del shard
        return []


def last_values(rows: pa.Table) -> dict[str, int]:
    """Return the value of each key in the row of its last step."""
    ordered = rows.sort_by("step").to_pylist()
    return {row["key"]: row["value"] for row in ordered}
