"""Keyed state as a table: a row a key, a column a variable."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.state_rows import GROUP_BYTES, key_at
from broadsheet.consumer.keyed.timers import expiries_of
from broadsheet.consumer.keyed.variables import Current, ListState, MapState, Variable
from broadsheet.runtime.errors import ValidationError

STATE_TABLE: Final = "state"
TIMERS_COLUMN: Final = "timers"
"""Column of the expiries of a key's timers, epoch milliseconds."""
ROWS_PER_BATCH: Final = 4096


class RowsInOrder(Protocol):
    """The rows of a commit, ordered by key."""

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place and suffix, row) of the rows of variables."""
        ...

    def timers(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place, row) of the timers of keys."""
        ...


class StateTable:
    """The columns of a processor's state, and how rows become them."""

    def __init__(self, key: KeyCodec, variables: Mapping[str, Variable]) -> None:
        self.key = key
        self.variables = variables
        columns = [pa.field(name, _column_type(each)) for name, each in variables.items()]
        timers = pa.field(TIMERS_COLUMN, pa.list_(pa.int64()))
        self.schema = pa.schema([*key.schema, *columns, timers])

    def batches(
        self, view: RowsInOrder, schema: pa.Schema, *, now_ms: int
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the keys that have anything, with some of the columns.

        Args:
            view: The rows.
            schema: The columns to show.
            now_ms: What is expired by then is left out.
        """
        found: list[Sequence[Any]] = []
        for place, rows, timers in self.keys(view):
            shown = self.shown(place, rows, timers, now_ms)
            if shown is not None:
                found.append([shown[name] for name in schema.names])
            if len(found) == ROWS_PER_BATCH:
                yield shown_batch(found, schema)
                found = []
        if found:
            yield shown_batch(found, schema)

    def keys(self, view: RowsInOrder) -> Iterator[tuple[bytes, dict[bytes, bytes], bytes | None]]:
        """Yield each key that has rows or timers, with both: a merge of two streams in the order of keys."""
        timers = view.timers()
        due = next(timers, None)
        for place, rows in self._rows_by_place(view.rows()):
            while due is not None and due[0] < place:
                yield due[0], {}, due[1]
                due = next(timers, None)
            if due is not None and due[0] == place:
                yield place, rows, due[1]
                due = next(timers, None)
            else:
                yield place, rows, None
        while due is not None:
            yield due[0], {}, due[1]
            due = next(timers, None)

    def _rows_by_place(
        self, rows: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        place, of_key = b"", dict[bytes, bytes]()
        for name, row in rows:
            # No place begins with another one, so its rows follow each other.
            if not place or not name.startswith(place):
                if of_key:
                    yield place, of_key
                _, end = self.key.decode(name, GROUP_BYTES)
                place, of_key = name[:end], {}
            of_key[name[len(place) :]] = row
        if of_key:
            yield place, of_key

    def shown(
        self, place: bytes, rows: Mapping[bytes, bytes], timers: bytes | None, now_ms: int
    ) -> dict[str, Any] | None:
        """Return the columns of a key; None if all of it is expired."""
        current = Current()
        current.key, current.place, current.batch_ms = key_at(place), place, now_ms
        access = _RowsOfKey(rows)
        values: dict[str, Any] = {}
        for name, variable in self.variables.items():
            over = variable.over(access, current)
            values[name] = _shown_value(over) if over.exists() else None
        expiries = expiries_of(timers)
        if not expiries and all(value is None for value in values.values()):
            return None
        key, _ = self.key.decode(place, GROUP_BYTES)
        named = dict(zip(self.key.schema.names, key, strict=True))
        return {**named, **values, TIMERS_COLUMN: expiries}


class _RowsOfKey:
    """The rows of one key, which cannot be changed."""

    def __init__(self, rows: Mapping[bytes, bytes]) -> None:
        self._rows = rows

    def get(self, place: bytes, suffix: bytes) -> bytes | None:
        del place
        return self._rows.get(suffix)

    def rows_of(self, place: bytes, prefix: bytes) -> list[tuple[bytes, bytes]]:
        del place
        return [each for each in self._rows.items() if each[0].startswith(prefix)]

    def put(self, place: bytes, suffix: bytes, row: bytes | None) -> None:
        del place, suffix, row
        raise ValidationError("", "expected no change: this is the state as of a commit")

    def file(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        del time_ms
        self.put(place, suffix, None)

    def unfile(self, time_ms: int, place: bytes, suffix: bytes) -> None:
        del time_ms
        self.put(place, suffix, None)


def _column_type(variable: Variable) -> pa.DataType:
    shown = variable.type.row_type.shown_type
    if isinstance(variable, MapState):
        assert variable.type.key_type is not None, "it is a map"
        return pa.map_(variable.type.key_type.shown_type, shown)
    return pa.list_(shown) if isinstance(variable, ListState) else shown


def _shown_value(variable: Variable) -> Any:
    row_type, value = variable.type.row_type, variable.committed()
    if isinstance(variable, MapState):
        key_type = variable.type.key_type
        assert key_type is not None, "it is a map"
        return [(key_type.shown(key), row_type.shown(each)) for key, each in value.items()]
    if isinstance(variable, ListState):
        return [row_type.shown(each) for each in value]
    return row_type.shown(value)


def shown_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of shown values as columns."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [
        pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
