"""Rows that handlers return, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from broadsheet.consumer.keyed.row_types import StateRowType
from broadsheet.runtime.errors import ValidationError

_NO_INTEGERS: Final = frozenset({bool, float, Decimal})


def output_table(rows: Sequence[Any], row_type: StateRowType) -> pa.Table:
    """Return rows as a table.

    Args:
        rows: Values of the type, at least one.
        row_type: Of the output.

    Raises:
        ValidationError: a row is no such value, or one of its fields does not fit; the error names the column.
    """
    schema = row_type.schema
    try:
        columns = list(zip(*map(row_type.fields_of, rows), strict=True))
    except ValidationError as error:
        raise error.under("output") from error
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        # Arrow would cut a fraction off in silence.
        if pa.types.is_integer(field.type) and (others := set(map(type, column)) & _NO_INTEGERS):
            raise ValidationError(
                f"output.{field.name}", f"expected {field.type}, got {others.pop().__name__}"
            )
        try:
            array = pa.array(column, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ValidationError(
                f"output.{field.name}", f"expected {field.type}: {error}"
            ) from error
        if array.null_count and not field.nullable:
            raise ValidationError(f"output.{field.name}", "expected no null")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)
