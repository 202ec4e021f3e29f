"""Columns of lake tables: the types that Delta and Iceberg both keep, and how columns of rows become them.

Both refuse some of Arrow's types only when a large value arrives, and each refuses others at once. So rows are
converted before either sees them, to types that keep every value:

    timestamp(ns)        microseconds, where no digits are lost      uint8, uint16, uint32   int64
    timestamp(…, zone)   microseconds in UTC                         uint64                  decimal(20, 0)
    duration             int64, microseconds                         float16                 float32
    date64               date32                                      time32, time64          int64, microseconds
    dictionary, views, large types: plain ones; null: left out until a value shows the type
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.runtime.errors import ValidationError

_DECIMAL_DIGITS: Final = 20
"""Of the largest unsigned integer of 64 bits."""


def table_type(kind: pa.DataType, column: str = "") -> pa.DataType | None:
    """Return the type that tables keep for a type of rows; None: a column of nulls, which has none yet.

    Args:
        kind: Arrow's type.
        column: Named in errors, with dots between nested names.

    Raises:
        ValidationError: no table keeps such values.
    """
    types = pa.types
    if types.is_null(kind):
        return None
    if types.is_dictionary(kind):
        return table_type(kind.value_type, column)
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if types.is_struct(kind):
        kept = ((each, table_type(each.type, f"{column}.{each.name}")) for each in kind)
        fields = [pa.field(each.name, found) for each, found in kept if found is not None]
        return pa.struct(fields) if fields else None
    if types.is_map(kind):
        key = table_type(kind.key_type, f"{column}.key")
        item = table_type(kind.item_type, f"{column}.value")
        return None if key is None or item is None else pa.map_(key, item)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = table_type(kind.value_type, f"{column}.element")
        return None if item is None else pa.list_(item)
    found = _plain_type(kind)
    if found is None:
        raise ValidationError(column, f"expected a type that lake tables keep, got {kind}")
    return found


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_fixed_size_binary(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_uint64(kind):
        return pa.decimal128(_DECIMAL_DIGITS, 0)
    if types.is_unsigned_integer(kind) or types.is_int64(kind) or types.is_duration(kind):
        return pa.int64()
    if types.is_time(kind):
        return pa.int64()
    if types.is_signed_integer(kind):
        return pa.int32()
    if types.is_float16(kind) or types.is_float32(kind):
        return pa.float32()
    if types.is_date(kind):
        return pa.date32()
    if types.is_boolean(kind) or types.is_float64(kind) or types.is_decimal128(kind):
        return kind
    return None


def table_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns that tables keep of rows; columns of nulls are left out.

    Raises:
        ValidationError: no table keeps the values of a column, which is named.
    """
    found = ((each.name, table_type(each.type, each.name)) for each in schema)
    return pa.schema([pa.field(name, kind) for name, kind in found if kind is not None])


def table_rows(rows: pa.Table, kept: pa.Schema | None = None) -> pa.Table:
    """Return rows with the types that tables keep.

    Args:
        rows: Of any types.
        kept: Columns that the table has; theirs are the types, if they are wider. None: there are none yet.

    Raises:
        ValidationError: a value would lose digits, or does not fit the table's column; the column is named.
    """
    schema = table_schema(rows.schema)
    columns, fields = [], []
    for field in schema:
        wanted = _agreed(field, kept)
        columns.append(_converted(rows.column(field.name), wanted, field.name))
        fields.append(pa.field(field.name, wanted))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def added_columns(kept: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table lacks."""
    return [each for each in rows if kept.get_field_index(each.name) < 0]


_WIDENED: Final = (
    (pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.int32(), pa.float64()),
)


def _agreed(field: pa.Field, kept: pa.Schema | None) -> pa.DataType:
    """Return the type of a column that the table has, if the rows' fits into it; else the rows'."""
    index = -1 if kept is None else kept.get_field_index(field.name)
    if kept is None or index < 0:
        return field.type
    had = kept.field(index).type
    if had == field.type or (field.type, had) in _WIDENED or pa.types.is_nested(had):
        return had
    # Values may fit all the same: a number that is too large is refused by the conversion, and named.
    if pa.types.is_integer(had) and pa.types.is_integer(field.type):
        return had
    if pa.types.is_floating(had) and pa.types.is_integer(field.type):
        return had
    if pa.types.is_timestamp(had) and pa.types.is_timestamp(field.type) and had.tz == field.type.tz:
        return had
    raise ValidationError(
        field.name, f"expected {had}, which the table's column has, got {field.type}"
    )


def _converted(column: Any, wanted: pa.DataType, name: str) -> Any:  # Any: Arrow has no types here.
    kind = column.type
    try:
        if pa.types.is_time(kind) or pa.types.is_duration(kind):
            fine = pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")
            return column.cast(fine).cast(pa.int64())
        if pa.types.is_float16(kind) or pa.types.is_dictionary(kind):
            plain = pa.float32() if pa.types.is_float16(kind) else kind.value_type
            return pc.cast(column, plain).cast(wanted)
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValidationError(
            name, f"expected values that fit {wanted}, the column's type in the table: {error}"
        ) from error
