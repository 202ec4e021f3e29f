"""A program over Spark Connect, in a process of its own: `python -m tests.support.connect_session`.

Starts a Connect server, and is its client: no SparkContext, no JVM of its own. Prints what it saw, a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import find_or_start
from broadsheet.spark_bridge.errors import ConnectNotSupportedError
from broadsheet.spark_bridge.formats import register_formats
from broadsheet.spark_bridge.java import find_java
from tests.support.spark import make_journals

JOURNAL = "connect/000"
ROWS = 1_000


def main() -> None:
    """Ask for a cluster in vain; write rows into a journal and read them again, at once and as a stream."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            find_or_start(None, None, data_dir=Path(directory)) as services,
        ):
            make_journals(services.broker_address, [JOURNAL])
            register_formats(spark)
            options = {"address": services.broker_address, "selector": f"name={JOURNAL}"}
            rows = spark.range(ROWS).selectExpr("CAST(id AS STRING) AS k", "id AS n")
            writing = rows.write.format("journal").mode("append").options(**options)
            writing.option("etcd", ",".join(services.etcd.endpoints)).option("key", "k").save()
            print(
                json.dumps(
                    {
                        "session": type(spark).__module__,
                        "refused": _refusal(spark),
                        "batch": _sum_of_batch(spark, options),
                        "stream": _sum_of_stream(spark, options, Path(directory)),
                    }
                ),
                flush=True,
            )
    finally:
        spark.stop()


def _refusal(spark: SparkSession) -> str:
    try:
        ShardCluster(spark, "a.b:create", members=1, root="/test/connect")
    except ConnectNotSupportedError as error:
        return str(error)
    return ""


def _sum_of_batch(spark: SparkSession, options: dict[str, str]) -> int:
    reading = spark.read.format("journal").schema("k STRING, n LONG").options(**options)
    (row,) = reading.load().selectExpr("sum(n) AS total").collect()
    return int(row.total)


def _sum_of_stream(spark: SparkSession, options: dict[str, str], directory: Path) -> int:
    reading = spark.readStream.format("journal").schema("k STRING, n LONG").options(**options)
    table = directory / "table"
    writing = reading.option("start", "earliest").load().writeStream.format("parquet")
    query = (
        writing.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(table))
    )
    assert query.awaitTermination(500), "the stream did not end"
    (row,) = spark.read.parquet(str(table)).selectExpr("sum(n) AS total").collect()
    return int(row.total)


if __name__ == "__main__":
    main()
