"""Brings the alerts that shards publish back into Spark, as a stream of rows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broadsheet.spark_bridge import Services

ALERT_COLUMNS = (
    "aircraft STRING, carrier STRING, flight INT, origin STRING, destination STRING, scheduled_at LONG, "
    "late_minutes INT"
)


def start_alert_stream(spark: SparkSession, services: Services, directory: Path) -> StreamingQuery:
    """Start a query that writes every committed alert into files of `directory`, once.

    Args:
        spark: Has the project's formats; see `broadsheet.spark_bridge.formats.register_formats`.
        services: Where the journals are.
        directory: Holds the files, and the query's checkpoint: the same one continues where it was.
    """
    return (
        spark.readStream.format("journal")
        .schema(ALERT_COLUMNS)
        .option("address", services.broker_address)
        .option("selector", "name:prefix=flights/alerts/")
        .load()
        .writeStream.format("parquet")
        .option("path", str(directory / "rows"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )


def read_alerts(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the alerts that the stream has written so far."""
    return spark.read.schema(ALERT_COLUMNS).parquet(str(directory / "rows"))
