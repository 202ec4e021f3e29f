"""Rows that handlers yield, as columns, converted as Spark's workers do: Rows by name, frames by name or position.

Source: PySpark's worker.py (`asDict(True)`, `RecordBatch.from_pylist`) and conversion.py (pandas to Arrow).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql.types import Row

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # it ships no types


def table_of_rows(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Return Rows as columns: by name, in any order; a field that a Row lacks is null, others are left out.

    Raises:
        AttributeError: a row is no Row.
        PySparkTypeError: a Row has no names.
        pa.ArrowException: a value does not fit its column.
    """
    if not _is_nested(schema) and _have_fields(rows, schema.names):
        columns = zip(*rows, strict=True)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema)
    return pa.Table.from_pylist([row.asDict(True) for row in rows], schema=schema)


def _is_nested(schema: pa.Schema) -> bool:
    return any(pa.types.is_nested(type_) for type_ in schema.types)


def _have_fields(rows: Sequence[Any], names: Sequence[str]) -> bool:
    """Tell whether all rows are Rows of exactly these fields, in this order."""
    width = len(names)
    return all(
        isinstance(row, Row) and len(row) == width and getattr(row, "__fields__", None) == names
        for row in rows
    )


def table_of_frames(frames: Sequence[Any], schema: pa.Schema, zone: ZoneInfo) -> pa.Table:
    """Return DataFrames as columns: by name if labels are text, else by position; one without columns has no rows.

    Raises:
        PySparkValueError: an element is no DataFrame, or a value does not fit its column.
        PySparkTypeError: a column has values of another type.
        KeyError: a column lacks.
    """
    import pandas as pd  # only applications that use it pay for it

    parts = []
    for frame in frames:
        if not isinstance(frame, pd.DataFrame):
            raise PySparkValueError(
                "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the specified "
                "return type is StructType."
            )
        if len(frame.columns):
            parts.append(_picked(frame, schema.names))
    if not parts:
        return schema.empty_table()
    if _are_alike(parts):
        parts = [pd.concat(parts, ignore_index=True)]
    batches = [
        pa.RecordBatch.from_arrays(
            [_column(part.iloc[:, place], field, zone) for place, field in enumerate(schema)],
            schema=schema,
        )
        for part in parts
    ]
    return pa.Table.from_batches(batches, schema=schema)


def _picked(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    if any(isinstance(label, str) for label in frame.columns):
        return frame[list(names)]
    return frame.iloc[:, : len(names)]


def _are_alike(parts: Sequence[pd.DataFrame]) -> bool:
    """Tell whether frames can be put together without a change of types."""
    types = [list(part.dtypes) for part in parts]
    labels = [list(part.columns) for part in parts]
    return all(each == types[0] for each in types) and all(each == labels[0] for each in labels)


def _column(series: pd.Series[Any], field: pa.Field, zone: ZoneInfo) -> pa.Array:
    import pandas as pd  # as above

    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    if pa.types.is_timestamp(field.type):
        series = _timestamps(series, zone, has_zone=bool(field.type.tz))
    mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
    try:
        try:
            return pa.Array.from_pandas(series, mask=mask, type=field.type, safe=True)
        except pa.ArrowInvalid:
            return pa.Array.from_pandas(series, mask=mask).cast(field.type, safe=True)
    except TypeError as error:
        raise PySparkTypeError(
            f"Cannot convert the output value of the column '{field.name}' with type '{series.dtype}' to the specified "
            f"return type of the column: '{field.type}'. Please check if the data types match and try again."
        ) from error
    except ValueError as error:
        raise PySparkValueError(
            f"Failed to convert the value of the column '{field.name}' with type '{series.dtype}' to Arrow type "
            f"'{field.type}'."
        ) from error


def _timestamps(series: pd.Series[Any], zone: ZoneInfo, *, has_zone: bool) -> pd.Series[Any]:
    """Return times in UTC, or without a zone; those without one are of the session's."""
    import pandas as pd  # as above

    times: Any = series if series.dtype != object else pd.to_datetime(series)
    if not pd.api.types.is_datetime64_any_dtype(times.dtype):
        return series
    if not has_zone:
        return times.dt.tz_convert(str(zone)).dt.tz_localize(None) if times.dt.tz else times
    if times.dt.tz is None:
        times = times.dt.tz_localize(str(zone), ambiguous=False, nonexistent="shift_forward")
    return times.dt.tz_convert("UTC")
