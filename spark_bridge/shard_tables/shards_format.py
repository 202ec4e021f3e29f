"""The format "shards": one row a replica, with the shard's spec, its member, its status and its progress.

    spark.read.format("shards").option("address", "http://127.0.0.1:8080").option("selector", "app=counts").load()

The driver asks one member for a listing; a task asks each member for its replicas' progress. The columns of a member
that cannot be reached stay empty; `option("progress", "false")` asks none.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from broadsheet.spark_bridge.shard_tables.access import (
    access_of,
    options_of,
    selector_of,
)
from broadsheet.spark_bridge.shard_tables.columns import require_columns

_KNOWN = ("selector", "progress")

_SOURCE = StructType([StructField("journal", StringType()), StructField("min_offset", LongType())])
_OFFSETS = MapType(StringType(), LongType())
SHARDS_TABLE: Final = StructType(
    [
        StructField("shard_id", StringType()),
        StructField("disable", BooleanType()),
        StructField("hot_standbys", IntegerType()),
        StructField("sources", ArrayType(_SOURCE)),
        StructField("labels", MapType(StringType(), ArrayType(StringType()))),
        StructField("recovery_log_prefix", StringType()),
        StructField("hint_prefix", StringType()),
        StructField("hint_backups", IntegerType()),
        StructField("min_txn_seconds", DoubleType()),
        StructField("max_txn_seconds", DoubleType()),
        StructField("create_revision", LongType()),
        StructField("mod_revision", LongType()),
        StructField("zone", StringType()),
        StructField("member", StringType()),
        StructField("endpoint", StringType()),
        StructField("slot", IntegerType()),
        StructField("status", StringType()),
        StructField("lag_seconds", DoubleType()),
        StructField("bytes_behind", LongType()),
        StructField("read_through", _OFFSETS),
        StructField("publish_at", _OFFSETS),
        StructField("last_error", StringType()),
        StructField("errors", ArrayType(StringType())),
        StructField("revision", LongType()),
    ]
)


class ShardsFormat(DataSource):
    """The format of shards and their replicas."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "shards"

    def schema(self) -> StructType:
        """Return all columns."""
        return SHARDS_TABLE

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch DataFrame."""
        given = options_of(self.options, known=_KNOWN)
        access, selector = access_of(given), selector_of(given)
        progress = given.flag("progress", default=True)
        require_columns(schema, SHARDS_TABLE, name=self.name())
        # Here, because every question of Spark about any format starts a Python that imports this module.
        from broadsheet.spark_bridge.shard_tables.shard_listing import ShardsReader

        return ShardsReader(access, selector, schema, progress=progress)
