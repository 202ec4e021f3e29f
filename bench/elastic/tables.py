"""Relays into Delta and Iceberg tables on the local disk."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from bench.elastic.plan import BENCH, Plan
from bench.elastic.relays import Relays
from bench.report import Params, emit
from broadsheet.consumer.relay import Sink, SinkKind

ROWS_PER_SECOND: Final = 50
TXN_SECONDS: Final = 2.0
"""Least duration of a transaction when rows come one by one: each is a commit of the table."""
_COMMIT_SECONDS: Final = 2.0
_LOAD_TXN_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.1


def measure(plan: Plan) -> None:
    """Print the figures of both kinds of table, each of which is checked to have every row once."""
    for kind in (SinkKind.DELTA, SinkKind.ICEBERG):
        with (
            tempfile.TemporaryDirectory(prefix="elastic-") as directory,
            Relays.running(Path(directory)) as relays,
        ):
            _throughput(plan, relays, _sink(kind, Path(directory) / "waiting"))
            asyncio.run(_freshness(plan, relays, _sink(kind, Path(directory) / "trickle")))


def _sink(kind: SinkKind, directory: Path) -> Sink:
    directory.mkdir()
    if kind is SinkKind.DELTA:
        return Sink(kind=kind, to=str(directory / "table"))
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    return Sink(kind=kind, to="lake.rows", settings=catalog)


def _throughput(plan: Plan, relays: Relays, sink: Sink) -> None:
    carried = relays.carry_waiting(sink, plan.rows, min_seconds=_LOAD_TXN_SECONDS)
    offsets = _column(sink, "_offset").combine_chunks()
    if len(offsets) != plan.rows or len(offsets.unique()) != plan.rows:
        raise RuntimeError(f"{sink.kind.value}: {len(offsets)} rows of {plan.rows}")
    params: Params = {"table": sink.kind.value, "rows": plan.rows, "load": plan.load}
    emit(BENCH, "table_rows_per_s", plan.rows / carried.seconds, "1/s", **params)


async def _freshness(plan: Plan, relays: Relays, sink: Sink) -> None:
    seen: dict[int, float] = {}
    async with relays.trickle(sink, ROWS_PER_SECOND, min_seconds=TXN_SECONDS) as due:
        end = time.monotonic() + plan.seconds
        while time.monotonic() < end:
            numbers = await asyncio.to_thread(_numbers, sink)
            now = time.monotonic()
            for number in numbers:
                seen.setdefault(number, now)
            await asyncio.sleep(_POLL_SECONDS)
        # The last of a transaction that was under way cannot be seen: such rows are left out, and no others.
        last = end - 2 * TXN_SECONDS - _COMMIT_SECONDS
        ages = sorted(seen.get(number, end) - at for number, at in due.items() if at < last)
    params: Params = {
        "table": sink.kind.value,
        "txn_s": TXN_SECONDS,
        "rows_per_s": ROWS_PER_SECOND,
        "load": plan.load,
    }
    emit(BENCH, "table_freshness_p50_s", statistics.median(ages), "s", **params)
    emit(BENCH, "table_freshness_max_s", ages[-1], "s", **params)


def _numbers(sink: Sink) -> list[int]:
    column = _column(sink, "n")
    numbers: list[int] = column.drop_null().to_pylist()
    return numbers


def _column(sink: Sink, name: str) -> pa.ChunkedArray:
    """Return a column of the table as it is now; empty if it has none yet."""
    read: Callable[[], pa.Table]
    if sink.kind is SinkKind.DELTA:
        read = DeltaTable(sink.to).to_pyarrow_table
    else:
        read = load_catalog("default", **sink.settings).load_table(sink.to).scan().to_arrow
    rows = read()
    return rows[name] if name in rows.column_names else pa.chunked_array([], pa.int64())
