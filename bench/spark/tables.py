"""Rows a second out of shards' stores by format("shard_state"), beside reading the same SQLite files without shards."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.journal_specs import journal_change
from bench.report import emit
from bench.spark.machine import CORES, Machine, running
from bench.spark.table_app import DIRECTORY
from broadsheet.consumer.client import SyncShardClient
from broadsheet.consumer.stores.sqlite.recording import DATABASE
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ROWS = 500_000
"""Of each shard."""
SHARDS = ("bench-table-0", "bench-table-1")
ROUNDS = 5
BATCH_ROWS = 16_384
FILL_SECONDS_MAX = 120.0
SCHEMA = "id BIGINT, k STRING, v DOUBLE, s STRING"


def run(bench: str) -> None:
    """Read the same rows from two shards and from their files, in turn; every column is looked at."""
    with running() as machine:
        states = machine.directory / "states"
        member = EmbeddedMemberProcess(
            "bench.spark.table_app:TableApplication",
            [
                *("--root", "/bench/tables", "--port", "0"),
                *("--etcd", ",".join(machine.services.etcd.endpoints)),
                *("--broker", machine.services.broker_address),
            ],
            log_file=machine.directory / "member.log",
            variables={DIRECTORY: str(states)},
        )
        try:
            address = member.wait_until_ready()
            _fill(machine, address)
            ours, theirs = _measure(machine, address, states)
        finally:
            member.kill()
    rows = ROWS * len(SHARDS)
    emit(bench, "shard_state_rows_per_s", rows / ours, "rows/s", rows=rows, cores=CORES)
    emit(bench, "sqlite_file_rows_per_s", rows / theirs, "rows/s", rows=rows, cores=CORES)
    emit(bench, "shard_state_to_sqlite_file", theirs / ours, "ratio", rows=rows, cores=CORES)


def _measure(machine: Machine, address: str, states: Path) -> tuple[float, float]:
    """Return the medians of seconds, through shards and of files."""
    shards = machine.spark.read.format("shard_state").option("address", address)
    files = machine.spark.range(len(SHARDS), numPartitions=len(SHARDS))
    plain = files.mapInArrow(partial(_file_batches, states), SCHEMA)
    _seconds(shards.load())
    _seconds(plain)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(_seconds(shards.load()))
        theirs.append(_seconds(plain))
    return statistics.median(ours), statistics.median(theirs)


def _seconds(rows: DataFrame) -> float:
    began = time.perf_counter()
    found = rows.selectExpr("count(*)", "sum(id)", "max(k)", "sum(v)", "max(s)").first()
    assert found is not None
    assert found[0] == ROWS * len(SHARDS), f"read {found[0]} rows"
    return time.perf_counter() - began


def _file_batches(states: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the shards whose numbers come in: what one would write who knows the file."""
    import pyarrow as pa

    schema = pa.schema(
        [("id", pa.int64()), ("k", pa.string()), ("v", pa.float64()), ("s", pa.string())]
    )
    for batch in batches:
        for number in batch.column(0).to_pylist():
            connection = sqlite3.connect(states / SHARDS[number] / DATABASE)
            cursor = connection.execute("SELECT id, k, v, s FROM rows")
            while rows := cursor.fetchmany(BATCH_ROWS):
                columns = [pa.array(column) for column in zip(*rows, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            connection.close()


def _fill(machine: Machine, address: str) -> None:
    with SyncShardClient(address) as client:
        specs = []
        for shard_id in SHARDS:
            spec = ShardSpec(id=shard_id, sources=[ShardSpec.Source(journal=_journal(shard_id))])
            spec.max_txn_duration.FromMilliseconds(100)
            specs.append(spec)
        ends = asyncio.run(_publish(machine.services.broker_address))
        client.apply([ApplyRequest.Change(upsert=spec) for spec in specs])
        for shard_id in SHARDS:
            offsets = {_journal(shard_id): ends[shard_id]}
            client.wait_read_through(shard_id, offsets, timeout_seconds=FILL_SECONDS_MAX)


async def _publish(broker_address: str) -> dict[str, int]:
    """Tell each shard how many rows to hold; return where its journal ends then, bytes."""
    clock = MessageClock()
    clock.update(time.time())
    ends = {}
    async with JournalClient(broker_address) as journals:
        await journals.apply([journal_change(_journal(shard_id)) for shard_id in SHARDS])
        for shard_id in SHARDS:
            publisher = Publisher(clock, new_producer_id())
            publisher.publish_committed(
                MappedJournal(_journal(shard_id), NDJSON), {"rows": ROWS}, JsonType()
            )
            (pending,) = publisher.take_appends()
            response = await journals.append(pending.journal, pending.content)
            ends[shard_id] = response.commit.end
    return ends


def _journal(shard_id: str) -> str:
    return f"bench/tables/{shard_id}"
