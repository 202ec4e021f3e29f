"""Columns of an import as the values that state variables take.

Arrow gives the entries of a map as a list of pairs, and a struct as a dict; a variable takes a map as a dict, and the
fields of its own value as a tuple.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def rows_of_struct(column: pa.Array) -> list[tuple[Any, ...]]:
    """Return the rows of a struct column without nulls as tuples of its fields; shape (len(column),)."""
    fields = [values_of(field) for field in column.flatten()]
    return list(zip(*fields, strict=True))


def values_of(column: pa.Array) -> list[Any]:
    """Return the values of a column, with maps as dicts."""
    values: list[Any] = column.to_pylist()
    if not _has_map(column.type):
        return values
    return [_with_dicts(value, column.type) for value in values]


def _has_map(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return True
    return any(_has_map(type_.field(place).type) for place in range(type_.num_fields))


def _with_dicts(value: Any, type_: pa.DataType) -> Any:
    if value is None or not _has_map(type_):
        return value
    if pa.types.is_map(type_):
        return {
            _with_dicts(name, type_.key_type): _with_dicts(each, type_.item_type)
            for name, each in value
        }
    if pa.types.is_struct(type_):
        return {name: _with_dicts(each, type_.field(name).type) for name, each in value.items()}
    return _items_with_dicts(value, type_.value_type)


def _items_with_dicts(items: Sequence[Any], type_: pa.DataType) -> list[Any]:
    return [_with_dicts(each, type_) for each in items]
