"""Relays into lake tables, in live shards."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from broadsheet.consumer.relay import Relay, Sink, SinkKind, labels_of_sink
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.journals.client import JournalClient
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.live_shards import SHARD, SOURCE, ShardHost, spec_of
from tests.support.members import Producer

pytestmark = pytest.mark.etcd

KEYS = [f"k{number % 5}" for number in range(40)]


def sink_of(kind: SinkKind, directory: Path) -> Sink:
    """Return a sink of a table that does not exist yet."""
    if kind is SinkKind.DELTA:
        return Sink(kind=kind, to=str(directory / "table"))
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    return Sink(kind=kind, to="lake.messages", settings=catalog)


def rows_of(sink: Sink) -> pa.Table:
    """Return the rows of the table as any reader sees them."""
    if sink.kind is SinkKind.DELTA:
        return DeltaTable(sink.to).to_pyarrow_table()
    with closing(load_catalog("default", **sink.settings)) as catalog:
        return catalog.load_table(sink.to).scan().to_arrow()


def carrying(sink: Sink) -> ShardSpec:
    """Return a shard that carries the source into a table."""
    spec = spec_of(SHARD, SOURCE, max_seconds=0.2, min_seconds=0.1)
    spec.labels.CopyFrom(labels_of_sink(sink))
    return spec


@pytest.mark.parametrize("kind", [SinkKind.DELTA, SinkKind.ICEBERG])
async def test_journal_is_in_the_table_once_over_restarts(
    host: ShardHost, journals: JournalClient, tmp_path: Path, kind: SinkKind
) -> None:
    """Three lives of the shard, no code: each message is a row, with its journal and offset; DuckDB adds them up."""
    producer, sink = Producer(journals), sink_of(kind, tmp_path)
    spec = carrying(sink)
    await host.assign(spec)
    for _ in range(3):
        end = await producer.publish(SOURCE, KEYS)
        live = host.start(spec, Relay())

        await _has_read(live, end)
        await live.stop()

    rows = rows_of(sink)

    query = "SELECT count(*), count(DISTINCT n), sum(n), count(DISTINCT _offset) FROM rows"
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        found = connection.execute(query).fetchone()
    total = 3 * len(KEYS)
    assert found == (total, total, total * (total + 1) // 2, total)
    assert set(rows.column("_journal").to_pylist()) == {SOURCE}
    assert set(rows.column_names) == {"_journal", "_offset", "key", "n"}


async def _has_read(live: LiveShard, end: int) -> None:
    with live.acquire() as reference:
        await reference.wait_ready()
        await reference.wait_for_offsets({SOURCE: end})
