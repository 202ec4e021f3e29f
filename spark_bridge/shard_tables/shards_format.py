"""The format "shards": one row a replica, with the shard's spec, its place, its status, and how far it has come.

    spark.read.format("shards").option("address", "http://127.0.0.1:8080").option("selector", "app=counts").load()

The driver asks one member for a listing; a task asks each member how far its replicas have come. One that cannot be
reached leaves those columns empty; `option("progress", "false")` asks none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_bridge.shard_tables.access import (
    ClusterAccess,
    access_of,
    options_of,
    selector_of,
)
from spark_bridge.shard_tables.columns import batches_of, require_columns
from spark_bridge.shard_tables.shards_columns import SHARDS_TABLE

if TYPE_CHECKING:
    import pyarrow as pa

_KNOWN = ("selector", "progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsOptions:
    """Which shards, and how much of them."""

    access: ClusterAccess
    selector: str
    progress: bool


class ShardsFormat(DataSource):
    """Reads shards and their replicas."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "shards"

    def schema(self) -> StructType:
        """Return all columns."""
        return SHARDS_TABLE

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads them once."""
        given = options_of(self.options, known=_KNOWN)
        options = ShardsOptions(
            access=access_of(given),
            selector=selector_of(given),
            progress=given.flag("progress", default=True),
        )
        require_columns(schema, SHARDS_TABLE, name=self.name())
        return ShardsReader(options, schema)


@dataclass
class ListedPartition(InputPartition):
    """A listing, as the driver got it."""

    listing: bytes


class ShardsReader(DataSourceReader):
    """Reads the table in one task."""

    def __init__(self, options: ShardsOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """List the shards, on the driver: what is wrong must not be tried again by every attempt of a task."""
        from spark_bridge.shard_tables.listing import list_shards

        listing = asyncio.run(list_shards(self._options.access, self._options.selector))
        return [ListedPartition(listing.SerializeToString())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Ask members, and yield batches."""
        assert isinstance(partition, ListedPartition), "as planned"
        from consumer.protocol.shard_pb2 import ListResponse
        from spark_bridge.shard_tables.listing import progress_of
        from spark_bridge.shard_tables.shard_rows import shard_rows

        options = self._options
        listing = ListResponse.FromString(partition.listing)
        progress = (
            asyncio.run(progress_of(options.access, options.selector, listing))
            if options.progress
            else {}
        )
        rows = list(shard_rows(listing, progress))
        batches: Iterator[pa.RecordBatch] = batches_of(rows, self._schema)
        return batches
