"""Random rows, split into transactions at random, give what DuckDB's SQL gives of all of them."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import count as numbers
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from broadsheet.keyed import (
    Stream,
    count,
    distinct,
    hopping,
    last,
    max_,
    mean,
    min_,
    quantiles,
    session,
    stream,
    sum_,
    tumbling,
    until,
)
from tests.support.stream_runs import OperatorLife, StoreLives

_SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.int64()),
        ("v", pa.int64()),
        ("f", pa.float64()),
        ("d", pa.decimal128(12, 2)),
        ("s", pa.string()),
        ("n", pa.int64()),
    ]
)
_SECOND = pa.schema([("k", pa.string()), ("t", pa.int64()), ("n", pa.int64())])
_END = 1 << 40
"""A watermark behind all rows."""
_RARE = settings(
    max_examples=int(os.environ.get("STREAM_EXAMPLES", "10")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Rows = list[dict[str, Any]]
_keys = st.sampled_from(["a", "b", "ü", "", None])
_times = st.integers(-30, 60)
_rows = st.lists(
    st.builds(
        lambda k, t, v, f, cents, s: {
            "k": k,
            "t": t,
            "v": v,
            "f": f,
            "d": None if cents is None else Decimal(cents) / 100,
            "s": s,
        },
        _keys,
        _times,
        st.none() | st.integers(-(10**6), 10**6),
        st.none() | st.integers(-8, 8).map(lambda n: n / 4),
        st.none() | st.integers(-(10**6), 10**6),
        st.none() | st.sampled_from(["x", "y", "Z", ""]),
    ),
    max_size=40,
)


@pytest.fixture(name="new_lives")
def _new_lives(tmp_path: Path) -> Callable[[], Any]:
    names = numbers()

    @contextmanager
    def new() -> Iterator[StoreLives]:
        directory = tmp_path / str(next(names))
        directory.mkdir()
        lives = StoreLives(directory)
        try:
            yield lives
        finally:
            lives.end()

    return new


def _streamed(lives: StoreLives, of: Stream, *tables: pa.Table, seed: int) -> Rows:
    """Give the rows in order in transactions of random lengths, with restarts, and close everything at the end."""
    chance = random.Random(seed)
    life = OperatorLife(lives, of)
    out: Rows = []
    ends = [0] * len(tables)
    while any(end < len(table) for end, table in zip(ends, tables, strict=True)):
        parts = []
        for side, table in enumerate(tables):
            size = chance.choice([0, 1, 3, 20])
            parts.append(table.slice(ends[side], size))
            ends[side] = min(ends[side] + size, len(table))
        out += life.step(*parts)
        if chance.random() < 0.2:
            lives.reopen()
    out += life.step(watermark=_END)
    assert life.step(watermark=_END + 1) == []
    return out


def _table(rows: Rows, schema: pa.Schema = _SCHEMA) -> pa.Table:
    numbered = [{**row, "n": number} for number, row in enumerate(rows)]
    return pa.Table.from_pylist(numbered, schema)


def _sql(query: str, **tables: pa.Table) -> Rows:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        found = connection.execute(query)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _same(ours: Rows, theirs: Rows) -> None:
    def order(row: dict[str, Any]) -> list[tuple[bool, str]]:
        return [(each is None, str(each)) for each in row.values()]

    assert [list(row) for row in ours[:1]] == [list(row) for row in theirs[:1]]
    assert len(ours) == len(theirs)
    for mine, their in zip(sorted(ours, key=order), sorted(theirs, key=order), strict=True):
        for name, value in mine.items():
            expected = their[name]
            if isinstance(value, float) and expected is not None:
                assert math.isclose(value, expected, rel_tol=1e-12, abs_tol=1e-12), (mine, their)
            else:
                assert value == expected, (name, mine, their)


_AGGREGATES = {
    "rows": count(),
    "present": count("v"),
    "total": sum_("v"),
    "money": sum_("d"),
    "least": min_("d"),
    "greatest": max_("s"),
    "low": min_("f"),
    "middle": mean("v"),
    "final": last("s"),
    "kinds": distinct("v"),
}
_SQL_AGGREGATES = """
    count(*) AS rows, count(v) AS present, sum(v)::BIGINT AS total, sum(d) AS money, min(d) AS least,
    max(s) AS greatest, min(f) AS low, avg(v) AS middle,
    arg_max(s, t::HUGEINT * 1000000 + n) FILTER (s IS NOT NULL) AS final, count(DISTINCT v) AS kinds
