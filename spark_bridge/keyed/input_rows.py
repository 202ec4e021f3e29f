"""The rows of a transaction as handlers get them: Rows, or pandas' DataFrames, as Spark's workers make them.

Columns become Python values once for all keys of a transaction; a key gets a slice.

Source: PySpark's worker.py (`Row(*names)` of `as_py` of each cell; frames of `itertuples`, so that pandas infers types
of columns once more) and §1 of its behaviour as it was run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import Row

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # it ships no types

Key = tuple[Any, ...]


class SparkRows:
    """Makes Rows of columns."""

    def __init__(self, zone: ZoneInfo) -> None:
        """Make none yet.

        Args:
            zone: Of timestamps, which handlers get with it.
        """
        self._zone = zone
        self._classes: dict[tuple[str, ...], type] = {}

    def __call__(self, table: pa.Table) -> list[Row]:
        """Return the rows of a table."""
        names = tuple(table.schema.names)
        row_class = self._classes.get(names)
        if row_class is None:
            row_class = self._classes[names] = _row_class(names)
        columns = [in_zone(column, self._zone).to_pylist() for column in table.columns]
        make: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, row_class)
        return list(map(make, zip(*columns, strict=True)))


def _row_class(names: tuple[str, ...]) -> type:
    """Return a class of Rows with these fields, whose attributes cost no search by name."""
    properties = {
        name: property(itemgetter(place))
        for place, name in enumerate(names)
        if name.isidentifier() and not hasattr(Row, name)
    }
    return type("Row", (Row,), {**properties, "__slots__": (), "__fields__": list(names)})


def in_zone(column: pa.ChunkedArray, zone: ZoneInfo) -> pa.ChunkedArray:
    """Return a column, or its timestamps in a zone."""
    if pa.types.is_timestamp(column.type) and column.type.tz:
        return column.cast(pa.timestamp(column.type.unit, str(zone)))
    return column


class PandasRows:
    """Makes one DataFrame of columns, whose slices are those of keys."""

    def __init__(self, zone: ZoneInfo) -> None:
        """Make none yet.

        Args:
            zone: Of timestamps, which handlers get without it.
        """
        self._zone = zone

    def __call__(self, table: pa.Table) -> pd.DataFrame:
        """Return a table as a DataFrame, with the types that Spark's worker arrives at."""
        columns = [_local(column, self._zone) for column in table.columns]
        frame = pa.table(columns, names=_labels(table.schema.names)).to_pandas(
            maps_as_pydicts="strict", coerce_temporal_nanoseconds=True
        )
        for label, column in zip(frame.columns, table.columns, strict=True):
            # Spark's frames are made of rows, from which pandas infers the widest types.
            if pa.types.is_integer(column.type) and not column.null_count:
                frame[label] = frame[label].astype("int64")
            elif pa.types.is_float32(column.type):
                frame[label] = frame[label].astype("float64")
        return frame


def frames_of(frame: pd.DataFrame, rows_max: int) -> Iterator[pd.DataFrame]:
    """Yield a key's rows in frames of at most so many rows, each with an index from 0."""
    for begin in range(0, len(frame), rows_max):
        part = frame.iloc[begin : begin + rows_max].reset_index(drop=True)
        # A column of truth values with nulls is one of objects; a key whose values are all there has them back.
        yield part.infer_objects()


def _local(column: pa.ChunkedArray, zone: ZoneInfo) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type) and column.type.tz:
        return pc.local_timestamp(in_zone(column, zone))
    return column


def _labels(names: Sequence[str]) -> list[str]:
    """Return names of columns as those of named tuples, which Spark's frames go through."""
    seen: set[str] = set()
    labels = []
    for place, name in enumerate(names):
        fits = name.isidentifier() and not name.startswith("_") and name not in seen
        labels.append(name if fits else f"_{place}")
        seen.add(name)
    return labels


def key_converter(schema: pa.Schema, zone: ZoneInfo, *, in_pandas: bool) -> Callable[[Key], Key]:
    """Return what makes a key that a handler gets of a decoded one."""
    places = [
        place
        for place, type_ in enumerate(schema.types)
        if pa.types.is_timestamp(type_) and (type_.tz or in_pandas)
    ]
    if not places:
        return lambda key: key

    def convert(key: Key) -> Key:
        fields = list(key)
        for place in places:
            if fields[place] is not None:
                fields[place] = _time(fields[place], zone, in_pandas=in_pandas)
        return tuple(fields)

    return convert


def _time(value: Any, zone: ZoneInfo, *, in_pandas: bool) -> Any:
    local = value.astimezone(zone) if value.tzinfo else value
    if not in_pandas:
        return local
    import pandas as pd  # only applications that use it pay for it

    return pd.Timestamp(local.replace(tzinfo=None))
