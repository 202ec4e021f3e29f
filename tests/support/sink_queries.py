"""Streaming queries from files into journals, as programs of the sink's tests run them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import uuid4

from tests.support.spark import make_journals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from broadsheet.spark_bridge.cluster.shard_cluster import Services

ROW_SCHEMA = "id long, key string"
SINK_JOURNALS = ("sink/part-000", "sink/part-001")


class SinkTopic:
    """Two journals that no other test uses, and the options that write to them."""

    def __init__(
        self,
        services: Services,
        *,
        content_type: str = "application/x-ndjson",
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = uuid4().hex
        self.address = services.broker_address
        self.journals = tuple(f"sink/{self.name}/part-{index:03d}" for index in range(2))
        self.root = f"/test/{self.name}"
        self.options: dict[str, str] = {
            "address": self.address,
            "selector": f"name:prefix=sink/{self.name}/",
            "etcd": ",".join(services.etcd.endpoints),
            "root": self.root,
            "key": "key",
        }
        make_journals(
            services.broker_address, self.journals, content_type=content_type, labels=labels
        )


def write_input_files(directory: Path, files: int, *, rows_per_file: int) -> None:
    """Write JSON files with ids that go on from file to file; a stream reads them in this order."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        first = file * rows_per_file
        lines = (
            f'{{"id":{id_},"key":"key-{id_ % 50}"}}\n'
            for id_ in range(first, first + rows_per_file)
        )
        # A stream must not see half a file.
        unfinished = directory / f".part-{file:03d}"
        unfinished.write_text("".join(lines))
        unfinished.rename(directory / f"part-{file:03d}.json")


def rows_of_files(spark: SparkSession, directory: Path, *, tasks: int = 2) -> DataFrame:
    """Return a stream of the rows, a file a micro-batch, by several tasks."""
    files = spark.readStream.schema(ROW_SCHEMA).option("maxFilesPerTrigger", "1")
    return files.json(str(directory)).repartition(tasks)


def start_query(
    rows: DataFrame, options: Mapping[str, str], *, checkpoint: Path, format_name: str = "journal"
) -> StreamingQuery:
    """Start a query that takes what is there, and ends."""
    writer = rows.writeStream.format(format_name).options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


@contextmanager
def small_batches(spark: SparkSession, rows: int) -> Iterator[None]:
    """Let Arrow hand over few rows at a time, so that a task appends long before its end."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, str(rows))
    try:
        yield
    finally:
        spark.conf.unset(name)


def missing_and_twice(
    spark: SparkSession, published: Sequence[int], *, rows: int
) -> tuple[int, int, int]:
    """Compare input and output by a full outer join: rows missing, rows there more than once, rows never written."""
    wanted = spark.range(rows).selectExpr("id AS wanted")
    found = spark.createDataFrame([(id_,) for id_ in published], "id long")
    joined = wanted.join(found.groupBy("id").count(), wanted["wanted"] == found["id"], "full_outer")
    counted = joined.selectExpr(
        "count_if(id IS NULL)", "count_if(count > 1)", "count_if(wanted IS NULL)"
    ).first()
    assert counted is not None
    return counted[0], counted[1], counted[2]
