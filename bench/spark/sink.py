"""Rows a second into journals, beside Spark's own sink of JSON files with the same rows."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.journal_specs import journal_change
from bench.report import emit
from bench.spark.machine import CORES, Machine, running
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.message.framing import ARROW_STREAM, CSV, NDJSON
from broadsheet.consumer.protocol.journal_pb2 import ApplyRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 3_000_000
FEW_ROWS = 10
ROUNDS = 5
JOURNALS = 2
BYTES_PER_MEGABYTE = 1_000_000
_ENCODINGS = {"json": NDJSON, "csv": CSV, "arrow": ARROW_STREAM}


def run(bench: str) -> None:
    """Write the same rows into journals and into JSON files, in turn, until readers can see them."""
    with running() as machine:
        rows = _rows(machine)
        files = machine.directory / "written"
        seconds: dict[str, list[float]] = {name: [] for name in (*_ENCODINGS, "file")}
        _file_seconds(rows, files)
        _journal_seconds(machine, rows, "json")
        few = [_journal_seconds(machine, rows.limit(FEW_ROWS), "json") for _ in range(ROUNDS)]
        emit(bench, "sink_few_rows_s", statistics.median(few), "s", rows=FEW_ROWS, cores=CORES)
        for _ in range(ROUNDS):
            seconds["file"].append(_file_seconds(rows, files))
            for encoding in _ENCODINGS:
                seconds[encoding].append(_journal_seconds(machine, rows, encoding))
        _emit(bench, {name: statistics.median(found) for name, found in seconds.items()})
        size = sum(file.stat().st_size for file in files.glob("*.json"))
        megabytes = size / BYTES_PER_MEGABYTE
        _emit_megabytes(bench, megabytes, statistics.median(seconds["json"]))


def _emit(bench: str, seconds: dict[str, float]) -> None:
    params: dict[str, str | int] = {"rows": ROWS, "cores": CORES, "journals": JOURNALS}
    for encoding in _ENCODINGS:
        rate = ROWS / seconds[encoding]
        emit(bench, "sink_rows_per_s", rate, "rows/s", encoding=encoding, **params)
    emit(bench, "json_sink_rows_per_s", ROWS / seconds["file"], "rows/s", **params)
    ratio = seconds["file"] / seconds["json"]
    emit(bench, "sink_rows_per_s_ratio", ratio, "ratio", encoding="json", **params)


def _emit_megabytes(bench: str, megabytes: float, seconds: float) -> None:
    """Print the rate in bytes of the rows as files have them: without UUIDs."""
    emit(bench, "sink_mb_per_s", megabytes / seconds, "MB/s", encoding="json", cores=CORES)


def _rows(machine: Machine) -> DataFrame:
    return machine.spark.range(ROWS, numPartitions=CORES).selectExpr(
        "id", "concat('key-', id % 1000) AS k", "id + 0.5D AS v", "'some text of sixteen' AS s"
    )


def _file_seconds(rows: DataFrame, files: Path) -> float:
    began = time.perf_counter()
    rows.write.mode("overwrite").json(str(files))
    return time.perf_counter() - began


def _journal_seconds(machine: Machine, rows: DataFrame, encoding: str) -> float:
    """Return how long the rows take into empty journals: the files are overwritten, too.

    So either begins with the disk and the memory that its own last round gave back. What a virtual machine takes from
    its host for the first time costs it more than a copy of what is written there.
    """
    asyncio.run(_empty_journals(machine.services.broker_address, encoding))
    writer = rows.write.format("journal").options(
        address=machine.services.broker_address,
        etcd=",".join(machine.services.etcd.endpoints),
        selector=f"name:prefix=bench/sink/{encoding}/",
        root="/bench/sink",
        key="k",
    )
    began = time.perf_counter()
    writer.mode("append").save()
    return time.perf_counter() - began


async def _empty_journals(broker_address: str, encoding: str) -> None:
    names = [f"bench/sink/{encoding}/part-{index:03d}" for index in range(JOURNALS)]
    async with JournalClient(broker_address) as client:
        there = {listed.spec.name for listed in (await client.list()).journals}
        deletes = [
            ApplyRequest.Change(delete=name, expect_mod_revision=-1)
            for name in names
            if name in there
        ]
        if deletes:
            await client.apply(deletes)
        await client.apply([journal_change(name, _ENCODINGS[encoding]) for name in names])
