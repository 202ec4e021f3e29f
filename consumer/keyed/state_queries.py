"""Questions about the state of a processor: a row a key, a column a variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.queries import Meter, too_long
from broadsheet.consumer.keyed.row_index import RowRange, RowSnapshot, after_prefix
from broadsheet.consumer.keyed.row_types import StateRowType
from broadsheet.consumer.keyed.state_rows import DUE, GROUP_BYTES, STATE, TIMERS, place_of
from broadsheet.consumer.keyed.state_table import (
    STATE_TABLE,
    TIMERS_COLUMN,
    StateTable,
    shown_batch,
)
from broadsheet.consumer.keyed.timers import expiries_of
from broadsheet.consumer.keyed.variables import ListState, MapState, Variable
from broadsheet.consumer.stores.keyed_queries import KeyedColumn, KeyedTableInfo
from broadsheet.runtime.errors import ValidationError

_TIMERS_INFO: Final = KeyedColumn(
    TIMERS_COLUMN, "timers", pa.schema([pa.field("due_ms", pa.int64())])
)


class AskedState:
    """The one table of a processor; implements `broadsheet.consumer.keyed.queries.AskedTable`."""

    due_family = DUE
    is_due_early = False

    def __init__(self, table: StateTable, now_ms: Callable[[], int]) -> None:
        """Describe it.

        Args:
            table: The columns.
            now_ms: The clock: what is expired is left out.
        """
        self._table = table
        self._now_ms = now_ms

    @property
    def codec(self) -> KeyCodec:
        """Of the keys."""
        return self._table.key

    @property
    def info(self) -> KeyedTableInfo:
        """The columns."""
        return KeyedTableInfo(
            name=STATE_TABLE,
            key=self.codec.schema,
            columns=[*map(_column, self._table.variables.values()), _TIMERS_INFO],
            schema=self._table.schema,
        )

    def rows_of(self, rows: RowSnapshot, place: bytes, columns: pa.Schema) -> pa.Table:
        """Return the row of a key, or none; variables that are not asked for are not read."""
        timers = rows.get(TIMERS + place)
        found = self._read(rows, place, columns)
        shown = self._table.shown(place, found, timers, self._now_ms())
        if shown is None and len(columns) < len(self._table.schema):
            # A key without the variables that are asked for may have others, and then it has a row.
            shown = self._table.shown(
                place, self._read(rows, place, self._table.schema), timers, self._now_ms()
            )
        return _table([] if shown is None else [shown], columns)

    def _read(self, rows: RowSnapshot, place: bytes, columns: pa.Schema) -> Mapping[bytes, bytes]:
        """Return the rows of state of a key, by suffix, of the variables among some columns."""
        meter, found = Meter(), dict[bytes, bytes]()
        for name, variable in self._table.variables.items():
            if name not in columns.names:
                continue
            begin = place + variable.type.suffix
            for row_name, row in meter.items(rows, STATE, [(begin, after_prefix(begin))]):
                found[row_name[len(place) :]] = row
            if meter.is_exceeded:
                raise too_long(f"key {self._key_text(place)}")
        return found

    def behind(self, cursor: bytes) -> bytes:
        """Return the first position behind the key of a cursor."""
        return after_prefix(cursor)

    def page(
        self, rows: RowSnapshot, places: Sequence[RowRange], columns: pa.Schema, size: int
    ) -> tuple[pa.Table, bytes]:
        """Return the rows of a page, and the place of its last key if there may be more."""
        meter, shown, last, now_ms = Meter(), list[Mapping[str, Any]](), b"", self._now_ms()
        part = _Part(meter.items(rows, STATE, places), meter.items(rows, TIMERS, places))
        for place, of_key, timers in self._table.keys(part):
            if meter.is_exceeded:
                # Of the key that is under way not all rows were read.
                if not last:
                    raise too_long(f"key {self._key_text(place)}")
                return _table(shown, columns), last
            row = self._table.shown(place, of_key, timers, now_ms)
            last = place
            if row is not None:
                shown.append(row)
            if len(shown) == size or meter.is_full:
                return _table(shown, columns), last
        return _table(shown, columns), b""

    def due_of(self, rows: RowSnapshot, place: bytes) -> list[int]:
        """Return the expiries of a key's timers."""
        return expiries_of(rows.get(TIMERS + place))

    def confirmed(
        self, rows: RowSnapshot, entries: Sequence[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        """Return (expiry, place) of the entries that the rows of their keys confirm."""
        found = []
        for expiry, key in entries:
            place = place_of(key)
            if expiry in self.due_of(rows, place):
                found.append((expiry, place))
        return found

    def _key_text(self, place: bytes) -> str:
        key, _ = self.codec.decode(place, GROUP_BYTES)
        return f"({', '.join(f'{each!r:.80}' for each in key)})"


class _Part:
    """Rows and timers of a range of places; implements `RowsInOrder`."""

    def __init__(
        self, rows: Iterator[tuple[bytes, bytes]], timers: Iterator[tuple[bytes, bytes]]
    ) -> None:
        self._rows = rows
        self._timers = timers

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        return self._rows

    def timers(self) -> Iterator[tuple[bytes, bytes]]:
        return self._timers


def _table(rows: Sequence[Mapping[str, Any]], columns: pa.Schema) -> pa.Table:
    batch = shown_batch([[row[name] for name in columns.names] for row in rows], columns)
    return pa.Table.from_batches([batch], columns)


def _column(variable: Variable) -> KeyedColumn:
    type_ = variable.type
    kind = (
        "map"
        if isinstance(variable, MapState)
        else "list"
        if isinstance(variable, ListState)
        else "value"
    )
    key = None if type_.key_type is None else _fields(type_.key_type)
    return KeyedColumn(type_.name, kind, _fields(type_.row_type), key, type_.ttl_ms)


def _fields(declared: StateRowType) -> pa.Schema:
    """Return the fields as columns; a class one of whose fields no column has is shown as one text."""
    try:
        return declared.schema
    except ValidationError:
        return pa.schema([pa.field("json", pa.string())])
