"""Rows as Arrow batches with the columns that Spark wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broadsheet.spark_bridge.format_options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ROWS_PER_BATCH = 10_000


def batches_of(rows: Sequence[Mapping[str, Any]], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield rows, dictionaries of values by column, as batches of `schema`."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    for begin in range(0, len(rows), ROWS_PER_BATCH):
        part = rows[begin : begin + ROWS_PER_BATCH]
        yield pa.RecordBatch.from_pylist(list(part), schema=arrow_schema)


def require_columns(schema: StructType, table: StructType, *, name: str) -> None:
    """Check the columns that a caller wants of a table of fixed columns.

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
