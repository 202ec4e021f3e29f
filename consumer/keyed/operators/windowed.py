"""Aggregates by key and window; and by key alone, a window that never ends.

    rows ─► panes: one partial result for a key and pane ─► windows that the pane is in ─► merged into state
    watermark ─► windows that end by it ─► results; forgotten once no row can come for them

A window is a row of state by its start, whose content is its end and its accumulators. It is due when the window ends
and, with an allowed lateness, again when that is over: the time at which it is due tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.consumer.keyed.event_times import Times, event_ms_of
from broadsheet.consumer.keyed.operators.aggregates import MergedAggregates
from broadsheet.consumer.keyed.operators.keys import StreamKeys
from broadsheet.consumer.keyed.operators.operator import (
    KEY,
    GoesBy,
    Processed,
    by,
    columns_of,
    contents_of,
    set_apart,
    types_of,
    window_columns,
    window_fields,
)
from broadsheet.consumer.keyed.operators.stage_rows import StageRows, StoredRow
from broadsheet.consumer.keyed.operators.timed_rows import (
    NO_TIME,
    Codes,
    Groups,
    TimedRows,
    groups_of,
    joined,
    no_rows,
)
from broadsheet.consumer.keyed.operators.windows import Hopping, Spanning, StageTime

SPAN_START: Final = "span start"
SPAN_END: Final = "span end"


def spanned_keys(key: pa.Schema, window: Hopping | Spanning | None) -> StreamKeys:
    """Return the key of state: windows that rows name are told apart by both of their bounds."""
    if isinstance(window, Spanning):
        bounds = [pa.field(SPAN_START, pa.int64()), pa.field(SPAN_END, pa.int64())]
        return StreamKeys(pa.schema([*key, *bounds]))
    return StreamKeys(key)


class PlacedRows:
    """Rows in windows: of each row its pane, and of each pane the windows."""

    def __init__(
        self,
        rows: TimedRows,
        keys: StreamKeys,
        window: Hopping | Spanning,
        lateness: int,
        late: int,
    ) -> None:
        """Place them.

        Args:
            rows: Of the input.
            keys: As `spanned_keys`.
            window: The windows.
            lateness: Milliseconds for which a window that ended still takes rows.
            late: Watermark up to which windows are closed.
        """
        self.apart: list[tuple[pa.Table, str]] = []
        bound = late - lateness
        if isinstance(window, Spanning):
            starts, ends = (_bounds(rows.table, name) for name in (window.start, window.end))
            no_bounds = (starts == NO_TIME) | (ends == NO_TIME)
            # The rows' own times say nothing of their windows.
            times = np.where(rows.times == NO_TIME, 0, rows.times)
            rows = TimedRows(rows.table, np.where(no_bounds, NO_TIME, times))
            is_late = ends <= bound
            kept = ~(is_late | no_bounds)
            starts, ends = starts[kept], ends[kept]
        else:
            is_late = window.last_ends(np.where(rows.times == NO_TIME, 0, rows.times)) <= bound
        self.rows = set_apart(rows, is_late, self.apart)
        table = self.rows.table
        names = [name for name in keys.schema.names if name not in (SPAN_START, SPAN_END)]
        columns = [table.column(name) for name in names]
        if isinstance(window, Spanning):
            columns += [pa.chunked_array([pa.array(each)]) for each in (starts, ends)]
        self.key_groups, self.places = keys.groups_of_columns(columns, len(table))
        if isinstance(window, Spanning):
            self.panes = self.key_groups
            self.window_panes: Codes = np.arange(len(self.panes))
            self.starts: Times = starts[self.panes.firsts]
            self.ends: Times = ends[self.panes.firsts]
        else:
            panes = window.panes(self.rows.times)
            self.panes = groups_of([self.key_groups.codes, panes], len(table))
            self.window_panes, self.starts = window.windows_of(panes[self.panes.firsts])
            self.ends = self.starts + window.size
            open_ = self.ends > bound
            self.window_panes, self.starts = self.window_panes[open_], self.starts[open_]
            self.ends = self.ends[open_]
        self.window_keys: Codes = self.key_groups.codes[self.panes.firsts][self.window_panes]
        """Key of each of a pane's windows, as a position in `places`."""


