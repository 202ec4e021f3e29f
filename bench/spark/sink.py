"""Rows a second into journals, beside Spark's own sinks of JSON and Parquet files with the same rows.

sink_vs_json         Spark's JSON sink took this many times as long as the sink into journals of JSON lines (params
                     encoding, rows, cores, journals)
sink_vs_parquet      the same of its Parquet sink and the sink into journals of Arrow messages
sink_limit_rows_per_s    a sink in Python that drops its rows: no sink in Python is faster

A sink into journals is done when readers can see the rows, and they are synced; files are not synced.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.journal_specs import journal_change
from bench.report import emit
from bench.spark.dropping_format import DroppingFormat
from bench.spark.machine import CORES, Machine, rows_of, running
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.arrow import ARROW_STREAM
from broadsheet.journals.content.csv import CSV
from broadsheet.journals.content.json import NDJSON
from broadsheet.wire.journal_pb2 import ApplyRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 3_000_000
FEW_ROWS = 10
ROUNDS = 5
JOURNALS = 2
BYTES_PER_MEGABYTE = 1_000_000
_ENCODINGS = {"json": NDJSON, "csv": CSV, "arrow": ARROW_STREAM}
_FILES = {"json files": "json", "parquet files": "arrow"}
"""Spark's files, and the encoding of journals that each is compared with."""
_DROPPED = "dropped"


def run(bench: str, count: int = ROWS, rounds: int = ROUNDS) -> None:
    """Write the same rows into journals and into files, in turn, until readers can see them."""
    with running() as machine:
        rows = rows_of(machine.spark, count)
        files = machine.directory / "written"
        names = (*_ENCODINGS, *_FILES, _DROPPED)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        machine.spark.dataSource.register(DroppingFormat)
        few = [_journal_seconds(machine, rows.limit(FEW_ROWS), "json") for _ in range(rounds)]
        emit(bench, "sink_few_rows_s", statistics.median(few), "s", rows=FEW_ROWS, cores=CORES)
        for measured in (False, *[True] * rounds):  # the first round warms up
            for name in seconds:
                if name == _DROPPED:
                    took = _dropped_seconds(rows)
                elif name in _FILES:
                    took = _file_seconds(rows, files / name, name.removesuffix(" files"))
                else:
                    took = _journal_seconds(machine, rows, name)
                if measured:
                    seconds[name].append(took)
        medians = {name: statistics.median(found) for name, found in seconds.items()}
        _emit(bench, count, medians)
        size = sum(file.stat().st_size for file in (files / "json files").glob("*.json"))
        # In bytes of the rows as files have them: without UUIDs.
        rate = size / BYTES_PER_MEGABYTE / medians["json"]
        emit(bench, "sink_mb_per_s", rate, "MB/s", encoding="json", cores=CORES)


def _emit(bench: str, rows: int, seconds: dict[str, float]) -> None:
    params: dict[str, str | int] = {"rows": rows, "cores": CORES, "journals": JOURNALS}
    for encoding in _ENCODINGS:
        rate = rows / seconds[encoding]
        emit(bench, "sink_rows_per_s", rate, "rows/s", encoding=encoding, **params)
    limit = rows / seconds[_DROPPED]
    emit(bench, "sink_limit_rows_per_s", limit, "rows/s", rows=rows, cores=CORES)
    for files, encoding in _FILES.items():
        theirs = files.removesuffix(" files")
        emit(bench, f"{theirs}_sink_rows_per_s", rows / seconds[files], "rows/s", **params)
        ratio = seconds[files] / seconds[encoding]
        emit(bench, f"sink_vs_{theirs}", ratio, "ratio", encoding=encoding, **params)


def _dropped_seconds(rows: DataFrame) -> float:
    began = time.perf_counter()
    rows.write.format(DroppingFormat.name()).mode("append").save()
    return time.perf_counter() - began


def _file_seconds(rows: DataFrame, files: Path, kind: str) -> float:
    began = time.perf_counter()
    rows.write.mode("overwrite").format(kind).save(str(files))
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
