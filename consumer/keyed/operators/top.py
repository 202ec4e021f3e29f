"""The rows with the greatest values by key: of all rows so far, or of each window.

Order: value, descending; then event time; then arrival. A key's rows are one row of state, column by column. What a
transaction adds is ranked first by itself, so that state meets n rows of a key at most, or all that tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from broadsheet.consumer.keyed.event_times import Times
from broadsheet.consumer.keyed.operators.operator import (
    KEY,
    GoesBy,
    Processed,
    by,
    decode,
    encode,
    types_of,
    window_columns,
    window_fields,
)
from broadsheet.consumer.keyed.operators.stage_rows import StageRows, StoredRow
from broadsheet.consumer.keyed.operators.timed_rows import (
    Codes,
    TimedRows,
    as_stored,
    flat,
    from_stored,
    groups_of,
    joined,
    no_rows,
    stored_type,
)
from broadsheet.consumer.keyed.operators.windowed import PlacedRows, spanned_keys
from broadsheet.consumer.keyed.operators.windows import Hopping, Spanning, StageTime
from broadsheet.consumer.keyed.state_rows import GROUP_BYTES
from broadsheet.runtime.errors import ValidationError

RANK: Final = "rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRule:
    """The number and order of the rows that are kept."""

    n: int
    by: str
    """Column of the values."""
    ties: bool = False
    """Keep all rows whose value is among the n greatest ones that are kept otherwise."""
    ascending: bool = False
    """The least values instead."""

    def __str__(self) -> str:
        ties = " with ties" if self.ties else ""
        return f"{'bottom' if self.ascending else 'top'} {self.n} by {self.by}{ties}"


class Top:
    """The rows with the greatest values."""

    goes_by: GoesBy = "windows"
    wait_ms = 0

    def __init__(
        self,
        key: pa.Schema,
        schema: pa.Schema,
        rule: TopRule,
        window: Hopping | Spanning | None = None,
        time_type: pa.DataType | None = None,
        lateness: int = 0,
    ) -> None:
        """Describe it.

        Args:
            key: Columns of the key.
            schema: Of the rows.
            rule: The number and order of the rows that are kept.
            window: Windows; None: all rows so far.
            time_type: Of the bounds of windows in the output.
            lateness: Milliseconds for which a window that ended still takes rows.

        Raises:
            ValidationError: the values have no order, or a column cannot be kept in state.
        """
        self._key, self.keys = key, spanned_keys(key, window)
        self._rule = rule
        self._window = window
        self._time_type = time_type or pa.int64()
        self._lateness = lateness
        bounds = window_fields(self._time_type) if window is not None else []
        bound_names = {field.name for field in bounds}
        kept = [
            field
            for field in schema
            if field.name not in key.names and field.name not in bound_names
        ]
        self._names = [field.name for field in kept]
        self._kept = pa.schema(kept)
        if RANK in self._names:
            raise ValidationError("top", f"expected rows without a column {RANK!r}; rename it")
        if rule.by in key.names:
            raise ValidationError("top.by", f"expected another column than the key's, {rule.by!r}")
        self._types = [stored_type(f"top.{field.name}", field.type) for field in kept]
        value_type = schema.field(rule.by).type
        if pa.types.is_boolean(value_type) or pa.types.is_binary(value_type):
            raise ValidationError("top.by", f"expected a column with an order, got {value_type}")
        self.schema = pa.schema([*key, *bounds, pa.field(RANK, pa.int32()), *kept])
        self.identity = f"{rule}, {window or 'running'}{by(key)}: {', '.join(self._names)}"
        self.state_types = {**types_of(KEY, key), **types_of("top", self._kept)}

    def process(self, inputs: Sequence[TimedRows], state: StageRows, at: StageTime) -> Processed:
        """Rank rows with those of state; emit what changed, or the windows that end."""
        done = Processed(no_rows(self.schema))
        parts = []
        if len(inputs[0]):
            parts.append(self._take(inputs[0], state, at, done.apart))
        if self._window is not None:
            due, done.has_more = state.due(at.watermark)
            parts.append(self._close(due, state))
        done.rows = joined(parts, self.schema)
        return done

    def _take(
        self,
        rows: TimedRows,
        state: StageRows,
        at: StageTime,
        apart: list[tuple[pa.Table, str]],
    ) -> TimedRows:
        """Rank rows; return the lists that changed and are emitted at once."""
        if self._window is None:
            groups, places = self.keys.groups(rows.table)
            starts = ends = np.zeros(len(places), np.int64)
            ranked = self._ranked(groups.codes, rows)
        else:
            placed = PlacedRows(rows, self.keys, self._window, self._lateness, at.late)
            apart += placed.apart
            rows = placed.rows
            in_panes = self._ranked(placed.panes.codes, rows)
            # Each pane's best rows once for each of the pane's windows.
            rows, of_windows = _spread(in_panes, placed)
            windows = groups_of([placed.window_keys, placed.starts], len(placed.starts))
            places = [placed.places[each] for each in placed.window_keys[windows.firsts].tolist()]
            starts, ends = placed.starts[windows.firsts], placed.ends[windows.firsts]
            ranked = self._ranked(windows.codes[of_windows], rows)
        if not len(ranked.codes):
            return no_rows(self.schema)
        return self._merge(ranked, places, (starts, ends), state, at)

    def _merge(
        self,
        new: _Ranked,
        places: Sequence[bytes],
        bounds: tuple[Times, Times],
        state: StageRows,
        at: StageTime,
    ) -> TimedRows:
        starts, ends = bounds
        stored = state.fetch(places, starts.tolist())
        old_codes, old = self._of_state(stored)
        codes = np.concatenate([old_codes, new.codes])
        both = TimedRows(
            pa.concat_tables([old.table, self._kept_columns(new.rows.table)]),
            np.concatenate([old.times, new.rows.times]),
        )
        ranked = self._ranked(codes, both)
        changed = np.zeros(len(places), np.bool_)
        changed[ranked.codes[ranked.positions >= len(old_codes)]] = True
        is_running = self._window is None
        kept = changed[ranked.codes]
        lists = ranked.pick(kept)
        numbers = np.flatnonzero(changed)
        columns = [
            as_stored(column, type_).to_pylist()
            for column, type_ in zip(lists.rows.table.columns, self._types, strict=True)
        ]
        times = lists.rows.times.tolist()
        begins = np.searchsorted(lists.codes, numbers).tolist()
        behind = np.searchsorted(lists.codes, numbers, "right").tolist()
        for number, begin, end in zip(numbers.tolist(), begins, behind, strict=True):
            row, stop = stored[number], int(ends[number])
            content = encode([stop, times[begin:end], *(column[begin:end] for column in columns)])
            due = None if is_running else stop + (self._lateness if stop <= at.late else 0)
            filed = None if row is None else row.due_ms
            state.write(places[number], int(starts[number]), content, due, filed=filed)
        shown = lists if is_running else lists.pick(ends[lists.codes] <= at.late)
        return self._results(shown, places, starts, ends)

    def _close(self, due: Sequence[StoredRow], state: StageRows) -> TimedRows:
        """Emit windows that end; forget those for which no row can come."""
        ending = []
        for row in due:
            end = decode(row.content)[0]
            is_ending = row.due_ms == end
            if is_ending:
                ending.append(row)
            if is_ending and self._lateness:
                state.write(row.place, row.part, row.content, end + self._lateness, filed=None)
            else:
                state.remove(row.place, row.part)
        if not ending:
            return no_rows(self.schema)
        return self._of_rows(ending)

    # -- ranking

    def _ranked(self, codes: Codes, rows: TimedRows) -> _Ranked:
        """Return the rows that are kept, in the order of (code, rank). Without a value a row has no rank."""
        array = flat(rows.table.column(self._rule.by))
        present = array.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_floating(array.type):
            present &= ~pc.fill_null(pc.is_nan(array), True).to_numpy(zero_copy_only=False)
        at = np.flatnonzero(present)
        array = array.take(pa.array(at))
        direction = "ascending" if self._rule.ascending else "descending"
        ranks = pc.rank(array, sort_keys=direction, tiebreaker="dense").to_numpy().astype(np.int64)
        of, times = codes[at], rows.times[at]
        order = np.lexsort((times, ranks, of))
        of, ranks = of[order], ranks[order]
        # The place of each row among those of its code, from 0.
        begins = np.searchsorted(of, of)
        places = np.arange(len(of)) - begins
        kept = places < self._rule.n
        if self._rule.ties:
            nth = np.minimum(begins + self._rule.n - 1, np.searchsorted(of, of, "right") - 1)
            kept |= ranks == ranks[nth]
        positions = at[order][kept]
        return _Ranked(of[kept], places[kept] + 1, positions, rows.pick(positions))

    # -- rows and state

    def _kept_columns(self, table: pa.Table) -> pa.Table:
        return pa.table([table.column(name) for name in self._names], schema=self._kept)

    def _of_state(self, stored: Sequence[StoredRow | None]) -> tuple[Codes, TimedRows]:
        """Return the rows of state, and the position in `stored` of each."""
        counts, times = np.zeros(len(stored), np.int64), []
        columns: list[list[Any]] = [[] for _ in self._names]
        for number, row in enumerate(stored):
            if row is None:
                continue
            _, row_times, *values = decode(row.content)
            counts[number] = len(row_times)
            times += row_times
            for column, part in zip(columns, values, strict=True):
                column += part
        arrays = [
            from_stored(column, stored_as, type_)
            for column, stored_as, type_ in zip(columns, self._types, self._kept.types, strict=True)
        ]
        codes = np.repeat(np.arange(len(stored)), counts)
        table = pa.table(arrays, schema=self._kept)
        return codes, TimedRows(table, np.array(times, np.int64))

    def _of_rows(self, stored: Sequence[StoredRow]) -> TimedRows:
        """Return what rows of state are emitted as."""
        codes, rows = self._of_state(stored)
        ranks = np.arange(len(codes)) - np.searchsorted(codes, codes) + 1
        starts = np.array([row.part for row in stored], np.int64)
        ends = np.array([decode(row.content)[0] for row in stored], np.int64)
        ranked = _Ranked(codes, ranks, np.arange(len(codes)), rows)
        return self._results(ranked, [row.place for row in stored], starts, ends)

    def _results(
        self, ranked: _Ranked, places: Sequence[bytes], starts: Times, ends: Times
    ) -> TimedRows:
        """Return ranked rows with their key, in the order of (end of the window, key, rank)."""
        codes = ranked.codes
        keys = [places[code][GROUP_BYTES:] for code in range(len(places))]
        by_key = np.array(
            sorted(range(len(places)), key=lambda each: (ends[each], keys[each])), np.int64
        )
        position = np.empty(len(places), np.int64)
        position[by_key] = np.arange(len(places))
        order = np.lexsort((ranked.ranks, position[codes]))
        codes = codes[order]
        chosen = pa.array(codes)
        arrays: list[Any] = [
            column.take(chosen) for column in self.keys.columns_of(places)[: len(self._key)]
        ]
        times = ranked.rows.times[order]
        if self._window is not None:
            arrays += window_columns(starts[codes], ends[codes], self._time_type)
            times = ends[codes] - 1
        arrays.append(pa.array(ranked.ranks[order], pa.int32()))
        kept = self._kept_columns(ranked.rows.table).take(pa.array(order))
        return TimedRows(pa.table([*arrays, *kept.columns], schema=self.schema), times)

    @property
    def shown_schema(self) -> pa.Schema:
        """The columns of what it emits."""
        return self.schema

    def shown(self, rows: Sequence[StoredRow]) -> pa.Table:
        """Return the lists as they are."""
        return self._of_rows(rows).table


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Rows that are kept, in the order of (code, rank)."""

    codes: Codes
    ranks: Codes
    """From 1, within each code."""
    positions: Codes
    """Of the rows among those that were ranked."""
    rows: TimedRows

    def pick(self, kept: NDArray[np.bool_]) -> _Ranked:
        return _Ranked(
            self.codes[kept], self.ranks[kept], self.positions[kept], self.rows.pick(kept)
        )


def _spread(ranked: _Ranked, placed: PlacedRows) -> tuple[TimedRows, Codes]:
    """Return the rows of panes once for each of the pane's windows, and the position of that window."""
    begins = np.searchsorted(ranked.codes, placed.window_panes)
    counts = np.searchsorted(ranked.codes, placed.window_panes, "right") - begins
    of_windows = np.repeat(np.arange(len(placed.window_panes)), counts)
    within = np.arange(len(of_windows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranked.rows.pick(begins[of_windows] + within), of_windows