def _bounds(table: pa.Table, name: str) -> Times:
    times, is_null = event_ms_of(table.column(name))
    return np.where(is_null, NO_TIME, times)


class WindowAggregate:
    """Aggregates of windows, emitted when these end, and again when a late row changes them."""

    goes_by: GoesBy = "windows"
    wait_ms = 0

    def __init__(
        self,
        key: pa.Schema,
        window: Hopping | Spanning,
        aggregates: MergedAggregates,
        time_type: pa.DataType,
        lateness: int = 0,
    ) -> None:
        """Describe it.

        Args:
            key: Columns of the key; none: one window for all rows.
            window: The windows.
            aggregates: Of the rows of a window.
            time_type: Of the bounds of windows in the output.
            lateness: Milliseconds for which a window that ended still takes rows.
        """
        self.keys = spanned_keys(key, window)
        self._key = key
        self._window = window
        self._aggregates = aggregates
        self._time_type = time_type
        self._lateness = lateness
        self._stored = [pa.int64(), *aggregates.stored]
        self.schema = pa.schema([*key, *window_fields(time_type), *aggregates.fields])
        self.identity = f"{window}: {aggregates.identity}{by(key)}"
        self.state_types = {**types_of(KEY, key), **aggregates.state_types}

    def process(self, inputs: Sequence[TimedRows], state: StageRows, at: StageTime) -> Processed:
        """Merge rows into their windows; emit those that end."""
        done = Processed(no_rows(self.schema))
        parts = []
        if len(inputs[0]):
            placed = PlacedRows(inputs[0], self.keys, self._window, self._lateness, at.late)
            done.apart = placed.apart
            parts.append(self._merge(placed, state, at))
        due, done.has_more = state.due(at.watermark)
        parts.append(self._close(due, state))
        done.rows = joined(parts, self.schema)
        return done

    def _merge(self, placed: PlacedRows, state: StageRows, at: StageTime) -> TimedRows:
        """Merge the partial results of panes into windows; return the windows that ended before and changed."""
        if not len(placed.starts):
            return no_rows(self.schema)
        rows = placed.rows
        partial = self._aggregates.partial(placed.panes, rows.table, rows.times)
        windows = groups_of([placed.window_keys, placed.starts], len(placed.starts))
        places = [placed.places[code] for code in placed.window_keys[windows.firsts].tolist()]
        starts, ends = placed.starts[windows.firsts], placed.ends[windows.firsts]
        stored = state.fetch(places, starts.tolist())
        known = [number for number, row in enumerate(stored) if row is not None]
        before = columns_of([row.content for row in stored if row is not None], self._stored)
        # What state has comes first: of rows of one time, the one that arrived last is the last.
        codes = np.concatenate([np.array(known, np.int64), windows.codes])
        chosen = pa.array(placed.window_panes)
        columns = [
            pa.concat_arrays([old, new.take(chosen)])
            for old, new in zip(before[1:], partial, strict=True)
        ]
        merged = self._aggregates.merged(_numbered(codes, len(places)), columns)
        contents = contents_of([pa.array(ends), *merged])
        for place, start, end, row, content in zip(
            places, starts.tolist(), ends.tolist(), stored, contents, strict=True
        ):
            filed = None if row is None else row.due_ms
            due = end + self._lateness if end <= at.late else end
            state.write(place, start, content, due, filed=filed)
        corrected = np.flatnonzero(ends <= at.late)
        if not len(corrected):
            return no_rows(self.schema)
        of = pa.array(corrected)
        return self._results(
            [places[each] for each in corrected.tolist()],
            starts[corrected],
            ends[corrected],
            [column.take(of) for column in merged],
        )

    def _close(self, due: Sequence[StoredRow], state: StageRows) -> TimedRows:
        """Emit windows that end; forget those for which no row can come."""
        if not due:
            return no_rows(self.schema)
        columns = columns_of([row.content for row in due], self._stored)
        ends = columns[0].to_numpy()
        dues = np.array([row.due_ms for row in due], np.int64)
        for row, end, due_ms in zip(due, ends.tolist(), dues.tolist(), strict=True):
            if due_ms == end and self._lateness:
                state.write(row.place, row.part, row.content, end + self._lateness, filed=None)
            else:
                state.remove(row.place, row.part)
        ending = np.flatnonzero(dues == ends)
        of = pa.array(ending)
        return self._results(
            [due[each].place for each in ending.tolist()],
            np.array([due[each].part for each in ending.tolist()], np.int64),
            ends[ending],
            [column.take(of) for column in columns[1:]],
        )

    def _results(
        self, places: Sequence[bytes], starts: Times, ends: Times, columns: Sequence[pa.Array]
    ) -> TimedRows:
        arrays = [
            *self.keys.columns_of(places)[: len(self._key)],
            *window_columns(starts, ends, self._time_type),
            *self._aggregates.results(columns),
        ]
        return TimedRows(pa.table(arrays, schema=self.schema), ends - 1)

    @property
    def shown_schema(self) -> pa.Schema:
        """The columns of what it emits."""
        return self.schema

    def shown(self, rows: Sequence[StoredRow]) -> pa.Table:
        """Return the open windows."""
        columns = columns_of([row.content for row in rows], self._stored)
        starts = np.array([row.part for row in rows], np.int64)
        places = [row.place for row in rows]
        return self._results(places, starts, columns[0].to_numpy(), columns[1:]).table


