"""Joins rows of two inputs with the same key whose event times lie near each other.

    l.time + lower <= r.time <= l.time + upper        both ends in; the upper one may be a column of the left rows

A pair is emitted when its later row comes. A left row is kept until the watermark reaches the end of its interval, a
right row until it reaches r.time − lower: no row that is not late can meet them then. An outer join emits a row without
a partner when it is dropped. Null is no key here, as in SQL: it meets nothing.

State, by key: a head with the numbers of both sides' chunks, and the chunks, which hold up to 64 rows column by column.
A chunk is due when the first of its rows is to be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broadsheet.consumer.keyed.event_times import Times, event_ms_of, times_as
from broadsheet.consumer.keyed.operators.durations import shown_duration
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
)
from broadsheet.consumer.keyed.operators.stage_rows import StageRows, StoredRow
from broadsheet.consumer.keyed.operators.timed_rows import (
    FOREVER,
    NEVER_LATE,
    NO_TIME,
    Codes,
    TimedRows,
    as_stored,
    from_stored,
    joined,
    no_rows,
    stored_type,
)
from broadsheet.consumer.keyed.operators.windows import StageTime

JoinKind = Literal["inner", "left", "right", "full"]
CHUNK_ROWS: Final = 64
_HEAD: Final = -1
_LEFT, _RIGHT = 0, 1
_FIXED: Final = 3
"""Columns of a chunk before those of the rows: times, ends, and whether a row has met another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The interval of right rows around a left row, milliseconds; None: unbounded."""

    lower: int | None
    upper: int | str | None
    """A length, or the column of left rows that has the end."""

    def __str__(self) -> str:
        begin = "any time" if self.lower is None else shown_duration(self.lower)
        match self.upper:
            case None:
                end = "any time"
            case str():
                end = f"until {self.upper}"
            case _:
                end = shown_duration(self.upper)
        return f"[{begin}, {end}]"


@dataclass(frozen=True, slots=True)
class Side:
    """One input of a join."""

    key: Sequence[str]
    """Columns of the key."""
    schema: pa.Schema
    renamed: Sequence[str]
    """Names in the output of the columns that are not of the key, in order."""

    @property
    def kept(self) -> list[str]:
        """The columns that are not of the key."""
        return [name for name in self.schema.names if name not in self.key]


@dataclass(frozen=True, slots=True)
class _Buffered:
    """Rows of one side: of state, and of the transaction."""

    codes: Codes
    """Of their keys; −1: the key has a null."""
    times: Times
    ends: Times
    """Of the interval of left rows; when right rows are dropped."""
    table: pa.Table
    """Columns that are not of the key."""
    met: NDArray[np.bool_]
    old: int
    """So many are of state, and come first."""
    chunks: Sequence[tuple[int, int]]
    """(key, number) of the chunks of state, in order."""
    chunk_ends: Codes
    """Behind the last row of each."""

    def last_chunks(self, keys: set[int]) -> dict[int, tuple[int, int, int]]:
        """Return (number, begin, end) of the last chunk of those of some keys that have one with room."""
        found: dict[int, tuple[int, int, int]] = {}
        begin = 0
        for (key, number), end in zip(self.chunks, self.chunk_ends.tolist(), strict=True):
            if key in keys:
                found[key] = number, begin, end
            begin = end
        return {key: each for key, each in found.items() if each[2] - each[1] < CHUNK_ROWS}


class IntervalJoin:
    """The join."""

    goes_by: GoesBy = "rows"

    def __init__(
        self,
        left: Side,
        right: Side,
        interval: Interval,
        *,
        kind: JoinKind = "inner",
        time: pa.Field,
    ) -> None:
        """Describe it.

        Args:
            left: The first input.
            right: The second one; its key has the same types, in order.
            interval: Around left rows.
            kind: Which rows without a partner are emitted, with nulls.
            time: Column of the output with the later of both event times.

        Raises:
            ValidationError: a column cannot be kept in state.
        """
        self._sides = (left, right)
        self._interval = interval
        self._outer = (kind in ("left", "full"), kind in ("right", "full"))
        self._time = time
        self.wait_ms = _wait_ms(interval, self._outer)
        key = pa.schema([left.schema.field(name) for name in left.key])
        self.keys = StreamKeys(key)
        self._kept = tuple(
            pa.schema([side.schema.field(name) for name in side.kept]) for side in self._sides
        )
        self._types = tuple(
            [stored_type(f"join.{field.name}", field.type) for field in schema]
            for schema in self._kept
        )
        columns = [
            pa.field(name, field.type)
            for side, schema in zip(self._sides, self._kept, strict=True)
            for name, field in zip(side.renamed, schema, strict=True)
        ]
        self.schema = pa.schema([*key, *columns, time])
        names = [", ".join(schema.names) for schema in self._kept]
        self.state_types = {
            **types_of(KEY, key),
            **types_of("left", self._kept[_LEFT]),
            **types_of("right", self._kept[_RIGHT]),
        }
        self.identity = f"{kind} join within {interval}{by(key)}: {' with '.join(names)}"

    def process(self, inputs: Sequence[TimedRows], state: StageRows, at: StageTime) -> Processed:
        """Emit pairs, then drop rows that can meet no other."""
        done = Processed(no_rows(self.schema))
        parts = []
        if any(map(len, inputs)):
            timely = [set_apart(rows, rows.times <= at.late, done.apart) for rows in inputs]
            parts += self._meet(timely, state)
        due, done.has_more = state.due(at.watermark)
        if due:
            parts += self._drop(due, state, at.watermark)
        done.rows = joined(parts, self.schema)
        return done

    # -- pairs

    def _meet(self, inputs: Sequence[TimedRows], state: StageRows) -> list[TimedRows]:
        codes, places = self._codes(inputs)
        heads = [_Head(row) for row in state.fetch(places, [_HEAD] * len(places))]
        left, right = (
            self._buffered(side, codes[side], inputs[side], (places, heads), state)
            for side in (_LEFT, _RIGHT)
        )
        # Old rows have met each other.
        at_left, at_right = self._matches(left, right)
        emitted = self._pairs(left, right, (at_left, at_right), places)
        left.met[at_left] = True
        right.met[at_right] = True
        for side, buffered, met in ((_LEFT, left, at_left), (_RIGHT, right, at_right)):
            if self._outer[side]:
                self._rewrite_met(side, buffered, np.unique(met[met < buffered.old]), places, state)
            self._append(side, buffered, places, heads, state)
        for place, head in zip(places, heads, strict=True):
            head.write(place, state)
        lonely = [
            self._keyless(side, inputs[side].pick(codes[side] < 0))
            for side in (_LEFT, _RIGHT)
            if self._outer[side]
        ]
        return [emitted, *lonely]

    def _codes(self, inputs: Sequence[TimedRows]) -> tuple[list[Codes], list[bytes]]:
        """Return the key of each row of both sides as a number, and the keys' places; −1 where a key has a null."""
        columns = [
            pa.chunked_array(
                [
                    chunk
                    for rows, side in zip(inputs, self._sides, strict=True)
                    for chunk in rows.table.column(side.key[at]).chunks
                ],
                field.type,
            )
            for at, field in enumerate(self.keys.schema)
        ]
        count = sum(map(len, inputs))
        has_null = np.zeros(count, np.bool_)
        for column in columns:
            if column.null_count:
                has_null |= column.is_null().combine_chunks().to_numpy(zero_copy_only=False)
        present = np.flatnonzero(~has_null)
        if len(present) < count:
            chosen = pa.array(present)
            columns = [column.take(chosen) for column in columns]
        groups, places = self.keys.groups_of_columns(columns, len(present))
        codes: Codes = np.full(count, -1, np.int64)
        codes[present] = groups.codes
        split = len(inputs[_LEFT])
        return [codes[:split], codes[split:]], places

    def _buffered(
        self,
        side: int,
        codes: Codes,
        new: TimedRows,
        keys: tuple[Sequence[bytes], Sequence[_Head]],
        state: StageRows,
    ) -> _Buffered:
        """Return the rows of a side: those of state of these keys, then those of the transaction."""
        places, heads = keys
        chunks = [(key, number) for key, head in enumerate(heads) for number in head.numbers[side]]
        stored = state.fetch(
            [places[key] for key, _ in chunks], [_part(side, number) for _, number in chunks]
        )
        contents = [decode(row.content) for row in stored if row is not None]
        assert len(contents) == len(chunks), "a head names chunks that are there"
        counts = np.array([len(content[0]) for content in contents], np.int64)
        columns = [
            [value for content in contents for value in content[at]]
            for at in range(_FIXED + len(self._types[side]))
        ]
        kept = self._kept[side]
        arrays = [
            from_stored(values, stored_as, type_)
            for values, stored_as, type_ in zip(
                columns[_FIXED:], self._types[side], kept.types, strict=True
            )
        ]
        table = pa.table([new.table.column(name) for name in kept.names], schema=kept)
        old = pa.table(arrays, schema=kept) if kept.names else table.slice(0, 0)
        old_codes = np.repeat(np.array([key for key, _ in chunks], np.int64), counts)
        return _Buffered(
            np.concatenate([old_codes, codes]),
            np.concatenate([np.array(columns[0], np.int64), new.times]),
            np.concatenate([np.array(columns[1], np.int64), self._ends(side, new)]),
            pa.concat_tables([old, table]),
            np.concatenate([np.array(columns[2], np.bool_), np.zeros(len(codes), np.bool_)]),
            len(old_codes),
            chunks,
            np.cumsum(counts),
        )

    def _ends(self, side: int, rows: TimedRows) -> Times:
        lower, upper = self._interval.lower, self._interval.upper
        if side == _RIGHT:
            return np.full(len(rows), FOREVER) if lower is None else rows.times - lower
        if upper is None:
            return np.full(len(rows), FOREVER)
        if isinstance(upper, int):
            return rows.times + upper
        ends, is_null = event_ms_of(rows.table.column(upper))
        return np.where(is_null, NO_TIME, ends)

    def _matches(self, left: _Buffered, right: _Buffered) -> tuple[Codes, Codes]:
        """Return the positions of the rows of both sides that meet, shape (pairs,) each; old ones have met before."""
        lower = self._interval.lower
        begins = np.full(len(left.times), NEVER_LATE) if lower is None else left.times + lower
        old_left = np.arange(left.old)
        new_left = np.arange(left.old, len(left.codes))
        every = matched(
            Intervals(left.codes[new_left], begins[new_left], left.ends[new_left]),
            right.codes,
            right.times,
        )
        later = matched(
            Intervals(left.codes[old_left], begins[old_left], left.ends[old_left]),
            right.codes[right.old :],
            right.times[right.old :],
        )
        return (
            np.concatenate([new_left[every[0]], later[0]]),
            np.concatenate([every[1], later[1] + right.old]),
        )

    def _pairs(
        self,
        left: _Buffered,
        right: _Buffered,
        at: tuple[Codes, Codes],
        places: Sequence[bytes],
    ) -> TimedRows:
        at_left, at_right = at
        times = np.maximum(left.times[at_left], right.times[at_right])
        key = self.keys.columns_of(places)
        of = pa.array(left.codes[at_left])
        arrays = [
            *(column.take(of) for column in key),
            *left.table.take(pa.array(at_left)).columns,
            *right.table.take(pa.array(at_right)).columns,
            times_as(times, self._time.type),
        ]
        return TimedRows(pa.table(arrays, schema=self.schema), times)

    # -- state

    def _append(
        self,
        side: int,
        rows: _Buffered,
        places: Sequence[bytes],
        heads: Sequence[_Head],
        state: StageRows,
    ) -> None:
        """Write the transaction's rows of a side, behind those in the last chunk of their key if there is room."""
        new = np.arange(rows.old, len(rows.codes))
        new = new[rows.codes[new] >= 0]
        if not len(new):
            return
        filled = rows.last_chunks(set(rows.codes[new].tolist()))
        reopened = [np.arange(begin, end) for _, begin, end in filled.values()]
        order = np.concatenate([*reopened, new])
        order = order[np.argsort(rows.codes[order], kind="stable")]
        codes = rows.codes[order]
        table = rows.table.take(pa.array(order))
        columns: list[list[Any]] = [
            rows.times[order].tolist(),
            rows.ends[order].tolist(),
            rows.met[order].tolist(),
            *(
                as_stored(column, type_).to_pylist()
                for column, type_ in zip(table.columns, self._types[side], strict=True)
            ),
        ]
        begins = np.flatnonzero(np.diff(codes, prepend=-1)).tolist()
        for begin, end in zip(begins, [*begins[1:], len(codes)], strict=True):
            key = int(codes[begin])
            for first in range(begin, end, CHUNK_ROWS):
                part = [column[first : min(first + CHUNK_ROWS, end)] for column in columns]
                is_reopened = first == begin and key in filled
                number = filled[key][0] if is_reopened else heads[key].add(side)
                self._write(places[key], side, number, part, state)

    def _write(
        self, place: bytes, side: int, number: int, part: Sequence[Any], state: StageRows
    ) -> None:
        end = min(part[1])
        due = None if end >= FOREVER else end
        state.write(place, _part(side, number), encode(part), due, filed=None)

    def _rewrite_met(
        self, side: int, rows: _Buffered, met: Codes, places: Sequence[bytes], state: StageRows
    ) -> None:
        """Note in state which rows have met another."""
        if not len(met):
            return
        for at in np.unique(np.searchsorted(rows.chunk_ends, met, "right")).tolist():
            key, number = rows.chunks[at]
            (row,) = state.fetch([places[key]], [_part(side, number)])
            assert row is not None, "the chunk was just read"
            part = decode(row.content)
            end = int(rows.chunk_ends[at])
            part[2] = rows.met[end - len(part[0]) : end].tolist()
            state.write(row.place, row.part, encode(part), row.due_ms, filed=row.due_ms)

    def _drop(self, due: Sequence[StoredRow], state: StageRows, watermark: int) -> list[TimedRows]:
        """Drop rows that can meet no other; return those that never did, if the join is outer."""
        gone: dict[bytes, set[int]] = {}
        lonely: tuple[list[Any], list[Any]] = ([], [])
        for row in due:
            side = _LEFT if row.part % 2 == 0 else _RIGHT
            columns = decode(row.content)
            kept = [at for at, end in enumerate(columns[1]) if end > watermark]
            if self._outer[side]:
                lonely[side].extend(
                    (row.place, *(column[at] for column in columns))
                    for at, end in enumerate(columns[1])
                    if end <= watermark and not columns[2][at]
                )
            if kept:
                part = [[column[at] for at in kept] for column in columns]
                self._write(row.place, side, row.part // 2, part, state)
            else:
                state.remove(row.place, row.part)
                gone.setdefault(row.place, set()).add(row.part)
        places = list(gone)
        for place, head_row in zip(places, state.fetch(places, [_HEAD] * len(places)), strict=True):
            head = _Head(head_row)
            head.forget(gone[place])
            head.write(place, state)
        return [self._lonely_of(side, lonely[side]) for side in (_LEFT, _RIGHT) if lonely[side]]

    def _lonely_of(self, side: int, rows: list[Any]) -> TimedRows:
        rows.sort(key=lambda row: row[2])
        places, times, _, _, *columns = (list(column) for column in zip(*rows, strict=True))
        kept = self._kept[side]
        own = [
            from_stored(values, stored_as, type_)
            for values, stored_as, type_ in zip(columns, self._types[side], kept.types, strict=True)
        ]
        return self._alone(side, self.keys.columns_of(places), own, np.array(times, np.int64))

    def _keyless(self, side: int, rows: TimedRows) -> TimedRows:
        """Return rows whose key has a null: they never meet another."""
        key = [rows.table.column(name) for name in self._sides[side].key]
        kept = [rows.table.column(name) for name in self._kept[side].names]
        return self._alone(side, key, kept, rows.times)

    def _alone(self, side: int, key: Sequence[Any], own: Sequence[Any], times: Times) -> TimedRows:
        other = [pa.nulls(len(times), type_) for type_ in self._kept[1 - side].types]
        columns = [*own, *other] if side == _LEFT else [*other, *own]
        arrays = [*key, *columns, times_as(times, self._time.type)]
        return TimedRows(pa.table(arrays, schema=self.schema), times)

    @property
    def shown_schema(self) -> None:
        """It shows nothing."""

    def shown(self, rows: Sequence[StoredRow]) -> None:
        """Show nothing: rows that wait for others are no results."""
        del rows


class _Head:
    """The numbers of a key's chunks."""

    def __init__(self, row: StoredRow | None) -> None:
        content: Any = [0, [], []] if row is None else decode(row.content)
        self._next: int = content[0]
        self.numbers: tuple[list[int], list[int]] = (content[1], content[2])
        self._is_there = row is not None
        self._has_changed = False

    def add(self, side: int) -> int:
        """Return the number of a new chunk."""
        number, self._next = self._next, self._next + 1
        self.numbers[side].append(number)
        self._has_changed = True
        return number

    def forget(self, parts: set[int]) -> None:
        """Forget chunks."""
        for side, numbers in enumerate(self.numbers):
            numbers[:] = [number for number in numbers if _part(side, number) not in parts]
        self._has_changed = True

    def write(self, place: bytes, state: StageRows) -> None:
        """Write it if it has changed."""
        if not self._has_changed:
            return
        if any(self.numbers):
            state.write(place, _HEAD, encode([self._next, *self.numbers]), None, filed=None)
        elif self._is_there:
            state.remove(place, _HEAD)


@dataclass(frozen=True, slots=True)
class Intervals:
    """An interval of times of each left row, both ends in."""

    codes: Codes
    begins: Times
    ends: Times


def matched(intervals: Intervals, codes: Codes, times: Times) -> tuple[Codes, Codes]:
    """Return (interval, row) of each row that lies in an interval of its code, by interval, then by time.

    Args:
        intervals: A code below 0 meets nothing.
        codes: Of the rows.
        times: Of the rows.
    """
    # Ranks of times, so that (code, time) is one number that cannot overflow.
    bounds = np.unique(times)
    width = len(bounds) + 1
    place = codes * width + np.searchsorted(bounds, times)
    order = np.argsort(place, kind="stable")
    place = place[order]
    first = np.searchsorted(bounds, intervals.begins)
    behind = np.searchsorted(bounds, intervals.ends, "right")
    begins = np.searchsorted(place, intervals.codes * width + first)
    ends = np.searchsorted(place, intervals.codes * width + behind)
    counts = np.where(intervals.codes >= 0, np.maximum(ends - begins, 0), 0)
    of = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    return of, order[begins[of] + within]


def _wait_ms(interval: Interval, outer: tuple[bool, bool]) -> int:
    """Return how long after its own time a row without a partner is emitted, at most."""
    left = interval.upper if outer[_LEFT] and isinstance(interval.upper, int) else 0
    right = -interval.lower if outer[_RIGHT] and interval.lower is not None else 0
    return max(left, right, 0)


def _part(side: int, number: int) -> int:
    return 2 * number + side
