"""The contract of operators, and what they share: accumulators in state, late rows, columns of windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broadsheet.consumer.keyed.event_times import Times, times_as
from broadsheet.consumer.keyed.operators.keys import StreamKeys
from broadsheet.consumer.keyed.operators.stage_rows import StageRows, StoredRow
from broadsheet.consumer.keyed.operators.timed_rows import NO_TIME, TimedRows
from broadsheet.consumer.keyed.operators.windows import StageTime

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
KEY: Final = "key"
"""Part of the names in `state_types`: such types never change, because they make the rows' names."""
LATE: Final = "late"
TIMELESS: Final = "no event time"
encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(list[Any]).decode


GoesBy = Literal["windows", "rows"]
"""What the watermark makes late for an operator: windows that end by it, or rows whose own times it has reached."""


@dataclass(slots=True)
class Processed:
    """An operator's results of a transaction."""

    rows: TimedRows
    apart: list[tuple[pa.Table, str]] = field(default_factory=list)
    """Rows that it did not take, each table with the reason."""
    has_more: bool = False
    """Not all that is due was closed: a transaction is due at once."""


class Operator(Protocol):
    """One step of a plan that has state, or none. What it decides depends on its arguments alone."""

    schema: pa.Schema
    """Of the rows that it emits."""
    identity: str
    """States what must not change between two lives of its state."""
    goes_by: GoesBy
    wait_ms: int
    """How far behind its watermark the times of rows may be that it emits."""

    @property
    def state_types(self) -> Mapping[str, str]:
        """Types of what its state keeps, by name: in another life none may be read as another type."""
        ...

    @property
    def keys(self) -> StreamKeys:
        """The key of its rows of state."""
        ...

    def process(self, inputs: Sequence[TimedRows], state: StageRows, at: StageTime) -> Processed:
        """Take the rows of a transaction, then close what is due by its watermark.

        Args:
            inputs: Rows of each of its inputs.
            state: Its rows.
            at: The transaction's times.
        """
        ...

    def shown(self, rows: Sequence[StoredRow]) -> pa.Table | None:
        """Return rows of state as a table of `shown_schema`; None: it shows none."""
        ...

    @property
    def shown_schema(self) -> pa.Schema | None:
        """Columns of what is open; None: it shows nothing."""
        ...


def set_apart(
    rows: TimedRows, is_late: NDArray[np.bool_], apart: list[tuple[pa.Table, str]]
) -> TimedRows:
    """Return the rows that are neither late nor without an event time; add the others to `apart`."""
    is_timeless = rows.times == NO_TIME
    is_late = is_late & ~is_timeless
    for reason, mask in ((TIMELESS, is_timeless), (LATE, is_late)):
        if mask.any():
            apart.append((rows.pick(mask).table, reason))
    kept = ~(is_timeless | is_late)
    return rows if kept.all() else rows.pick(kept)


def columns_of(contents: Sequence[bytes], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return what some rows of state hold, a column for each of their fields."""
    rows = list(map(decode, contents))
    columns: Any = zip(*rows, strict=True) if rows else [[] for _ in types]
    return [pa.array(list(column), type_) for column, type_ in zip(columns, types, strict=True)]


def contents_of(columns: Sequence[pa.Array]) -> list[bytes]:
    """Return the content of a row of state for each row of columns."""
    return list(map(encode, zip(*(column.to_pylist() for column in columns), strict=True)))


def by(key: pa.Schema) -> str:
    """Return a key as a part of an identity."""
    return f" by {', '.join(key.names)}" if key.names else ""


def types_of(part: str, schema: pa.Schema) -> dict[str, str]:
    """Return the types of columns that state keeps."""
    return {f"{part}.{field.name}": str(field.type) for field in schema}


def window_fields(time_type: pa.DataType) -> list[pa.Field]:
    """Return the two columns of a window's bounds."""
    return [pa.field(WINDOW_START, time_type), pa.field(WINDOW_END, time_type)]


def window_columns(starts: Times, ends: Times, time_type: pa.DataType) -> list[pa.Array]:
    """Return the columns of windows' bounds."""
    return [times_as(starts, time_type), times_as(ends, time_type)]