class RunningAggregate:
    """Aggregates by key of all rows so far; the keys that a transaction changes are emitted."""

    goes_by: GoesBy = "windows"
    wait_ms = 0

    def __init__(self, key: pa.Schema, aggregates: MergedAggregates) -> None:
        """Describe it."""
        self.keys = StreamKeys(key)
        self._aggregates = aggregates
        self.schema = pa.schema([*key, *aggregates.fields])
        self.identity = f"running: {aggregates.identity}{by(key)}"
        self.state_types = {**types_of(KEY, key), **aggregates.state_types}

    def process(self, inputs: Sequence[TimedRows], state: StageRows, at: StageTime) -> Processed:
        """Merge rows into their keys, and emit these."""
        del at
        rows = inputs[0]
        if not len(rows):
            return Processed(no_rows(self.schema))
        groups, places = self.keys.groups(rows.table)
        partial = self._aggregates.partial(groups, rows.table, rows.times)
        parts = [0] * len(places)
        stored = state.fetch(places, parts)
        known = np.array([at for at, row in enumerate(stored) if row is not None], np.int64)
        before = columns_of(
            [row.content for row in stored if row is not None], self._aggregates.stored
        )
        columns = [pa.concat_arrays([old, new]) for old, new in zip(before, partial, strict=True)]
        codes = np.concatenate([known, np.arange(len(places))])
        merged = self._aggregates.merged(_numbered(codes, len(places)), columns)
        for place, content in zip(places, contents_of(merged), strict=True):
            state.write(place, 0, content, None, filed=None)
        return Processed(self._results(places, merged))

    def _results(self, places: Sequence[bytes], columns: Sequence[pa.Array]) -> TimedRows:
        results = self._aggregates.results(columns)
        table = pa.table([*self.keys.columns_of(places), *results], schema=self.schema)
        order = pc.sort_indices(pa.array(places, pa.binary()))
        return TimedRows(table.take(order), np.full(len(places), NO_TIME, np.int64))

    @property
    def shown_schema(self) -> pa.Schema:
        """The columns of what it emits."""
        return self.schema

    def shown(self, rows: Sequence[StoredRow]) -> pa.Table:
        """Return the aggregates of keys."""
        columns = columns_of([row.content for row in rows], self._aggregates.stored)
        return self._results([row.place for row in rows], columns).table


def _numbered(codes: Codes, size: int) -> Groups:
    """Return groups whose numbers are given: a number's rows may come in any order."""
    firsts = np.zeros(size, np.int64)
    firsts[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return Groups(codes, firsts)
