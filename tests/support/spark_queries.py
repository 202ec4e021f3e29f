"""Queries of `transformWithState` on a real Spark, and the same on a shard: what each emits, batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle

from broadsheet.consumer.keyed.run import KeyedRun
from broadsheet.spark_bridge.keyed.schemas import arrow_schema, struct_of
from tests.support import random_queries, spark_processors
from tests.support.hosted_runs import HostedLives
from tests.support.random_queries import DELAY_MS, OUTPUT, SCHEMA, Script, Scripted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
}
_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_BY_VALUE = (random_queries, spark_processors)


@contextmanager
def query_conf(spark: SparkSession) -> Iterator[None]:
    """Let queries of the block keep state as `transformWithState` needs it, in one partition."""
    before = {name: spark.conf.get(name, None) for name in (*_CONF, _EMPTY_BATCHES)}
    for name, value in _CONF.items():
        spark.conf.set(name, value)
    for module in _BY_VALUE:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # PySpark's
    try:
        yield
    finally:
        for module in _BY_VALUE:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]  # as above
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


def rows_of_batch(
    batch: Sequence[tuple[str | None, int, str]],
) -> list[tuple[str | None, datetime, str]]:
    """Return the rows of a batch of a script, with times."""
    return [(name, datetime.fromtimestamp(at / 1000, UTC), what) for name, at, what in batch]


def on_spark(spark: SparkSession, directory: Path, script: Script) -> list[list[tuple[Any, ...]]]:
    """Return what Spark emits for a script, batch by batch; a batch without output is left out."""
    source = directory / "in"
    source.mkdir(parents=True)
    schema = arrow_schema(struct_of(SCHEMA, "schema"), "schema")
    for number, batch in enumerate(script.batches):
        columns = zip(*rows_of_batch(batch), strict=True)
        arrays = [pa.array(each, type_) for each, type_ in zip(columns, schema.types, strict=True)]
        path = source / f"{number:05d}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
        # One file a batch, in the order of their times.
        os.utime(path, (1_000_000_000 + number,) * 2)
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    if script.mode == "EventTime":
        frame = frame.withWatermark("at", f"{DELAY_MS} milliseconds")
    grouped = frame.groupBy("id")
    run = grouped.transformWithStateInPandas if script.in_pandas else grouped.transformWithState
    processor = Scripted(mode=script.mode, in_pandas=script.in_pandas)
    output = run(processor, OUTPUT, "Update", script.mode)
    found: dict[int, list[tuple[Any, ...]]] = {}

    def collect(batch: Any, number: int) -> None:
        found[number] = [tuple(row) for row in batch.collect()]

    writer = output.writeStream.outputMode("update").foreachBatch(collect)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    let_batches_be_empty(spark, script.mode)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [comparable(found[number]) for number in sorted(found) if found[number]]


def let_batches_be_empty(spark: SparkSession, mode: str) -> None:
    """Let queries that start now have batches without rows, if their time is that of rows.

    By processing time, Spark has one after the other for ever: a query of what is available would not end.
    """
    spark.conf.set(_EMPTY_BATCHES, str(mode == "EventTime").lower())


def comparable(batch: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return a batch's rows with timers of one time in the order of keys: Spark's is that of their encoding.

    Rows of input come first, by key, and stay in their order; so do timers of different times.
    """
    begin = next((at for at, row in enumerate(batch) if "['timer" in row[1]), len(batch))
    expiries = [_expiry(row[1]) for row in batch[begin:]]
    assert expiries == sorted(expiries), "timers fire in the order of their times"
    timers = sorted(batch[begin:], key=lambda row: (_expiry(row[1]), repr(row)))
    return [*batch[:begin], *timers]


def _expiry(seen: str) -> int:
    text = seen.removeprefix("['timer ").partition("'")[0]
    return int(text) if text else 0


def on_a_shard(directory: Path, script: Script) -> list[list[tuple[Any, ...]]]:
    """Return what a shard emits for a script, batch by batch; a batch without output is left out."""
    lives = HostedLives(
        directory,
        processor=Scripted(mode=script.mode, in_pandas=script.in_pandas),
        key="id",
        inputSchema=SCHEMA,
        outputStructType=OUTPUT,
        outputMode="Update",
        timeMode=script.mode,
        eventTime="at" if script.mode == "EventTime" else None,
        delay=DELAY_MS,
        inPandas=script.in_pandas,
    )
    try:
        found = [_batch(lives, batch) for batch in script.batches]
        if script.mode == "EventTime":
            found.append(batch_without_rows(lives.run, lambda: _batch(lives, ())))
        return [comparable(batch) for batch in found if batch]
    finally:
        lives.end()


def batch_without_rows(run: KeyedRun, transact: Callable[[], list[Any]]) -> list[Any]:
    """Return what the batch without rows emits that Spark has behind the last rows; nothing if Spark has none.

    Spark has one when rows moved the watermark, and only then. A timer that was registered in the past while timers
    fired waits there for rows, and is due at once on a shard: with the same batches, it is left as Spark leaves it.

    Args:
        run: Of the shard, behind the transaction of the last rows.
        transact: Runs a transaction without rows.
    """
    before = run.watermark_ms
    if run.next_txn_after() != 0.0:
        return []
    emitted = transact()
    return emitted if run.watermark_ms > before else []


def _batch(lives: HostedLives, batch: Sequence[tuple[str | None, int, str]]) -> list[Any]:
    lives.clock.now_ms += 1_000
    return lives.batch(*rows_of_batch(batch))
