"""Rows a second out of a journal, beside Spark's own source of JSON files with the same rows."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.journal_specs import journal_change
from bench.report import emit
from bench.spark.machine import CORES, Machine, running
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.message.uuid import (
    Flags,
    MessageClock,
    build_uuid,
    format_uuid,
    new_producer_id,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 1_000_000
ROUNDS = 5
TRANSACTION_ROWS = 10_000
JOURNAL = "bench/source/part-000"
SCHEMA = "id BIGINT, k STRING, v DOUBLE, s STRING"


def run(bench: str) -> None:
    """Read the same rows from one journal and from JSON files, in turn; every column is looked at."""
    with running() as machine:
        files = machine.directory / "rows"
        _rows(machine).write.json(str(files))
        journal_bytes = asyncio.run(_publish(machine.services.broker_address, files))
        ours = (
            machine.spark.read.format("journal")
            .option("address", machine.services.broker_address)
            .option("selector", f"name={JOURNAL}")
            .option("schema", SCHEMA)
        )
        theirs = machine.spark.read.schema(SCHEMA)
        _seconds(ours.load())
        _seconds(theirs.json(str(files)))
        journal_seconds, file_seconds = [], []
        for _ in range(ROUNDS):
            journal_seconds.append(_seconds(ours.load()))
            file_seconds.append(_seconds(theirs.json(str(files))))
    mine, json = statistics.median(journal_seconds), statistics.median(file_seconds)
    params = {"rows": ROWS, "cores": CORES, "row_bytes": round(journal_bytes / ROWS)}
    emit(bench, "source_rows_per_s", ROWS / mine, "rows/s", **params)
    emit(bench, "json_source_rows_per_s", ROWS / json, "rows/s", **params)
    emit(bench, "source_mb_per_s", journal_bytes / mine / 1e6, "MB/s", **params)
    emit(bench, "source_to_json_source", json / mine, "ratio", **params)


def _rows(machine: Machine) -> DataFrame:
    return machine.spark.range(ROWS, numPartitions=CORES).selectExpr(
        "id", "concat('key-', id % 1000) AS k", "id + 0.5D AS v", "'some text of sixteen' AS s"
    )


def _seconds(rows: DataFrame) -> float:
    began = time.perf_counter()
    found = rows.selectExpr("count(*)", "sum(id)", "max(k)", "sum(v)", "max(s)").first()
    assert found is not None
    assert found[0] == ROWS, f"read {found[0]} rows of {ROWS}"
    return time.perf_counter() - began


async def _publish(broker_address: str, files: Path) -> int:
    """Append the lines of the files, in transactions; return the journal's size, bytes."""
    async with JournalClient(broker_address) as client:
        await client.apply([journal_change(JOURNAL)])
        for content in _transactions(files):
            await client.append(JOURNAL, content)
        return await client.write_head(JOURNAL)


def _transactions(files: Path) -> Iterator[bytes]:
    clock, producer = MessageClock(), new_producer_id()
    clock.update(time.time())

    def member(flags: int) -> bytes:
        return (
            b'"_meta":{"uuid":"%s"}'
            % format_uuid(build_uuid(producer, clock.tick(), flags)).encode()
        )

    for file in sorted(files.glob("*.json")):
        lines = file.read_bytes().splitlines()
        for begin in range(0, len(lines), TRANSACTION_ROWS):
            messages = [
                line[:-1] + b"," + member(Flags.CONTINUE_TXN) + b"}\n"
                for line in lines[begin : begin + TRANSACTION_ROWS]
            ]
            yield b"".join([*messages, b"{" + member(Flags.ACK_TXN) + b"}\n"])
