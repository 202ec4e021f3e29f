"""Questions about what an operator of a stream has open: windows, sessions, running aggregates, lists."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.operators.operator import Operator
from broadsheet.consumer.keyed.operators.stage_rows import SUFFIX_BYTES, StoredRow, stored_row
from broadsheet.consumer.keyed.queries import PAGE_BYTES, Meter, too_long
from broadsheet.consumer.keyed.row_index import RowRange, RowSnapshot, after_prefix
from broadsheet.consumer.keyed.state_rows import FILED, STATE, expiry_of
from broadsheet.consumer.stores.keyed_queries import KeyedColumn, KeyedTableInfo

_SCANNED_BYTES_MAX = 64 << 20
"""State of other operators that a page passes over."""


class AskedStage:
    """The table of one operator; implements `broadsheet.consumer.keyed.queries.AskedTable`."""

    due_family = FILED
    is_due_early = True

    def __init__(
        self, name: str, operator: Operator, variable: bytes, *, behind_ms: int = 0
    ) -> None:
        """Describe it.

        Args:
            name: Of the table.
            operator: One that shows what it has open.
            variable: Of its rows.
            behind_ms: The operator goes so far behind the watermark: rows are due by this one.
        """
        self._name = name
        self._operator = operator
        self._variable = variable
        self._behind = behind_ms

    @property
    def codec(self) -> KeyCodec:
        """Of the keys."""
        return self._operator.keys.codec

    @property
    def info(self) -> KeyedTableInfo:
        """The columns."""
        schema = self._operator.shown_schema
        assert schema is not None, "it shows what it has open"
        key = self.codec.schema
        return KeyedTableInfo(
            name=self._name,
            key=key,
            columns=[
                KeyedColumn(each.name, "result", pa.schema([each]))
                for each in schema
                if each.name not in key.names
            ],
            schema=schema,
            operator=self._operator.identity,
        )

    def rows_of(self, rows: RowSnapshot, place: bytes, columns: pa.Schema) -> pa.Table:
        """Return what is open of a key."""
        meter = Meter()
        stored = self._of_key(rows, place, meter)
        if meter.is_exceeded:
            raise too_long("the key")
        return self._shown(stored, columns)

    def _of_key(self, rows: RowSnapshot, place: bytes, meter: Meter) -> list[StoredRow]:
        begin = place + self._variable
        found = []
        for name, row in meter.items(rows, STATE, [(begin, after_prefix(begin))]):
            # Another operator's key may begin with this one's bytes, because its fields are others.
            if len(name) == len(place) + SUFFIX_BYTES:
                stored = stored_row(name, row, self._variable)
                assert stored is not None, "it begins with the variable"
                found.append(stored)
        return found

    def behind(self, cursor: bytes) -> bytes:
        """Return the first position behind the row of a cursor."""
        return cursor + b"\x00"

    def page(
        self, rows: RowSnapshot, places: Sequence[RowRange], columns: pa.Schema, size: int
    ) -> tuple[pa.Table, bytes]:
        """Return the rows of a page, and the name of its last row of state if there may be more."""
        found: list[StoredRow] = []
        read_bytes = passed_bytes = 0
        for name, row in rows.items((STATE + begin, STATE + end) for begin, end in places):
            stored = stored_row(name[1:], row, self._variable)
            if stored is not None:
                found.append(stored)
                read_bytes += len(row)
            passed_bytes += len(name) + len(row)
            is_full = len(found) == size or read_bytes >= PAGE_BYTES
            if is_full or passed_bytes >= _SCANNED_BYTES_MAX:
                return self._shown(found, columns), name[1:]
        return self._shown(found, columns), b""

    def due_of(self, rows: RowSnapshot, place: bytes) -> list[int]:
        """Return when rows of a key are due."""
        stored = self._of_key(rows, place, Meter())
        return sorted(each.due_ms + self._behind for each in stored if each.due_ms is not None)

    def confirmed(
        self, rows: RowSnapshot, entries: Sequence[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        """Return (due time, place) of the operator's rows that entries point at, each once.

        An entry is at or before the time at which its row is due; one behind it was left by a later due time.
        """
        found: dict[bytes, int] = {}
        for time, name in entries:
            if name[-SUFFIX_BYTES:][: len(self._variable)] != self._variable:
                continue
            row = rows.get(STATE + name)
            due = None if row is None else expiry_of(row)
            if due is not None and time <= due + self._behind:
                found[name] = due + self._behind
        return [(due, name[:-SUFFIX_BYTES]) for name, due in found.items()]

    def _shown(self, stored: Sequence[StoredRow], columns: pa.Schema) -> pa.Table:
        table = self._operator.shown(stored)
        assert table is not None, "it shows what it has open"
        return table.select(columns.names)
