"""Registers the project's formats with a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource

from broadsheet.spark_bridge.shard_tables.moves_format import ShardMovesFormat
from broadsheet.spark_bridge.shard_tables.shards_format import ShardsFormat
from broadsheet.spark_bridge.shard_tables.state_format import ShardStateFormat
from broadsheet.spark_bridge.spark_version import JOURNALS_MIN, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


_JOURNALS = 'the format "journal"'


class JournalFormat(DataSource):
    """The format "journal": journals of messages as DataFrames, and DataFrames as messages of journals.

        spark.read.format("journal").option("address", "http://127.0.0.1:8081").option("selector", "name=a/b").load()

    Spark pickles the class by name and instantiates it in a new Python process for each question. Neither this module
    nor its imports at the top may import gRPC, because such a process may be forked from one that lives on.
    `broadsheet.spark_bridge.journal_source` reads, `broadsheet.spark_bridge.journal_sink` writes.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "journal"

    def schema(self) -> StructType | str:
        """Return the columns of the selected messages, for a caller that names none."""
        require_spark(_JOURNALS, JOURNALS_MIN)
        from broadsheet.spark_bridge.journal_source.schema_inference import infer_schema

        return infer_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch DataFrame."""
        require_spark(_JOURNALS, JOURNALS_MIN)
        from broadsheet.spark_bridge.journal_source.readers import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream of micro-batches."""
        require_spark(_JOURNALS, JOURNALS_MIN)
        from broadsheet.spark_bridge.journal_source.readers import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer that publishes a DataFrame once."""
        require_spark(_JOURNALS, JOURNALS_MIN)
        from broadsheet.spark_bridge.journal_sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer that publishes a stream of micro-batches."""
        require_spark(_JOURNALS, JOURNALS_MIN)
        from broadsheet.spark_bridge.journal_sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


FORMATS: tuple[type[DataSource], ...] = (
    JournalFormat,
    ShardsFormat,
    ShardStateFormat,
    ShardMovesFormat,
)


def register_formats(spark: SparkSession) -> None:
    """Make the formats available by name to `spark.read.format(...)` and similar calls. Idempotent.

    Spark finds them by itself if the driver's Python has Broadsheet (`broadsheet.spark_bridge.discovery`). A
    server of Spark Connect may lack it, and so may a driver that has only our archive.
    """
    for format_ in FORMATS:
        try:
            spark.dataSource.register(format_)
        except AnalysisException as error:
            # Versions of Spark differ in whether a format that was found may be registered over it.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
