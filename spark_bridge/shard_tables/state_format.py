"""The format "shard_state": the rows of a table of each shard's store, as of the shard's last commit.

    spark.read.format("shard_state").option("address", "http://127.0.0.1:8080").option("table", "counts").load()

Each partition is a shard, streamed as Arrow from its primary; or, with `maxStalenessSeconds`, from a standby that has
everything committed up to so long ago. Columns are those of the first shard; `.schema(...)` selects or casts them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broadsheet.spark_bridge.format_options import FormatOptions, OptionError
from broadsheet.spark_bridge.shard_tables.access import (
    ClusterAccess,
    StateReadError,
    access_of,
    options_of,
    selector_of,
)
from broadsheet.spark_bridge.shard_tables.columns import (
    chosen_table,
    fitted,
    require_columns_of,
    table_columns,
    with_metadata,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.spark_bridge.shard_tables.state_scan import ScanOrder
    from broadsheet.wire.shard_pb2 import ListResponse


PATIENCE_SECONDS: Final = 60.0
"""Default wait for a member that answers for a shard: a fail-over takes a second, a recovery some more."""
_KNOWN: Final = ("selector", "table", "maxStalenessSeconds", "includeMetadata", "timeoutSeconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFormatOptions:
    """Options of a read of shards' state."""

    access: ClusterAccess
    selector: str
    table: str
    """Name of the table; empty: the stores' only one."""
    max_staleness_seconds: float
    """0: only primaries answer."""
    include_metadata: bool
    patience_seconds: float


def state_options(options: Mapping[str, str]) -> StateFormatOptions:
    """Return the options of a read.

    Raises:
        OptionError: one is unknown, missing or wrong.
    """
    given = options_of(options, known=_KNOWN)
    return StateFormatOptions(
        access=access_of(given),
        selector=selector_of(given),
        table=given.text_or_none("table") or "",
        max_staleness_seconds=_seconds(given, "maxStalenessSeconds", default=0.0),
        include_metadata=given.flag("includeMetadata"),
        patience_seconds=_seconds(given, "timeoutSeconds", default=PATIENCE_SECONDS),
    )


def _seconds(given: FormatOptions, name: str, *, default: float) -> float:
    text = given.text_or_none(name)
    if text is None:
        return default
    expected = "a number of seconds, at least 0, e.g. 2.5"
    try:
        seconds = float(text)
    except ValueError:
        raise OptionError(name, expected, got=text) from None
    if not math.isfinite(seconds) or seconds < 0:
        raise OptionError(name, expected, got=text)
    return seconds


class ShardStateFormat(DataSource):
    """The format of shards' state."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "shard_state"

    def schema(self) -> StructType:
        """Return the columns of the first shard's table."""
        from pyspark.sql.pandas.types import from_arrow_schema

        options = state_options(self.options)
        shards = _listed(options)
        if not shards:
            raise OptionError(
                "selector", "one that chooses a shard, or a schema", got=options.selector
            )
        tables = _described(options, shards[0])
        names = {name: schema.names for name, schema in tables.items()}
        table: StructType = from_arrow_schema(tables[chosen_table(names, options.table)])
        return with_metadata(table) if options.include_metadata else table

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch DataFrame."""
        return ShardStateReader(state_options(self.options), schema)


@dataclass
class ShardPartition(InputPartition):
    """A shard, and its route as the driver saw it."""

    shard_id: str
    route: bytes


class ShardStateReader(DataSourceReader):
    """Reads a partition a shard."""

    def __init__(self, options: StateFormatOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = table_columns(schema, include_metadata=options.include_metadata)

    def partitions(self) -> Sequence[InputPartition]:
        """List the shards. A wrong table fails here, because tasks would be retried."""
        shards = _listed(self._options)
        if shards:
            tables = _described(self._options, shards[0])
            names = {name: schema.names for name, schema in tables.items()}
            require_columns_of(names, self._options.table, self._columns)
        return [
            ShardPartition(listed.spec.id, listed.route.SerializeToString()) for listed in shards
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Stream one shard's rows."""
        assert isinstance(partition, ShardPartition), "as planned"
        from broadsheet.spark_bridge.arrow_schema import arrow_schema_of
        from broadsheet.spark_bridge.shard_tables.state_scan import scan_batches

        wanted = arrow_schema_of(self._schema)
        order = _order(self._options, partition.shard_id, partition.route, self._columns)
        for provenance, batch in scan_batches(order):
            yield fitted(batch, wanted, provenance)


def _listed(options: StateFormatOptions) -> list[ListResponse.Shard]:
    """Return the selected shards.

    Raises:
        StateReadError: one is disabled.
    """
    from broadsheet.spark_bridge.shard_tables.shard_listing import list_shards

    listing = asyncio.run(list_shards(options.access, options.selector))
    for listed in listing.shards:
        if listed.spec.disable:
            detail = "it is disabled, so no member holds it: select others by the option selector"
            raise StateReadError(listed.spec.id, detail)
    return list(listing.shards)


def _described(options: StateFormatOptions, listed: ListResponse.Shard) -> dict[str, pa.Schema]:
    import pyarrow as pa

    from broadsheet.spark_bridge.shard_tables.state_scan import describe_first

    route = listed.route.SerializeToString()
    described = describe_first(_order(options, listed.spec.id, route, ()))
    try:
        return {
            table.name: pa.ipc.read_schema(pa.py_buffer(table.arrow_schema))
            for table in described.tables
        }
    except (pa.ArrowException, OSError) as error:
        raise StateReadError(listed.spec.id, f"its member sent no schema: {error}") from error


def _order(
    options: StateFormatOptions, shard_id: str, route: bytes, columns: Sequence[str]
) -> ScanOrder:
    from broadsheet.spark_bridge.shard_tables.state_scan import ScanOrder

    return ScanOrder(
        access=options.access,
        shard_id=shard_id,
        route=route,
        table=options.table,
        columns=tuple(columns),
        max_staleness_seconds=options.max_staleness_seconds,
        patience_seconds=options.patience_seconds,
    )
