"""The columns of the table of replicas."""

from __future__ import annotations

from typing import Final

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
