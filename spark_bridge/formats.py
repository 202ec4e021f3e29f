"""Tells a Spark session of the project's formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from broadsheet.spark_bridge.shard_tables.moves_format import ShardMovesFormat
from broadsheet.spark_bridge.shard_tables.shards_format import ShardsFormat
from broadsheet.spark_bridge.shard_tables.state_format import ShardStateFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

# The format "journal": journals of messages as DataFrames, and DataFrames as messages of journals.
#
#     spark.read.format("journal").option("address", "http://127.0.0.1:8081").option("selector", "name=a/b").load()
#
# Spark pickles the class by name and makes it anew in a Python process of its own for each question
# it asks. Nothing here or in what is imported at the top may import gRPC: such a process may be
# forked from one that lives on.


class JournalFormat(DataSource):
    """Reads committed messages (`broadsheet.spark_bridge.journal_source`) and publishes rows
    (`broadsheet.spark_bridge.journal_sink`).
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "journal"

    def schema(self) -> StructType | str:
        """Return the columns of the messages that the options select, if the caller names none."""
        from broadsheet.spark_bridge.journal_source.schema_inference import infer_schema

        return infer_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a DataFrame once."""
        from broadsheet.spark_bridge.journal_source.readers import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what reads a stream of micro-batches."""
        from broadsheet.spark_bridge.journal_source.readers import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what publishes a DataFrame once."""
        from broadsheet.spark_bridge.journal_sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return what publishes a stream of micro-batches."""
        from broadsheet.spark_bridge.journal_sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


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
