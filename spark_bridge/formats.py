"""Tells a Spark session of the project's formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bridge.journal_format import JournalFormat
from spark_bridge.shard_tables.moves_format import ShardMovesFormat
from spark_bridge.shard_tables.shards_format import ShardsFormat
from spark_bridge.shard_tables.state_format import ShardStateFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

FORMATS: tuple[type[DataSource], ...] = (
    JournalFormat,
    ShardsFormat,
    ShardStateFormat,
    ShardMovesFormat,
)


def register_formats(spark: SparkSession) -> None:
    """Let `spark.read.format(...)` and its like know the formats by name. Idempotent."""
    for format_ in FORMATS:
        spark.dataSource.register(format_)
