"""Nexmark's queries on streams: `make bench BENCH=nexmark`.

`rows_per_s` is by the clock, `rows_per_core_s` by the processor time of all threads of the process, which a busy
machine does not falsify. `flink_published` is what Nexmark publishes of Flink, on other machines; `--flink` runs it
beside, over files of the same events.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.nexmark.beside_flink import has_flink, timings
from bench.nexmark.driven import run_query
from bench.nexmark.generator import Events, events
from bench.nexmark.judge import COMPARED, judged
from bench.nexmark.queries import FLINK_K_EVENTS, QUERIES
from bench.report import emit, keep_logs_apart

BENCH = "nexmark"
EVENTS = 1_000_000
PER_TXN = 50_000
ROUNDS = 3
BEAM_EVENTS, BEAM_PER_TXN = 20_000, 5_000
"""Events that Beam gets: it takes a thousand times as long."""
BEAM_EVENTS_PER_S = 500
"""Of their time, so that there are some windows of 10 s and some that overlap."""


def main() -> None:
    """Measure each query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("queries", nargs="*", default=list(QUERIES))
    parser.add_argument("--beam", default="", help="the Python of an environment with apache-beam")
    parser.add_argument(
        "--flink", default="", help="the Python of an environment with apache-flink"
    )
    given = parser.parse_args()
    keep_logs_apart()
    runs = [events(first, PER_TXN) for first in range(0, given.events, PER_TXN)]
    for name in given.queries:
        measure(name, runs, given.rounds)
        if given.beam and name in COMPARED:
            compare(name, given.beam)
    if given.flink and has_flink(given.flink):
        beside_flink(given.queries, runs, given.flink, given.rounds)


def measure(name: str, runs: Sequence[Events], rounds: int) -> None:
    """Measure a query, some times, and print the medians."""
    timings = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            timings.append(run_query(QUERIES[name](), runs, Path(directory)))
    count = sum(map(len, runs))
    rows_out = timings[0].rows_out
    for figure, seconds in (
        ("rows_per_s", statistics.median(each.wall for each in timings)),
        ("rows_per_core_s", statistics.median(each.cpu for each in timings)),
    ):
        emit(
            BENCH,
            figure,
            count / seconds,
            "rows/s",
            query=name,
            system="broadsheet",
            rows_per_txn=PER_TXN,
            rows_out=rows_out,
            flink_published=1000 * FLINK_K_EVENTS.get(name, 0),
        )


def beside_flink(queries: Sequence[str], runs: Sequence[Events], python: str, rounds: int) -> None:
    """Run the queries on Flink, and print the medians; of `events`, what its reading of files costs."""
    count = sum(map(len, runs))
    for timing in timings(python, queries, runs, rounds):
        for figure, seconds in (("rows_per_s", timing.wall), ("rows_per_core_s", timing.cpu)):
            emit(BENCH, figure, count / seconds, "rows/s", query=timing.query, system="flink")


def compare(name: str, python: str) -> None:
    """Run a query on Beam's direct runner, and print whether both emit the same."""
    runs = [
        events(first, BEAM_PER_TXN, per_second=BEAM_EVENTS_PER_S)
        for first in range(0, BEAM_EVENTS, BEAM_PER_TXN)
    ]
    equal, seconds = judged(name, runs, python)
    emit(BENCH, "equals_beam", float(equal), "bool", query=name, events=BEAM_EVENTS)
    emit(BENCH, "rows_per_core_s", BEAM_EVENTS / seconds, "rows/s", query=name, system="beam")


if __name__ == "__main__":
    main()