"""


@_RARE
@given(rows=_rows, seed=st.integers(0, 1 << 30))
def test_running_aggregate_of_random_rows_equals_sql(
    rows: Rows, seed: int, new_lives: Callable[[], Any]
) -> None:
    """The last emission of each key is GROUP BY's answer: each kind of aggregate, nulls and a null key included."""
    table = _table(rows)
    of = stream("in", _SCHEMA, time="t").key_by("k").agg(**_AGGREGATES)
    with new_lives() as lives:
        out = _streamed(lives, of, table, seed=seed)
    final = list({row["k"]: row for row in out}.values())
    _same(final, _sql(f"SELECT k, {_SQL_AGGREGATES} FROM rows GROUP BY k", rows=table))


@_RARE
@given(rows=_rows, slide=st.sampled_from([10, 5, 3]), seed=st.integers(0, 1 << 30))
def test_window_aggregate_of_random_rows_equals_sql(
    rows: Rows, slide: int, seed: int, new_lives: Callable[[], Any]
) -> None:
    """Windows, tumbling and hopping, are a join of rows with their starts, also before the epoch."""
    table = _table(rows)
    of = (
        stream("in", _SCHEMA, time="t")
        .key_by("k")
        .window(hopping(10, slide, offset=2))
        .agg(**_AGGREGATES)
    )
    with new_lives() as lives:
        out = _streamed(lives, of, table, seed=seed)
    query = f"""
        SELECT k, s0 AS window_start, s0 + 10 AS window_end, {_SQL_AGGREGATES}
        FROM rows, (SELECT unnest(range(-60, 100)) * {slide} + 2 AS s0)
        WHERE s0 <= t AND t < s0 + 10 GROUP BY k, s0
    """
    _same(out, _sql(query, rows=table))
    bounds = [(row["window_end"], (row["k"] is not None, (row["k"] or "").encode())) for row in out]
    assert bounds == sorted(bounds)


@_RARE
@given(rows=_rows, seed=st.integers(0, 1 << 30))
def test_sessions_of_random_rows_equal_sql(
    rows: Rows, seed: int, new_lives: Callable[[], Any]
) -> None:
    """Sessions that grow on both sides, and merge, are those of a scan in the order of time."""
    table = _table(rows)
    of = stream("in", _SCHEMA, time="t").key_by("k").window(session(4)).agg(**_AGGREGATES)
    with new_lives() as lives:
        out = _streamed(lives, of, table, seed=seed)
    query = f"""
        WITH marked AS (
            SELECT *, coalesce(t - lag(t) OVER w > 4, true)::INT AS begins
            FROM rows WINDOW w AS (PARTITION BY k ORDER BY t)
        ), numbered AS (
            SELECT *, sum(begins) OVER (PARTITION BY k ORDER BY t RANGE UNBOUNDED PRECEDING) AS number FROM marked
        )
        SELECT k, min(t) AS window_start, max(t) + 4 AS window_end, {_SQL_AGGREGATES}
        FROM numbered GROUP BY k, number
    """
    _same(out, _sql(query, rows=table))


@_RARE
@given(rows=_rows, n=st.integers(1, 3), ties=st.booleans(), seed=st.integers(0, 1 << 30))
def test_top_rows_of_random_windows_equal_sql(
    rows: Rows, n: int, ties: bool, seed: int, new_lives: Callable[[], Any]
) -> None:
    """The greatest values of each window, ties by time and arrival, or all of them, are those of a ranking."""
    table = _table(rows)
    top = stream("in", _SCHEMA, time="t").key_by("k").window(tumbling(20)).top(n, by="f", ties=ties)
    with new_lives() as lives:
        out = _streamed(lives, top, table, seed=seed)
    best = "rank() OVER (PARTITION BY k, s0 ORDER BY f DESC)" if ties else "rank"
    query = f"""
        WITH placed AS (SELECT *, floor(t / 20.0)::BIGINT * 20 AS s0 FROM rows WHERE f IS NOT NULL),
        ranked AS (
            SELECT *, row_number() OVER (PARTITION BY k, s0 ORDER BY f DESC, t, n)::INT AS rank FROM placed
        )
        SELECT k, s0 AS window_start, s0 + 20 AS window_end, rank, t, v, f, d, s, n
        FROM (SELECT *, {best} AS place FROM ranked) WHERE place <= {n}
    """
    _same(out, _sql(query, rows=table))


_second = st.lists(st.builds(lambda k, t: {"k": k, "t": t}, _keys, _times), max_size=30)


