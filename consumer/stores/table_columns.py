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

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

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
    names = rows.column_names
    for name in names:
        if names.count(name) > 1:
            raise ValidationError(name, "expected one column of this name")
    schema = table_schema(rows.schema)
    columns, fields = [], []
    for field in schema:
        wanted = _agreed(field, kept)
        columns.append(_converted(rows.column(field.name), wanted, field.name))
        fields.append(pa.field(field.name, wanted))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def adds_columns(kept: pa.Schema, rows: pa.Schema) -> bool:
    """Tell whether rows of `table_rows` have columns, or nested fields, that a table lacks."""
    return any(
        kept.get_field_index(each.name) < 0 or _adds_fields(kept.field(each.name).type, each.type)
        for each in rows
    )


def _adds_fields(had: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_struct(had):
        return any(
            had.get_field_index(each.name) < 0
            or _adds_fields(had.field(had.get_field_index(each.name)).type, each.type)
            for each in new
        )
    if pa.types.is_map(had):
        return _adds_fields(had.key_type, new.key_type) or _adds_fields(
            had.item_type, new.item_type
        )
    return pa.types.is_nested(had) and _adds_fields(had.value_type, new.value_type)


def united(before: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """Return the columns of several runs of rows of one transaction, which a table may lack.

    Raises:
        ValidationError: a column has types in the two of which none holds the values of both; it is named.
    """
    fields = {each.name: each for each in before}
    for each in rows:
        known = fields.get(each.name, each)
        try:
            pair = [pa.schema([known]), pa.schema([each])]
            fields[each.name] = pa.unify_schemas(pair, promote_options="permissive").field(0)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ValidationError(
                each.name,
                f"expected {known.type}, which rows before it in the transaction have, got {each.type}",
            ) from error
    return pa.schema(list(fields.values()))


def require_names_beside(kept: Iterable[str], rows: Iterable[str]) -> None:
    """Refuse names that a table takes for one, because they differ in their case alone.

    Raises:
        ValidationError: there are two; the later one is named.
    """
    known = {name.casefold(): name for name in kept}
    for name in rows:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise ValidationError(
                name, f"expected a name that differs from column {other!r} in more than its case"
            )


def require_paths(columns: Iterable[pa.Field]) -> None:
    """Refuse fields that Iceberg cannot tell apart: it knows each by its path, the names with dots between them.

    Raises:
        ValidationError: a field has no name, or the path of another one; it is named.
    """
    known: set[str] = set()
    for prefix, field in _fields_below("", columns):
        path = f"{prefix}{field.name}"
        if not field.name:
            raise ValidationError(
                f"{prefix}''",
                "expected a name, as Iceberg needs it for each field, got an empty one",
            )
        if path in known:
            raise ValidationError(
                path,
                "expected one field of this path, got two, of which one has a dot in its name: Iceberg would not tell "
                "them apart",
            )
        known.add(path)


def _fields_below(prefix: str, fields: Iterable[pa.Field]) -> Iterator[tuple[str, pa.Field]]:
    """Yield fields and all that are nested in them, with what is before their names in their paths."""
    types = pa.types
    for each in fields:
        yield prefix, each
        below, kind = f"{prefix}{each.name}.", each.type
        if types.is_struct(kind):
            yield from _fields_below(below, kind)
        elif types.is_map(kind):
            parts = [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
            yield from _fields_below(below, parts)
        elif _is_list(kind):
            yield from _fields_below(below, [pa.field("element", kind.value_type)])


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
    return _fitted(kept.field(index).type, field.type, field.name)


def _fitted(had: pa.DataType, new: pa.DataType, column: str) -> pa.DataType:
    """Return the table's type, with the nested fields of the rows' behind its own, if the rows' fits into it."""
    types = pa.types
    if had == new or (new, had) in _WIDENED:
        return had
    if types.is_struct(had) and types.is_struct(new):
        return _fitted_struct(had, new, column)
    if types.is_map(had) and types.is_map(new):
        key, item = had.key_field, had.item_field
        return pa.map_(
            key.with_type(_fitted(key.type, new.key_type, f"{column}.key")),
            item.with_type(_fitted(item.type, new.item_type, f"{column}.value")),
        )
    if _is_list(had) and _is_list(new):
        element = had.value_field
        return pa.list_(
            element.with_type(_fitted(element.type, new.value_type, f"{column}.element"))
        )
    # Values may fit all the same: a number that is too large is refused by the conversion, and named.
    if types.is_integer(had) and types.is_integer(new):
        return had
    if types.is_floating(had) and types.is_integer(new):
        return had
    if types.is_timestamp(had) and types.is_timestamp(new) and had.tz == new.tz:
        return had
    if table_type(had, column) == table_type(new, column):
        return had  # A table's reader may have it in another size.
    raise ValidationError(column, f"expected {had}, which the table's column has, got {new}")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _fitted_struct(had: pa.DataType, new: pa.DataType, column: str) -> pa.DataType:
    ours = [had.field(at) for at in range(had.num_fields)]
    fields = [
        field
        if (at := new.get_field_index(field.name)) < 0
        else field.with_type(_fitted(field.type, new.field(at).type, f"{column}.{field.name}"))
        for field in ours
    ]
    names = {field.name for field in ours}
    return pa.struct([*fields, *(each for each in new if each.name not in names)])


def _converted(column: Any, wanted: pa.DataType, name: str) -> Any:  # Any: Arrow has no types here.
    try:
        return column.cast(_fine_type(column.type)).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValidationError(
            name, f"expected values that fit {wanted}, the column's type in the table: {error}"
        ) from error


def _fine_type(kind: pa.DataType) -> pa.DataType:
    """Return the type by whose values a type's become those of `table_type`, also within lists, maps and structs."""
    types = pa.types
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_float16(kind):
        return pa.float32()
    if types.is_dictionary(kind):
        return _fine_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([each.with_type(_fine_type(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(_fine_type(kind.key_type), _fine_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_fine_type(kind.value_type))
    return kind
