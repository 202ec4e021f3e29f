"""Rows of one step of a stream: columns, and the event time of each row beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from broadsheet.consumer.keyed.event_times import Times
from broadsheet.runtime.errors import ValidationError

NO_TIME: Final = np.iinfo(np.int64).min
"""Event time of a row that has none."""
FOREVER: Final = (1 << 62) - 1
"""Later than any time."""
NEVER_LATE: Final = -(1 << 62)
"""A watermark before any time."""
Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TimedRows:
    """A table, and epoch milliseconds of each row."""

    table: pa.Table
    times: Times

    def __len__(self) -> int:
        return len(self.times)

    def pick(self, kept: NDArray[Any]) -> TimedRows:
        """Return some rows: a mask, or positions."""
        if kept.dtype == np.bool_:
            kept = np.flatnonzero(kept)
        return TimedRows(self.table.take(pa.array(kept)), self.times[kept])


def no_rows(schema: pa.Schema) -> TimedRows:
    """Return no rows of a schema."""
    return TimedRows(schema.empty_table(), np.zeros(0, np.int64))


def joined(parts: Sequence[TimedRows], schema: pa.Schema) -> TimedRows:
    """Return the rows of all parts, in order."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return no_rows(schema)
    return TimedRows(
        pa.concat_tables([part.table for part in filled]),
        np.concatenate([part.times for part in filled]),
    )


# -- groups


@dataclass(frozen=True, slots=True)
class Groups:
    """A number for each row, equal for equal values; numbers are dense, in the order of their first rows."""

    codes: Codes
    """Shape (rows,)."""
    firsts: Codes
    """The first row of each group, shape (groups,)."""

    def __len__(self) -> int:
        return len(self.firsts)


def groups_of(columns: Sequence[Any], rows: int) -> Groups:
    """Group rows by columns: Arrow's, or numpy's of integers. Null is a value; without columns there is one group."""
    codes: Codes = np.zeros(rows, np.int64)
    size = 1 if rows else 0
    for column in columns:
        indices, width = _dictionary_codes(column)
        if size <= 1:
            codes, size = indices, width
        elif width > 1:
            # Dense again after each column, so that products of sizes stay far below 64 bits.
            codes, size = _dictionary_codes(codes * width + indices)
    return Groups(codes, first_rows(codes, size))


def first_rows(codes: Codes, size: int) -> Codes:
    """Return the first row of each code; of several assignments to one place numpy keeps the last."""
    firsts = np.zeros(size, np.int64)
    firsts[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return firsts


def _dictionary_codes(column: Any) -> tuple[Codes, int]:
    array = flat(column) if isinstance(column, pa.ChunkedArray) else pa.array(column)
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    indices: Codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return indices, len(encoded.dictionary)


def flat(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    chunk = column.combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):
        return pa.concat_arrays(chunk.chunks) if chunk.num_chunks else pa.array([], column.type)
    return chunk


# -- values as state keeps them


def stored_type(name: str, type_: pa.DataType) -> pa.DataType:
    """Return the type by which state keeps values: one that MessagePack has.

    Raises:
        ValidationError: state cannot keep such values; the error names the column.
    """
    types = pa.types
    if types.is_temporal(type_) and not types.is_interval(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    if types.is_decimal128(type_):
        return pa.string()
    if (
        types.is_integer(type_)
        or (types.is_floating(type_) and not types.is_float16(type_))
        or types.is_boolean(type_)
        or types.is_string(type_)
        or types.is_binary(type_)
    ):
        return type_
    raise ValidationError(
        name, f"expected numbers, text, bytes, decimal128, dates or times, got {type_}"
    )


def as_stored(column: Any, type_: pa.DataType) -> Any:
    """Return a column as state keeps it; see `stored_type`."""
    return column if column.type == type_ else column.cast(type_)


def from_stored(values: Sequence[Any], stored: pa.DataType, type_: pa.DataType) -> pa.Array:
    """Return values of state as a column."""
    array = pa.array(values, stored)
    return array if stored == type_ else array.cast(type_)