@_RARE
@given(
    left=_second,
    right=_second,
    how=st.sampled_from(["inner", "left", "right", "full"]),
    bounds=st.tuples(st.none() | st.integers(-9, 9), st.none() | st.integers(0, 9)),
    seed=st.integers(0, 1 << 30),
)
def test_interval_join_of_random_rows_equals_sql(
    left: Rows,
    right: Rows,
    how: Any,
    bounds: tuple[int | None, int | None],
    seed: int,
    new_lives: Callable[[], Any],
) -> None:
    """Pairs, and rows without a partner, are those of SQL's join: null keys meet nothing, both bounds are in."""
    lower, length = bounds
    upper = None if length is None else (0 if lower is None else lower) + length
    tables = [_table(rows, _SECOND) for rows in (left, right)]
    l_stream = stream("l", _SECOND, time="t").key_by("k")
    r_stream = stream("r", _SECOND, time="t").key_by("k")
    of = l_stream.join(r_stream, lower=lower, upper=upper, how=how)
    if lower is None or upper is None:
        how = "inner"
        of = l_stream.join(r_stream, lower=lower, upper=upper)
    with new_lives() as lives:
        out = _streamed(lives, of, *tables, seed=seed)
    begin = "true" if lower is None else f"l.t + {lower} <= r.t"
    end = "true" if upper is None else f"r.t <= l.t + {upper}"
    query = f"""
        SELECT coalesce(l.k, r.k) AS k, l.t AS t, l.n AS n, r.t AS t_right, r.n AS n_right,
            greatest(l.t, r.t) AS event_time
        FROM l {how} JOIN r ON l.k = r.k AND {begin} AND {end}
    """
    _same(out, _sql(query, l=tables[0], r=tables[1]))


@_RARE
@given(left=_second, right=_second, seed=st.integers(0, 1 << 30))
def test_join_until_a_column_of_random_rows_equals_sql(
    left: Rows, right: Rows, seed: int, new_lives: Callable[[], Any]
) -> None:
    """An interval's end that left rows name themselves, which may lie before its begin, is SQL's BETWEEN."""
    ending = [{**row, "until": row["t"] + number % 15 - 2} for number, row in enumerate(left)]
    with_end = pa.schema([*_SECOND, ("until", pa.int64())])
    tables = [_table(ending, with_end), _table(right, _SECOND)]
    of = (
        stream("l", with_end, time="t")
        .key_by("k")
        .join(stream("r", _SECOND, time="t").key_by("k"), lower=0, upper=until("until"))
    )
    with new_lives() as lives:
        out = _streamed(lives, of, *tables, seed=seed)
    query = """
        SELECT l.k AS k, l.t AS t, l.n AS n, l.until AS until, r.t AS t_right, r.n AS n_right,
            greatest(l.t, r.t) AS event_time
        FROM l JOIN r ON l.k = r.k AND r.t BETWEEN l.t AND l.until
    """
    _same(out, _sql(query, l=tables[0], r=tables[1]))


@_RARE
@given(rows=_rows, seed=st.integers(0, 1 << 30))
def test_deduplicated_random_rows_equal_sql(
    rows: Rows, seed: int, new_lives: Callable[[], Any]
) -> None:
    """The first row of each key in order of arrival is kept, as DISTINCT ON does."""
    table = _table(rows)
    of = stream("in", _SCHEMA, time="t").key_by("k", "v").deduplicate(within="1h")
    with new_lives() as lives:
        out = _streamed(lives, of, table, seed=seed)
    query = "SELECT * FROM (SELECT DISTINCT ON (k, v) * FROM (FROM rows ORDER BY n) ORDER BY n)"
    _same(out, _sql(query, rows=table))


@_RARE
@given(values=st.lists(st.floats(-100, 100), min_size=1, max_size=60), seed=st.integers(0, 1000))
def test_quantiles_of_random_rows_equal_sql(
    values: list[float], seed: int, new_lives: Callable[[], Any]
) -> None:
    """Sketches of few values are exact, also merged from several transactions."""
    schema = pa.schema([("t", pa.int64()), ("f", pa.float64())])
    table = pa.table([list(range(len(values))), values], schema=schema)
    of = stream("in", schema, time="t").agg(parts=quantiles("f", 0.0, 0.5, 1.0))
    with new_lives() as lives:
        out = _streamed(lives, of, table, seed=seed)
    query = "SELECT quantile_disc(f, [0.0, 0.5, 1.0]) AS parts FROM rows"
    assert out[-1]["parts"] == _sql(query, rows=table)[0]["parts"]
