"""Iceberg tables that several shards make at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from broadsheet.consumer.relay.table_outlet import PLACE
from broadsheet.consumer.stores.iceberg.store import IcebergStore
from broadsheet.testing.stores.subject import FixedShard

SHARDS, ROUNDS = 4, 3


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_shards_that_begin_in_a_new_namespace_at_once_all_begin(
    tmp_path: Path, round_: int
) -> None:
    """A catalog in SQL refuses all but one of those who create a namespace; the others find it, and go on."""
    del round_
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    load_catalog("default", **catalog)  # Its own tables are there.
    barrier = threading.Barrier(SHARDS)

    def begin(number: int) -> bytes:
        shard = FixedShard(f"shard-{number}")
        store = IcebergStore(shard, f"lake.rows_{number}", catalog, schema=PLACE)
        barrier.wait()
        try:
            return store.restore_checkpoint(shard).SerializeToString()
        finally:
            store.destroy()

    with ThreadPoolExecutor(SHARDS) as threads:
        assert list(threads.map(begin, range(SHARDS))) == [b""] * SHARDS
