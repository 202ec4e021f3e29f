"""Runs the application on Spark: members on executors, DataFrames in and out.

python -m hello_spark.run --master "local[4]"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from broadsheet.spark_bridge import ShardCluster, register_formats, start_session
from pyspark.sql import DataFrame, SparkSession

ROOT = "/broadsheet/hello_spark"
PROJECT = Path(__file__).parents[1]
SHARDS = ("hello_spark/part-000", "hello_spark/part-001")
EVENTS = "name:prefix=hello_spark/events/"
COUNTS = "name=hello_spark/counts"


def publish(cluster: ShardCluster, events: DataFrame) -> None:
    """Publish rows as messages, exactly once: a key always goes to the same journal."""
    (
        events.write.format("journal")
        .mode("append")
        .option("address", cluster.services.broker_address)
        .option("selector", EVENTS)
        .option("etcd", ",".join(cluster.services.etcd.endpoints))
        .option("root", ROOT)
        .option("key", "key")
        .option("publication", "events-1")
        .save()
    )


def read_counts(spark: SparkSession, cluster: ShardCluster) -> DataFrame:
    """Return the counts that were published, the greatest of each key."""
    published = (
        spark.read.format("journal")
        .option("address", cluster.services.broker_address)
        .option("selector", COUNTS)
        .option("schema", "key STRING, count BIGINT")
        .load()
    )
    return published.groupBy("key").max("count").withColumnRenamed("max(count)", "count")


def run(
    spark: SparkSession, *, etcd: str | None = None, broker: str | None = None
) -> dict[str, int]:
    """Count 1,000 messages; return the counts by key."""
    register_formats(spark)
    with ShardCluster(
        spark,
        "hello_spark.app:Counter",
        members=2,
        root=ROOT,
        etcd=None if etcd is None else etcd.split(","),
        broker=broker,
    ) as cluster:
        cluster.apply_files(journals=PROJECT / "journals.yaml", specs=PROJECT / "shards.yaml")
        cluster.wait_for_primary(SHARDS)
        publish(cluster, spark.range(1000).selectExpr("concat('key-', id % 3) AS key"))
        cluster.wait_read_through(SHARDS)
        return {row["key"]: row["count"] for row in read_counts(spark, cluster).collect()}


def main() -> None:
    """Run it once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", default="local[4]")
    parser.add_argument("--etcd", help="HOST:PORT,…; one is started on this machine without it")
    parser.add_argument("--broker", help="http://HOST:PORT; one is started here without it")
    options = parser.parse_args()
    conf = {"spark.ui.showConsoleProgress": "false"}
    spark = start_session(options.master, app_name="hello_spark", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for key, count in sorted(run(spark, etcd=options.etcd, broker=options.broker).items()):
            print(f"{key}  {count}")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
