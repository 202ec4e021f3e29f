"""Converts rows of Python values to Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.state_tables import ROWS_PER_BATCH

if TYPE_CHECKING:
    import pyarrow as pa


def row_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema, *, fqn: str) -> pa.RecordBatch:
    """Return rows, with values in the order of the columns, as one batch.

    Args:
        rows: At least one.
        schema: Of the batch.
        fqn: The shard, for errors.

    Raises:
        StoreError: a value does not fit its column.
    """
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    arrays = [_array(values, field, fqn) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def row_batches(
    rows: Iterable[Sequence[Any]], schema: pa.Schema, *, fqn: str
) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches."""
    iterator = iter(rows)
    while part := list(islice(iterator, ROWS_PER_BATCH)):
        yield row_batch(part, schema, fqn=fqn)


def _array(values: Sequence[Any], field: pa.Field, fqn: str) -> pa.Array:
    import pyarrow as pa

    try:
        if pa.types.is_boolean(field.type):
            # SQLite's booleans are the integers 0 and 1.
            values = [None if value is None else bool(value) for value in values]
        return pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StoreError(
            fqn,
            f"column {field.name} holds a value that is no {field.type} ({error}); read other columns, "
            "or show a view that converts it",
        ) from error
