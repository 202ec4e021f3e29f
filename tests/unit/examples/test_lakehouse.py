"""The tables of examples/lakehouse are compacted while a sink commits to them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from broadsheet.consumer.stores.delta.store import DeltaStore
from broadsheet.consumer.stores.iceberg.store import IcebergStore
from broadsheet.examples.lakehouse.dataset import differences
from broadsheet.examples.lakehouse.tables import (
    CATALOG,
    ICEBERG_TABLE,
    compact_delta,
    compact_iceberg,
    delta_rows,
    iceberg_rows,
)
from broadsheet.testing.stores.subject import FixedShard, reading

COMMITS = 8
SHARD = FixedShard()
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("aircraft", "carrier", "origin", "destination")),
        *(pa.field(name, pa.int64()) for name in ("flight", "scheduled_at", "late_minutes")),
    ]
)
Store = DeltaStore | IcebergStore


def delta(directory: Path) -> Store:
    """Return a sink into the Delta table."""
    return DeltaStore(SHARD, str(directory / "delta"), schema=SCHEMA)


def iceberg(directory: Path) -> Store:
    """Return a sink into the Iceberg table."""
    catalog = {
        "name": CATALOG,
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    return IcebergStore(SHARD, ICEBERG_TABLE, catalog, schema=SCHEMA)


def alerts(number: int) -> pa.Table:
    """Return the alerts of one commit."""
    names = {"aircraft": f"N{number}", "carrier": "UA", "origin": "EWR", "destination": "IAH"}
    row = {**names, "flight": number, "scheduled_at": number, "late_minutes": 121}
    return pa.Table.from_pylist([row], SCHEMA)


@pytest.mark.parametrize(
    ("opened", "compact", "rows"),
    [(delta, compact_delta, delta_rows), (iceberg, compact_iceberg, iceberg_rows)],
    ids=["delta", "iceberg"],
)
def test_table_that_is_compacted_while_a_sink_commits_has_each_row_once(
    tmp_path: Path,
    opened: Callable[[Path], Store],
    compact: Callable[[Path], tuple[int, int]],
    rows: Callable[[Path], pa.Table],
) -> None:
    """Commits come between the scan and the end of a compaction, and compactions between those of the sink: neither
    loses rows of the other, and the sink goes on without a new attempt.
    """
    store = opened(tmp_path)
    store.restore_checkpoint(SHARD)

    def sink() -> None:
        for number in range(COMMITS):
            store.append(alerts(number))
            store.start_commit(SHARD, reading(number), ()).result(60)

    sinking = threading.Thread(target=sink)
    sinking.start()
    while sinking.is_alive():
        compact(tmp_path)
    sinking.join()
    _, files = compact(tmp_path)

    expected = pa.concat_tables([alerts(number) for number in range(COMMITS)])
    assert differences(expected, rows(tmp_path)) == (0, 0)
    assert files <= 1
    successor = opened(tmp_path)
    assert successor.restore_checkpoint(SHARD) == reading(COMMITS - 1)
    successor.destroy()
    store.destroy()
