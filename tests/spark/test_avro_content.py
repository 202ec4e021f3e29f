"""Avro in Spark's sink and source: a content type without code of its own there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broadsheet.journals.content.avro import AVRO, SCHEMA_LABEL, schema_label
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.formats import register_formats
from tests.support.sink_queries import SinkTopic, start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

ROWS = 500
SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "key", "type": "string"},
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}


def test_avro_rows_through_batch_and_streaming_sink_and_source(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    """Written as a batch, read as a stream, written as a stream, read as a batch whose columns are inferred.

    Why: each of the four looks the content type up by its own path.
    """
    register_formats(spark)
    labels = {SCHEMA_LABEL: schema_label(SCHEMA)}
    first, second = (SinkTopic(services, content_type=AVRO, labels=labels) for _ in range(2))
    rows = spark.range(0, ROWS, 1, 2).selectExpr(
        "concat('key-', id % 7) AS key",
        "id",
        "if(id % 2 = 0, timestamp_micros(id * 1000001), NULL) AS at",
    )

    rows.write.format("journal").options(**first.options).mode("append").save()
    read = {"address": first.address, "selector": first.options["selector"]}
    stream = spark.readStream.format("journal").options(**read).load()
    query = start_query(stream, second.options, checkpoint=tmp_path / "checkpoint")
    query.awaitTermination()

    read["selector"] = second.options["selector"]
    found = spark.read.format("journal").options(**read).load()
    assert found.schema.simpleString() == "struct<key:string,id:bigint,at:timestamp>"
    assert Counter(found.collect()) == Counter(rows.collect())
