"""Structured Streaming under measurement, on `local[2]`, with RocksDB as its state store, and a query that runs at once
when there is something to do.

rows/s      rows wait in files; timed is from when the files appear in the directory of a query that has served others
            before, to when the driver has sums that hold every row
latency     rows come through a socket, Spark's quickest source, which it cannot read again after a kill; timed is to
            the sums, in the driver, that hold them
recovery    rows come in files; from the SIGKILL of the driver and its JVM, which is started again at once, to its next
            sums. In `local[2]` there is nothing smaller to kill: a lost Python worker ends the query
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.disturbances import Disturbances
from bench.vs_structured_streaming.driver import Driver
from bench.vs_structured_streaming.feed import FileFeed, LineServer, Trickle
from bench.vs_structured_streaming.results import (
    LATENCY,
    LOADS,
    RECOVERY,
    RESULT_SECONDS_MAX,
    WARM_UP,
    Latencies,
    Measured,
    Results,
    Sums,
    check_exact,
    latencies_by_pace,
)
from bench.vs_structured_streaming.rows import Chunk, expected_sums, rows_in
from bench.vs_structured_streaming.spark_query import QueryPlan

SYSTEMS = ("structured_streaming", "transform_with_state")
FILES = 8
"""Of one load."""
ROWS_PER_FILE = 20
"""Of a trickle."""
SETTLE_SECONDS = 3.0
"""Of results before the kill."""


def measure(system: str, chunks: Sequence[Chunk]) -> Measured:
    """Measure everything once."""
    with tempfile.TemporaryDirectory(prefix="vs-") as directory:
        return Measured(
            rows_per_second=_loads(system, Path(directory) / "loads", chunks),
            latencies=_latencies(system, Path(directory) / "latency"),
            recoveries_seconds={"driver": [_recovery(system, Path(directory) / "recovery")]},
        )


class Query:
    """A streaming query and what it has shown, over several lives of its driver."""

    def __init__(self, system: str, directory: Path, *, socket_port: int = 0) -> None:
        """Describe it; without a port it reads files."""
        self.system = system
        self._directory = directory
        self._lives = itertools.count()
        self.results = Results()
        for name in ("input", "staging", "checkpoint"):
            (directory / name).mkdir(parents=True)
        self._plan = QueryPlan(
            system=system,
            checkpoint=str(directory / "checkpoint"),
            input_directory="" if socket_port else str(directory / "input"),
            socket_port=socket_port,
        )

    def new_feed(self, *, rows_per_file: int = 1) -> FileFeed:
        """Return what puts files into the query's directory."""
        return FileFeed(
            self._directory / "input", self._directory / "staging", rows_per_file=rows_per_file
        )

    def new_driver(self) -> Driver:
        """Return a driver of the query, not started."""
        return Driver(
            "bench.vs_structured_streaming.spark_query",
            self._plan,
            log_file=self._directory / f"driver-{next(self._lives)}.log",
            on_record=self._take,
        )

    def _take(self, record: dict[str, Any]) -> None:
        pid, at = int(record["pid"]), float(record["at"])
        self.results.add([Sums(key, n, total, pid, at) for key, n, total in record["sums"]])


def _loads(system: str, directory: Path, chunks: Sequence[Chunk]) -> list[float]:
    query = Query(system, directory)
    feed, rates = query.new_feed(), []
    contents = [b"".join(chunk.content for chunk in chunks[index::FILES]) for index in range(FILES)]
    rows = rows_in(chunks)
    with query.new_driver() as driver:
        driver.wait_until_started()
        for load in range(LOADS + 1):
            feed.stage(contents)
            began = time.monotonic()
            feed.publish()
            ended = query.results.wait_until_counted(
                rows * (load + 1), timeout_seconds=RESULT_SECONDS_MAX
            )
            if load > 0:
                rates.append(rows / (ended - began))
    check_exact(query.results.latest(), expected_sums(rows, loads=LOADS + 1), system)
    return rates


def _latencies(system: str, directory: Path) -> dict[float, Latencies]:
    with LineServer() as server:
        query = Query(system, directory, socket_port=server.port)
        trickle = Trickle(server.send, (WARM_UP, *LATENCY))
        with Disturbances(directory) as disturbances:
            with query.new_driver() as driver:
                driver.wait_until_started()
                server.wait_until_connected()
                trickle.start()
                trickle.join()
                _finish(query, trickle)
            return latencies_by_pace(trickle.sent, query.results.seen, disturbances)


def _recovery(system: str, directory: Path) -> float:
    query = Query(system, directory)
    feed = query.new_feed(rows_per_file=ROWS_PER_FILE)
    trickle = Trickle(feed.send, (RECOVERY,))
    with query.new_driver() as killed:
        pid = int(killed.wait_until_started()["started"])
        trickle.start()
        query.results.wait_until_counted(1, timeout_seconds=RESULT_SECONDS_MAX)
        time.sleep(SETTLE_SECONDS)
        began = time.monotonic()
        killed.kill()
        with query.new_driver():
            first = query.results.wait_for_other(
                after=began, pids={pid}, timeout_seconds=RESULT_SECONDS_MAX
            )
            _finish(query, trickle, feed)
    return first.at_monotonic_seconds - began


def _finish(query: Query, trickle: Trickle, feed: FileFeed | None = None) -> None:
    """End a trickle, and check that every row of it was counted once."""
    rows = trickle.stop()
    if feed is not None:
        feed.flush()
    query.results.wait_until_counted(rows, timeout_seconds=RESULT_SECONDS_MAX)
    check_exact(query.results.latest(), expected_sums(rows), query.system)
