"""Aggregates of sessions: windows of a key that last until no row came for a gap.

    rows of a transaction, by key and time ─► sessions of these rows ─┐
    open sessions of the same keys ───────────────────────────────────┴─► merged where they touch

A key's sessions are one row of state: each has its start, its end, whether it was emitted, and its accumulators. The
row is due when the first of them ends or, emitted and with an allowed lateness, is to be forgotten.

Source: Spark's MergingSessionsIterator (sessions merge where start <= other end; late by the row's own t + gap).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broadsheet.consumer.keyed.event_times import Times
from broadsheet.consumer.keyed.operators.aggregates import MergedAggregates
from broadsheet.consumer.keyed.operators.keys import StreamKeys
from broadsheet.consumer.keyed.operators.operator import (
    KEY,
    GoesBy,
    Processed,
    by,
    decode,
    encode,
    set_apart,
    types_of,
    window_columns,
    window_fields,
)
from broadsheet.consumer.keyed.operators.stage_rows import StageRows, StoredRow
from broadsheet.consumer.keyed.operators.timed_rows import (
    FOREVER,
    NO_TIME,
    Codes,
    Groups,
    TimedRows,
    first_rows,
    joined,
    no_rows,
)
from broadsheet.consumer.keyed.operators.windows import SessionWindow, StageTime
from broadsheet.consumer.keyed.state_rows import GROUP_BYTES

_FIELDS = 3
"""Start, end and whether it was emitted, before the accumulators."""


class SessionAggregate:
    """Aggregates of sessions, emitted when these end, and again when a late row changes them."""

    goes_by: GoesBy = "windows"
    wait_ms = 0

    def __init__(
        self,
        key: pa.Schema,
        window: SessionWindow,
        aggregates: MergedAggregates,
        time_type: pa.DataType,
        lateness: int = 0,
    ) -> None:
        """Describe it; see `WindowAggregate`."""
        self.keys = StreamKeys(key)
        self._gap = window.gap
        self._aggregates = aggregates
        self._time_type = time_type
        self._lateness = lateness
        self.schema = pa.schema([*key, *window_fields(time_type), *aggregates.fields])
        self.identity = f"{window}: {aggregates.identity}{by(key)}"
        self.state_types = {**types_of(KEY, key), **aggregates.state_types}

    def process(self, inputs: Sequence[TimedRows], state: StageRows, at: StageTime) -> Processed:
        """Merge rows into sessions; emit those that end."""
        done = Processed(no_rows(self.schema))
        parts = []
        if len(inputs[0]):
            times = inputs[0].times
            ends = np.where(times == NO_TIME, 0, times) + self._gap
            rows = set_apart(inputs[0], ends + self._lateness <= at.late, done.apart)
            if len(rows):
                parts.append(self._merge(rows, state, at))
        due, done.has_more = state.due(at.watermark)
        if due:
            parts.append(self._close(due, state, at))
        done.rows = joined(parts, self.schema)
        return done

    def _merge(self, rows: TimedRows, state: StageRows, at: StageTime) -> TimedRows:
        """Merge rows; return the sessions that ended before and changed."""
        key_groups, places = self.keys.groups(rows.table)
        found = sessions_of(key_groups.codes, rows.times, rows.times + self._gap)
        partial = self._aggregates.partial(found.groups, rows.table, rows.times)
        stored = state.fetch(places, [0] * len(places))
        old = [
            (code, *session)
            for code, row in enumerate(stored)
            if row is not None
            for session in decode(row.content)
        ]
        before = _columns(old, [pa.int64(), *self._types])
        numbers = [column.to_numpy(zero_copy_only=False) for column in before[: _FIELDS + 1]]
        merged = sessions_of(
            np.concatenate([numbers[0], found.keys]),
            np.concatenate([numbers[1], found.starts]),
            np.concatenate([numbers[2], found.ends]),
        )
        columns = self._aggregates.merged(
            merged.groups,
            [
                pa.concat_arrays([was, new])
                for was, new in zip(before[_FIELDS + 1 :], partial, strict=True)
            ],
        )
        is_touched = np.zeros(len(merged.keys), np.bool_)
        is_touched[merged.groups.codes[len(old) :]] = True
        was_emitted = np.zeros(len(merged.keys), np.bool_)
        was_emitted[merged.groups.codes[: len(old)][numbers[3].astype(np.bool_)]] = True
        is_over = merged.ends <= at.late
        corrected = is_touched & is_over
        # One that a late row prolongs beyond the watermark is emitted again when it ends.
        emitted = is_over & (was_emitted | is_touched)
        self._write(places, stored, merged, [pa.array(emitted), *columns], state)
        return self._results(
            [places[code] for code in merged.keys[corrected].tolist()],
            merged.starts[corrected],
            merged.ends[corrected],
            [column.filter(pa.array(corrected)) for column in columns],
        )

    def _write(
        self,
        places: Sequence[bytes],
        stored: Sequence[StoredRow | None],
        merged: Sessions,
        columns: Sequence[pa.Array],
        state: StageRows,
    ) -> None:
        values = zip(
            merged.starts.tolist(),
            merged.ends.tolist(),
            *(column.to_pylist() for column in columns),
            strict=True,
        )
        of_key: list[list[Any]] = [[] for _ in places]
        for code, session in zip(merged.keys.tolist(), values, strict=True):
            of_key[code].append(session)
        for place, row, sessions in zip(places, stored, of_key, strict=True):
            filed = None if row is None else row.due_ms
            state.write(place, 0, encode(sessions), self._due(sessions), filed=filed)

    def _close(self, due: Sequence[StoredRow], state: StageRows, at: StageTime) -> TimedRows:
        """Emit sessions that end; forget those for which no row can come."""
        ending: list[tuple[bytes, list[Any]]] = []
        for row in due:
            kept = []
            for session in decode(row.content):
                end, was_emitted = session[1], session[2]
                if end <= at.watermark and not was_emitted:
                    ending.append((row.place, session))
                    session[2] = True
                if end + self._lateness > at.watermark:
                    kept.append(session)
            if kept:
                state.write(row.place, 0, encode(kept), self._due(kept), filed=None)
            else:
                state.remove(row.place, 0)
        ending.sort(key=lambda each: (each[1][1], each[0][GROUP_BYTES:]))
        return self._of([place for place, _ in ending], [session for _, session in ending])

    def _due(self, sessions: Sequence[Any]) -> int:
        return min(
            (end + self._lateness if emitted else end for _, end, emitted, *_ in sessions),
            default=FOREVER,
        )

    @property
    def _types(self) -> list[pa.DataType]:
        return [pa.int64(), pa.int64(), pa.bool_(), *self._aggregates.stored]

    def _of(self, places: Sequence[bytes], sessions: Sequence[Any]) -> TimedRows:
        columns = _columns(sessions, self._types)
        starts, ends = columns[0].to_numpy(), columns[1].to_numpy()
        return self._results(places, starts, ends, columns[_FIELDS:])

    def _results(
        self, places: Sequence[bytes], starts: Times, ends: Times, columns: Sequence[pa.Array]
    ) -> TimedRows:
        arrays = [
            *self.keys.columns_of(places),
            *window_columns(starts, ends, self._time_type),
            *self._aggregates.results(columns),
        ]
        return TimedRows(pa.table(arrays, schema=self.schema), ends - 1)

    @property
    def shown_schema(self) -> pa.Schema:
        """The columns of what it emits."""
        return self.schema

    def shown(self, rows: Sequence[StoredRow]) -> pa.Table:
        """Return the open sessions."""
        found = [(row.place, session) for row in rows for session in decode(row.content)]
        return self._of([place for place, _ in found], [session for _, session in found]).table


class Sessions:
    """Intervals of keys, merged where they touch."""

    def __init__(self, groups: Groups, keys: Codes, starts: Times, ends: Times) -> None:
        self.groups = groups
        """SessionWindow of each interval that was given."""
        self.keys, self.starts, self.ends = keys, starts, ends
        """Of each session, in the order of (key, start)."""


def sessions_of(keys: Codes, starts: Times, ends: Times) -> Sessions:
    """Merge intervals of the same key that overlap or touch; shape (intervals,) each."""
    order = np.lexsort((starts, keys))
    by_key, begin, end = keys[order], starts[order], ends[order]
    # Running maxima of ends within each key: ranks keep them apart without a loop, and cannot overflow.
    bounds = np.unique(np.concatenate([begin, end]))
    width = len(bounds) + 1
    reach = np.maximum.accumulate(by_key * width + np.searchsorted(bounds, end))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = by_key[1:] * width + np.searchsorted(bounds, begin[1:]) > reach[:-1]
    numbers = np.cumsum(is_new) - 1
    codes: NDArray[np.int64] = np.empty(len(order), np.int64)
    codes[order] = numbers
    firsts = np.flatnonzero(is_new)
    size = len(firsts)
    last = np.append(firsts[1:], len(order)) - 1
    return Sessions(
        Groups(codes, first_rows(codes, size)),
        by_key[firsts],
        begin[firsts],
        bounds[reach[last] % width] if size else end[:0],
    )


def _columns(rows: Sequence[Any], types: Sequence[pa.DataType]) -> list[pa.Array]:
    columns: Any = zip(*rows, strict=True) if rows else [[] for _ in types]
    return [pa.array(list(column), type_) for column, type_ in zip(columns, types, strict=True)]
