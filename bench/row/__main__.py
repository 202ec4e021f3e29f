"""The cost of a row that comes alone: `make bench BENCH=row`, or e.g. `python -m bench.row --rates 200 --rounds 5`.

A row is published, consumed by a shard in a transaction of its own (sums by key, in SQLite with a recovery log), and
its sums are read committed. Every process has one job, so that its processor time is the cost of that job:

    row_cpu_ms        processor time a row, of the member, of the broker, and of the client that publishes and reads
    idle_cpu_ms       processor time a second without rows, which is part of the above
    rows_per_txn      rows of one transaction; above 1, rows waited for each other, and shared the cost of a transaction
    latency_p50_ms    from when a row was due to be published to its committed sums
    latency_p99_ms    the same

The rates are measured in turn, round by round, and each figure is the lowest of all rounds: other work on the machine
can only raise it. The sums are checked after each measurement.

`python -m bench.row echo` measures what a message costs over gRPC and over bare frames (`bench.row.echo`).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path

from bench.report import Params, emit, keep_logs_apart
from bench.row import echo
from bench.row.cluster import RowCluster
from bench.row.trickle import Measured, RowClient
from broadsheet.runtime.event_loop import new_event_loop
from broadsheet.runtime.interpreter import serve_only

BENCH = "row"
RATES = (50, 200, 500)
"""Rows a second."""
PERCENTILES = (50, 99)
WARM_UP_SECONDS = 2.0
WARM_UP_RATE = 200
IDLE_SECONDS = 4.0
ROWS_PER_TXN_RATIO_MAX = 1.05
"""Rows a transaction of a round whose processor time counts, relative to the lowest of all rounds."""


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print each figure."""
    options = _parser().parse_args(arguments)
    keep_logs_apart()
    if options.part == "echo":
        echo.measure(BENCH, rounds=options.rounds, seconds=options.seconds)
        return
    serve_only()
    with (
        tempfile.TemporaryDirectory(prefix="row-") as directory,
        RowCluster.running(Path(directory)) as cluster,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(_measure(cluster, options))


async def _measure(cluster: RowCluster, options: argparse.Namespace) -> None:
    async with RowClient.connected(cluster) as client:
        await client.publish_at(WARM_UP_RATE, WARM_UP_SECONDS)
        idle = await client.idle(IDLE_SECONDS)
        for process, spent in idle.items():
            emit(BENCH, "idle_cpu_ms", spent / IDLE_SECONDS * 1e3, "ms", process=process)
        found: dict[int, list[Measured]] = defaultdict(list)
        for _ in range(options.rounds):
            for rate in options.rates:
                found[rate].append(await client.publish_at(rate, options.seconds))
    for rate, rounds in found.items():
        _emit(rate, rounds)


def _emit(rate: int, rounds: list[Measured]) -> None:
    params: Params = {"rows_per_s": rate, "transport": "grpc", "rounds": len(rounds)}
    least = min(each.rows_per_txn for each in rounds)
    # A round in which the machine made rows wait has fewer transactions, which is no saving.
    alike = [each for each in rounds if each.rows_per_txn <= ROWS_PER_TXN_RATIO_MAX * least]
    for process in rounds[0].cpu_seconds:
        lowest = min(each.cpu_seconds[process] / each.rows for each in alike)
        emit(BENCH, "row_cpu_ms", lowest * 1e3, "ms", process=process, **params)
    emit(BENCH, "rows_per_txn", least, "rows", **params)
    for percentile in PERCENTILES:
        lowest = min(each.latency_seconds(percentile) for each in rounds)
        emit(BENCH, f"latency_p{percentile}_ms", lowest * 1e3, "ms", **params)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.row", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("part", nargs="?", choices=("row", "echo"), default="row")
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, help="rows a second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each rate in each round")
    parser.add_argument("--rounds", type=int, default=5, help="of which the lowest is printed")
    return parser


if __name__ == "__main__":
    main()
