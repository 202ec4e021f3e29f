"""Arrow columns of few types, made of columns of many: what writers of text have to know.

Texts, binaries and lists have several layouts in Arrow; numbers several widths; and any value may be in a dictionary.
Needs pyarrow (`broadsheet[spark]`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

_KEPT = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
)
_TEXTS = (pa.types.is_large_string, pa.types.is_string_view)
_BINARIES = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_LISTS = (pa.types.is_large_list, pa.types.is_fixed_size_list)
"""Not views of lists, of which Arrow casts a slice to the elements of other rows."""


@lru_cache(maxsize=256)
def plain_type(kind: Any, *, widens: bool = True) -> Any:
    """Return the plain type of the same values; None if there is none, such as for durations.

    Args:
        kind: Any type.
        widens: Whether floating-point numbers become 64 bits wide, as they are in Python.
    """
    if any(is_kind(kind) for is_kind in _KEPT):
        return kind
    if pa.types.is_floating(kind):
        # Arrow and orjson write no numbers of 16 bits.
        return pa.float64() if widens or pa.types.is_float16(kind) else kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type, widens=widens)
    if any(is_kind(kind) for is_kind in _TEXTS):
        return pa.string()
    if any(is_kind(kind) for is_kind in _BINARIES):
        return pa.binary()
    if pa.types.is_date64(kind):
        return pa.date32()
    return _nested(kind, widens=widens)


def _nested(kind: Any, *, widens: bool) -> Any:
    is_list = pa.types.is_list(kind)
    if is_list or any(is_kind(kind) for is_kind in _LISTS):
        parts = [kind.value_field]
    elif pa.types.is_map(kind):
        parts = [kind.key_field, kind.item_field]
    # A struct with two fields of one name is no dict.
    elif pa.types.is_struct(kind) and len({field.name for field in kind}) == kind.num_fields:
        parts = list(kind)
    else:
        return None
    plain = [plain_type(part.type, widens=widens) for part in parts]
    if None in plain:
        return None
    # The same type, names of fields included, spares a conversion.
    if plain == [part.type for part in parts] and not any(is_kind(kind) for is_kind in _LISTS):
        return kind
    fields = [part.with_type(each) for part, each in zip(parts, plain, strict=True)]
    if pa.types.is_map(kind):
        return pa.map_(*fields)
    return pa.struct(fields) if pa.types.is_struct(kind) else pa.list_(fields[0])


def plain_column(column: Any, kind: Any) -> Any:
    """Return a column as its plain type; None if there is no conversion.

    Args:
        column: The values.
        kind: Their plain type, or None.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit, such as a time with parts of a microsecond.
    """
    if kind is None or column.type == kind:
        return column if kind is not None else None
    try:
        return column.cast(kind)
    except pa.ArrowNotImplementedError:
        return None


def taken(rows: pa.RecordBatch, places: Any) -> pa.RecordBatch:
    """Return the rows at some places, an Arrow array of indices; their types are kept."""
    try:
        return rows.take(places)
    except pa.ArrowNotImplementedError:
        columns = [_taken(column, places) for column in rows.columns]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _taken(column: Any, places: Any) -> Any:
    try:
        return column.take(places)
    except pa.ArrowNotImplementedError:
        # Views have no kernel for it, as of Arrow 26.
        return pa.concat_arrays([column.slice(place, 1) for place in places.to_pylist()])
