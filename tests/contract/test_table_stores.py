"""Stores that are lake tables, put to the suite of every store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from broadsheet.consumer.stores.delta.store import DeltaStore
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
