"""Event times of rows: a column of timestamps, or of integers, as milliseconds since the Unix epoch."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Times = NDArray[np.int64]
_SECONDS_MAX: Final = (1 << 63) // 1000 - 1


def event_ms_of(column: pa.ChunkedArray) -> tuple[Times, NDArray[np.bool_]]:
    """Return event times in milliseconds, rounded down, and which are null; shape (rows,) both."""
    is_null = column.is_null().combine_chunks().to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(column.type):
        per_ms = {"s": 0, "ms": 1, "us": 1000, "ns": 1_000_000}[column.type.unit]
        numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
        if per_ms:
            return numbers // per_ms, is_null
        # A second beyond what milliseconds can tell stays beyond every bound, and does not wrap.
        return np.clip(numbers, -_SECONDS_MAX, _SECONDS_MAX) * 1000, is_null
    return pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), is_null


def is_time(type_: pa.DataType) -> bool:
    """Tell whether a column of this type can be a time."""
    return bool(pa.types.is_timestamp(type_) or pa.types.is_integer(type_))


def times_as(times: Times, type_: pa.DataType) -> pa.Array:
    """Return milliseconds as a column of a time's type; integers are milliseconds."""
    if pa.types.is_integer(type_):
        return pa.array(times, pa.int64()).cast(type_)
    stamps: Any = pa.array(times, pa.timestamp("ms", type_.tz))
    # Windows of coarser types end on whole units of theirs only if they are declared so: what is finer is cut.
    return stamps.cast(type_, safe=False)
