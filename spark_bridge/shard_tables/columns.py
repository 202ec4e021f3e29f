"""The columns of the tables that shards show: checked, fitted to Spark's types, and filled with rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from broadsheet.spark_bridge.format_options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 10_000

METADATA: Final = StructType(
    [
        StructField("_shard_id", StringType()),
        StructField("_member", StringType()),
        StructField("_slot", IntegerType()),
        StructField("_read_through", MapType(StringType(), LongType())),
        StructField("_staleness_seconds", DoubleType()),
    ]
)
"""Columns that `includeMetadata` adds: the fields of a `Provenance`."""


def batches_of(rows: Sequence[Mapping[str, Any]], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield rows, which are dictionaries of values by column, as batches of `schema`."""
    import pyarrow as pa

    from broadsheet.spark_bridge.arrow_schema import arrow_schema_of

    arrow_schema = arrow_schema_of(schema)
    for begin in range(0, len(rows), ROWS_PER_BATCH):
        part = rows[begin : begin + ROWS_PER_BATCH]
        yield pa.RecordBatch.from_pylist(list(part), schema=arrow_schema)


def require_columns(schema: StructType, table: StructType, *, name: str) -> None:
    """Check a caller's columns against a table of fixed columns.

    Raises:
        OptionError: the table has no such column, or has it with another type.
    """
    types = {field.name: field.dataType for field in table.fields}
    for field in schema.fields:
        if types.get(field.name) != field.dataType:
            raise OptionError(
                "schema",
                f"columns of {name}: {', '.join(f'{k} {v.simpleString()}' for k, v in types.items())}",
                got=f"{field.name} {field.dataType.simpleString()}",
            )


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of the rows of one scan."""

    shard_id: str
    member: str
    slot: int
    read_through: dict[str, int]
    staleness_seconds: float


def with_metadata(table: StructType) -> StructType:
    """Return a table's columns and those of the metadata.

    Raises:
        OptionError: the table has one of these names itself.
    """
    twice = set(table.names) & set(METADATA.names)
    if twice:
        raise OptionError(
            "includeMetadata",
            f"false, or a schema without {', '.join(sorted(twice))}, which the table has itself",
            got="true",
        )
    return StructType([*table.fields, *METADATA.fields])


def table_columns(schema: StructType, *, include_metadata: bool) -> list[str]:
    """Return the columns of a schema that belong to the table."""
    if not include_metadata:
        return list(schema.names)
    return [name for name in schema.names if name not in METADATA.names]


def require_columns_of(tables: dict[str, list[str]], table: str, columns: Sequence[str]) -> None:
    """Check that a store shows a table and its columns.

    Args:
        tables: The store's tables, each with its columns.
        table: Name of the table; empty: the only one.
        columns: The columns to read.

    Raises:
        OptionError: the table or a column does not exist.
    """
    names = tables[chosen_table(tables, table)]
    missing = [column for column in columns if column not in names]
    if missing:
        raise OptionError("schema", f"columns of {', '.join(names)}", got=missing[0])


def chosen_table(tables: dict[str, list[str]], table: str) -> str:
    """Return the table to read.

    Raises:
        OptionError: there is no such table; or several, and none is named.
    """
    if not table and len(tables) == 1:
        return next(iter(tables))
    if table not in tables:
        known = ", ".join(sorted(tables)) or "none: the shards' stores show no tables"
        raise OptionError("table", f"one of {known}", got=table or None)
    return table


def fitted(batch: pa.RecordBatch, wanted: pa.Schema, provenance: Provenance) -> pa.RecordBatch:
    """Return a batch with the columns and types that Spark wants.

    Args:
        batch: The batch that the shard sent.
        wanted: Columns of the batch, or of the metadata.
        provenance: Fills the latter.
    """
    import pyarrow as pa

    arrays = []
    for field in wanted:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(
                _repeated(getattr(provenance, field.name[1:]), field.type, batch.num_rows)
            )
            continue
        column = batch.column(index)
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _repeated(value: Any, type_: pa.DataType, count: int) -> pa.Array:
    import pyarrow as pa

    if isinstance(value, dict):
        value = sorted(value.items())
    return pa.repeat(pa.scalar(value, type=type_), count)
