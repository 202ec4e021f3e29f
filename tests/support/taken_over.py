"""Queries that stop in the middle: Spark goes on with its checkpoint, and a shard with what it takes over of a copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from broadsheet.consumer.keyed import StateImport, StateOptions
from broadsheet.consumer.keyed.application import EventTime
from broadsheet.consumer.keyed.imports.files import ImportPlace
from broadsheet.spark_bridge.keyed import (
    HostingOptions,
    ImportReport,
    StatefulProcessorApplication,
    import_state,
)
from broadsheet.spark_bridge.keyed.schemas import arrow_schema, struct_of
from tests.support.import_runs import ImportingLives, SourcedShard
from tests.support.keyed_runs import SOURCE, SteppedClock
from tests.support.random_queries import DELAY_MS, OUTPUT, SCHEMA, Script, Scripted
from tests.support.spark_queries import (
    batch_without_rows,
    comparable,
    let_batches_be_empty,
    rows_of_batch,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches = list[list[tuple[Any, ...]]]
SHARD = "shard-0001"


class StoppedQuery:
    """A query over files, which can be run as far as there are files, stopped, copied and run on."""

    def __init__(self, spark: SparkSession, directory: Path, processor: Any, **query: Any) -> None:
        """Describe it.

        Args:
            spark: The session.
            directory: For its files; empty.
            processor: Not initialised.
            query: `schema` and `output` as text; `mode` of time; `event_time` and `delay_ms`; `in_pandas`.
        """
        self._spark = spark
        self._source = directory / "in"
        self._source.mkdir(parents=True)
        self.checkpoint = directory / "checkpoint"
        self._processor = processor
        self._query = query
        self._files = 0

    def run(self, batches: Sequence[Sequence[Any]]) -> Batches:
        """Run on with batches of rows, until all is done; return what each batch emitted, if anything."""
        for batch in batches:
            self._write(batch)
        query = self._query
        frame = self._spark.readStream.schema(query["schema"]).option("maxFilesPerTrigger", 1)
        rows = frame.parquet(str(self._source))
        if query.get("event_time"):
            rows = rows.withWatermark(query["event_time"], f"{query['delay_ms']} milliseconds")
        grouped = rows.groupBy("id")
        in_pandas = query.get("in_pandas", False)
        run = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
        output = run(self._processor, query["output"], "Update", query["mode"])
        found: dict[int, list[tuple[Any, ...]]] = {}

        def collect(batch: Any, number: int) -> None:
            found[number] = [tuple(row) for row in batch.collect()]

        writer = output.writeStream.outputMode("update").foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        let_batches_be_empty(self._spark, query["mode"])
        running = writer.trigger(availableNow=True).start()
        running.awaitTermination()
        return [found[number] for number in sorted(found) if found[number]]

    def copied(self, to: Path) -> Path:
        """Copy the checkpoint as it is now."""
        shutil.copytree(self.checkpoint, to)
        return to

    def _write(self, batch: Sequence[Any]) -> None:
        schema = arrow_schema(struct_of(self._query["schema"], "schema"), "schema")
        columns = zip(*batch, strict=True)
        arrays = [pa.array(each, type_) for each, type_ in zip(columns, schema.types, strict=True)]
        path = self._source / f"{self._files:05d}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
        # One file a batch, in the order of their times.
        os.utime(path, (1_000_000_000 + self._files,) * 2)
        self._files += 1


class Continued:
    """A shard that goes on with the state that was imported for it."""

    def __init__(self, script: Script, place: Path, directory: Path) -> None:
        """Begin its first life, at the time of the query's last batch.

        Args:
            script: The query's case.
            place: Of the import.
            directory: For the shard's files.
        """
        self._clock = SteppedClock(ImportPlace(str(place)).manifest().batch_ms)
        self._application = hosted(script, place, clock=self._clock)
        self.lives = ImportingLives(directory, self._application, SourcedShard(sources=(SOURCE,)))

    def run(self, batches: Sequence[Sequence[Any]]) -> Batches:
        """Run transactions with these rows, and end its life; return what each emitted, if anything."""
        try:
            found = [self._batch(each) for each in batches]
            found.append(batch_without_rows(self.lives.run, lambda: self._batch(())))
        finally:
            self.lives.end()
        return [each for each in found if each]

    def _batch(self, rows: Sequence[Any]) -> list[tuple[Any, ...]]:
        self._clock.now_ms += 1_000
        emitted = self.lives.transact(rows)
        if not emitted:
            return []
        table = self._application.output_table(emitted)
        return [tuple(row.values()) for row in table.to_pylist()]


def hosted(
    script: Script, place: Path, *, clock: SteppedClock | None = None
) -> StatefulProcessorApplication:
    """Return the application of a script, whose shard takes its state from a place.

    Args:
        script: The case.
        place: Of the import, which is there or will be.
        clock: Of the shard; None: one that stands still.
    """
    event = script.mode == "EventTime"
    return StatefulProcessorApplication(
        processor=Scripted(mode=script.mode, in_pandas=script.in_pandas),
        key="id",
        inputSchema=SCHEMA,
        outputStructType=OUTPUT,
        outputMode="Update",
        timeMode=script.mode,
        eventTime=EventTime(column="at", delay_ms=DELAY_MS) if event else None,
        inPandas=script.in_pandas,
        takeOver=StateImport(place=str(place), shard=SHARD),
        options=HostingOptions(state=StateOptions(index="memory"), clock=clock or SteppedClock()),
    )


def query_of(spark: SparkSession, directory: Path, script: Script) -> StoppedQuery:
    """Return the query of a script, in an empty directory."""
    return StoppedQuery(
        spark,
        directory,
        Scripted(mode=script.mode, in_pandas=script.in_pandas),
        schema=SCHEMA,
        output=OUTPUT,
        mode=script.mode,
        event_time="at" if script.mode == "EventTime" else None,
        delay_ms=DELAY_MS,
        in_pandas=script.in_pandas,
    )


def both_continued(
    spark: SparkSession, directory: Path, script: Script, *, first: int
) -> tuple[Batches, Batches, ImportReport]:
    """Run the first batches of a script on Spark, and the rest on Spark and on a shard; return what the rest emitted.

    Args:
        spark: The session.
        directory: Empty.
        script: The case.
        first: Batches before the take-over.

    Returns:
        Spark's, the shard's, and the report of the import.
    """
    query = query_of(spark, directory / "query", script)
    batches = [rows_of_batch(each) for each in script.batches]
    query.run(batches[:first])
    checkpoint = query.copied(directory / "copy")
    expected = query.run(batches[first:])
    place = directory / "import"
    report = import_state(spark, hosted(script, place), str(checkpoint))
    found = Continued(script, place, directory / "lives").run(batches[first:])
    return [comparable(each) for each in expected], [comparable(each) for each in found], report
