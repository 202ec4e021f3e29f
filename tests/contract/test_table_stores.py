"""Stores that are lake tables, put to the suite of every store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from broadsheet.consumer.stores.delta.store import DeltaStore
from broadsheet.consumer.stores.iceberg.store import IcebergStore
from broadsheet.testing.stores.subject import FixedShard, reading
from broadsheet.testing.stores.suite import StoreConformance
from tests.support.table_sinks import SCHEMA, DeltaSubject


class TestDeltaStore(StoreConformance):
    """Tables on the disk; a reader of Delta sees what a query of another store would."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> DeltaSubject:
        """Tables below the test's directory."""
        return DeltaSubject(tmp_path)


def test_rows_of_a_delta_commit_are_in_the_order_in_which_they_were_appended(
    tmp_path: Path,
) -> None:
    """delta-rs writes several batches on several threads: they would be mixed."""
    shard = FixedShard()
    store = DeltaStore(shard, str(tmp_path / "table"), schema=SCHEMA)
    store.restore_checkpoint(shard)
    rows = [{"key": "a", "value": number, "step": number} for number in range(200)]
    for row in rows:
        store.append(pa.Table.from_pylist([row], SCHEMA))
    store.start_commit(shard, reading(1), ()).result(30)
    store.destroy()

    (file,) = DeltaTable(str(tmp_path / "table")).file_uris()
    assert pq.read_table(file).to_pylist() == rows


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_nested_field_of_a_later_commit_is_in_the_table(tmp_path: Path, kind: str) -> None:
    """The table's column grows by it, and rows before have null there."""
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    address, shard = str(tmp_path / "table"), FixedShard()
    store: DeltaStore | IcebergStore = (
        DeltaStore(shard, address, schema=SCHEMA)
        if kind == "delta"
        else IcebergStore(shard, "lake.orders", catalog, schema=SCHEMA)
    )
    store.restore_checkpoint(shard)
    commits: list[dict[str, Any]] = [{"x": 1}, {"x": 2, "deep": [{"y": "a"}]}, {"deep": [{"z": 3}]}]
    for number, value in enumerate(commits, 1):
        store.append(pa.Table.from_pylist([{"step": number, "m": value}]))
        store.start_commit(shard, reading(number), ()).result(30)
    store.destroy()

    if kind == "delta":
        found = DeltaTable(address).to_pyarrow_table()
    else:
        with closing(load_catalog("default", **catalog)) as opened:
            found = opened.load_table("lake.orders").scan().to_arrow()
    rows = sorted(found.select(["step", "m"]).to_pylist(), key=lambda row: row["step"])
    assert [row["m"] for row in rows] == [
        {"x": 1, "deep": None},
        {"x": 2, "deep": [{"y": "a", "z": None}]},
        {"x": None, "deep": [{"y": None, "z": 3}]},
    ]
