"""Spark's `transformWithState` with the processor that members run: a total by key, one read and one update a row.

    rows       files of rows that wait, one a batch, in local mode; the first batch starts Python's workers and is left
               out
    latency    Spark's own source of 1,000 rows a second, in micro-batches that follow each other at once: from the
               time of a row to when its batch has been computed and collected

State is in RocksDB, with Spark's defaults but for the settings of `_CONF`, each in Spark's favour. Processor time is
that of the JVM and of Python's workers together.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.keyed.cluster import percentile
from bench.report import Params, emit
from broadsheet.spark_bridge.java import find_java
from broadsheet.spark_bridge.standalone import spark_home_of_pip

BENCH = "keyed"
BATCHES = 4
_OUTPUT = "key LONG, total LONG, rows LONG, at TIMESTAMP"
_CONF = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # As many as there are cores; 200 by default, which would cost it dearly.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}


class Totals(StatefulProcessor):
    """The same as `bench.keyed.app.Totals`, for Spark."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the total."""
        self._total = handle.getValueState("total", "n LONG, rows LONG")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """Add each row, and answer it."""
        del timerValues
        for row in rows:
            n, count = self._total.get() or (0, 0)
            self._total.update((n + row.n, count + 1))
            if row.answered:
                yield Row(key=key[0], total=n, rows=count, at=row.at)

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def _session(directory: Path) -> Iterator[SparkSession]:
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("SPARK_HOME", str(spark_home_of_pip()))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Without it the JVM starts the `python3` on PATH, which seldom has our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bench.keyed")
    for name, value in {**_CONF, "spark.local.dir": str(directory / "local")}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def _cpu_seconds() -> float:
    """Return the processor time of the JVM and of the workers of Python below it, so far."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithState(
        statefulProcessor=Totals(),
        outputStructType=_OUTPUT,
        outputMode="Update",
        timeMode="None",
    )


def rows(count: int, keys: int) -> None:
    """Print `rows_per_s` and `cpu_us_per_row` of rows that wait.

    Args:
        count: Rows of all batches but the first.
        keys: Of the rows, which go round them.
    """
    per_batch = max(keys, count // BATCHES)
    with tempfile.TemporaryDirectory(prefix="keyed-spark-") as name, _session(Path(name)) as spark:
        directory = Path(name)
        (directory / "rows").mkdir()
        for batch in range(BATCHES + 1):
            numbers = np.arange(batch * per_batch, (batch + 1) * per_batch, dtype=np.int64)
            columns: dict[str, Any] = {"key": numbers * 7_368_787 % keys, "n": numbers % 9 + 1}
            columns |= {"at": pa.nulls(per_batch, pa.timestamp("us", "UTC"))}
            columns |= {"answered": np.zeros(per_batch, np.bool_)}
            pq.write_table(pa.table(columns), directory / "rows" / f"{batch}.parquet")
        source = spark.readStream.schema("key LONG, n LONG, at TIMESTAMP, answered BOOLEAN")
        source = source.option("maxFilesPerTrigger", 1)
        times: list[tuple[float, float]] = []

        def consume(batch: DataFrame, number: int) -> None:
            del number
            batch.write.format("noop").mode("overwrite").save()
            times.append((time.monotonic(), _cpu_seconds()))

        query = _totals(source.parquet(str(directory / "rows"))).writeStream.foreachBatch(consume)
        query = query.outputMode("update").option("checkpointLocation", str(directory / "state"))
        query.trigger(availableNow=True).start().awaitTermination()
    (began, cpu), (ended, cpu_after) = times[0], times[BATCHES]
    handled = per_batch * BATCHES
    params: Params = {"system": "spark", "keys": keys, "rows": handled}
    emit(BENCH, "rows_per_s", handled / (ended - began), "1/s", **params)
    emit(BENCH, "cpu_us_per_row", (cpu_after - cpu) / handled * 1e6, "us", **params)


def latency(seconds: float, rate: int, keys: int) -> None:
    """Print the latency of rows at a rate.

    Args:
        seconds: How long rows are timed, after as long a time of warming up.
        rate: Rows a second.
        keys: Of the rows.
    """
    found: list[float] = []
    with tempfile.TemporaryDirectory(prefix="keyed-spark-") as name, _session(Path(name)) as spark:
        source = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
        source = source.selectExpr(
            f"value * 7368787 % {keys} AS key", "1L AS n", "timestamp AS at", "true AS answered"
        )
        warm_at = time.time() + seconds

        def consume(batch: DataFrame, number: int) -> None:
            del number
            at = [row.at.timestamp() for row in batch.select("at").collect()]
            now = time.time()
            found.extend(now - each for each in at if each >= warm_at)

        query = _totals(source).writeStream.foreachBatch(consume).outputMode("update")
        running = query.option("checkpointLocation", str(Path(name) / "state")).start()
        running.awaitTermination(int(2 * seconds) + 1)
        cpu = _cpu_seconds()
        running.awaitTermination(int(seconds))
        spent = (_cpu_seconds() - cpu) / int(seconds)
        running.stop()
    found.sort()
    params: Params = {"system": "spark", "rows_per_s": rate, "keys": keys, "rows": len(found)}
    for percent in (50, 99):
        emit(BENCH, f"latency_p{percent}_ms", percentile(found, percent) * 1000, "ms", **params)
    emit(BENCH, "latency_cpu", spent * 100, "%", system="spark", rows_per_s=rate)
