"""Streams as they are written: what is refused, where the error points, what the plan says, and how rows reach it."""

from __future__ import annotations

import contextlib
import io
import runpy
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broadsheet.consumer.keyed.operators.durations import duration_ms, shown_duration
from broadsheet.consumer.keyed.operators.plan import OperatorPlan
from broadsheet.consumer.keyed.operators.run import times_of
from broadsheet.consumer.keyed.operators.timed_rows import NO_TIME
from broadsheet.journals.message.uuid import clock_at
from broadsheet.keyed import (
    Stream,
    StreamApplication,
    col,
    count,
    distinct,
    hopping,
    last,
    max_,
    mean,
    quantiles,
    session,
    spanning,
    stream,
    sum_,
    tumbling,
    until,
)
from broadsheet.runtime.errors import ValidationError
from tests.support.documents import REPOSITORY, blocks_of
from tests.support.stream_runs import PlanLives, StoreLives

ROWS = "user string, amount long, at timestamp, open boolean"
orders = stream("orders", ROWS, time="at")
by_user = orders.key_by("user")
ticks = stream("ticks", "k string, t long, v long", time="t")
by_k = ticks.key_by("k")


@pytest.fixture(name="lives")
def _lives(tmp_path: Path) -> Iterator[StoreLives]:
    lives = StoreLives(tmp_path)
    yield lives
    lives.end()


_WRONG: dict[str, Callable[[], Any]] = {
    "stream.rows: expected a type in the schema": lambda: stream("x", "a lon"),
    "stream.time: expected a column among user, amount": lambda: stream("x", ROWS, time="when"),
    "stream.time: expected a timestamp or an integer": lambda: stream("x", ROWS, time="user"),
    "stream.delay: expected a length of time": lambda: stream("x", ROWS, delay="soon"),
    "stream.delay: expected at least 0s": lambda: stream("x", ROWS, delay="-1m"),
    "where.condition: expected an expression over user": lambda: orders.where(col("price") > 1),
    "where: expected truth values, got int64": lambda: orders.where(col("amount")),
    "where: expected declared rows": lambda: stream("x").where(col("a") > 1),
    "select.double: expected an expression over": lambda: orders.select(double=col("user") * 2),
    "select: expected a column among user": lambda: orders.select("users"),
    "select: expected at least one column": lambda: orders.select(),
    "key_by: expected a column among user, amount, at, open; got 'usr'": lambda: orders.key_by(
        "usr"
    ),
    "key_by: expected distinct columns": lambda: orders.key_by("user", "user"),
    "window: expected windows such as": lambda: by_user.window("10m"),  # type: ignore[arg-type]  # what is tried
    "window.size: expected at least 1ms": lambda: tumbling(0),
    "window.slide: expected at most the size, 1m": lambda: hopping("1m", "2m"),
    "window.slide: expected at most 10000 windows a row": lambda: hopping("1d", "1s"),
    "window.gap: expected a length of time": lambda: session("a while"),
    "window.lateness: expected at least 0s": lambda: by_user.window(tumbling("1m"), lateness=-1),
    "window.spanning: expected a column among": lambda: by_user.window(spanning("at", "end")),
    "window.spanning: expected times, got": lambda: by_user.window(spanning("at", "open")),
    "window: expected rows with event times": lambda: by_user.agg(n=count()).window(tumbling("1m")),
    "agg: expected an aggregate": lambda: by_user.agg(),
    "agg.n: expected an aggregate such as sum_('amount'), got 'amount'": lambda: by_user.agg(
        n="amount"  # type: ignore[arg-type]  # what is tried
    ),
    "agg.total: expected a column among user": lambda: by_user.agg(total=sum_("price")),
    "agg.total: expected a column of numbers, got string": lambda: by_user.agg(total=sum_("user")),
    "agg.best: expected a column with an order, got bool": lambda: by_user.agg(best=max_("open")),
    "agg.kinds.precision: expected 7 to 21": lambda: by_user.agg(
        kinds=distinct("amount", precision=4)
    ),
    "agg.parts.fractions: expected numbers in": lambda: by_user.agg(parts=quantiles("amount", 2.0)),
    "agg.user: expected another name than a column of the key": lambda: by_user.agg(user=count()),
    "window: expected another name than 'window_end'": lambda: by_user.window(tumbling("1m")).agg(
        window_end=count()
    ),
    "top.by: expected a column among": lambda: by_user.top(1, by="price"),
    "top.by: expected a column with an order, got bool": lambda: by_user.top(1, by="open"),
    "top.n: expected at least 1, got 0": lambda: by_user.top(0, by="amount"),
    "top: expected tumbling, hopping or spanning windows": lambda: by_user.window(
        session("1m")
    ).top(1, by="amount"),
    "deduplicate.within: expected at least 1ms": lambda: by_user.deduplicate(within=0),
    "join: expected keys of the same types": lambda: by_user.join(
        orders.key_by("amount"), lower=0, upper=0
    ),
    "join.upper: expected at least join.lower": lambda: by_user.join(by_user, lower=0, upper=-1),
    "join.upper: expected a column among": lambda: by_user.join(
        by_user, lower=0, upper=until("end")
    ),
    "join.how: expected inner, left, right or full": lambda: by_user.join(
        by_user,
        lower=0,
        upper=0,
        how="outer",  # type: ignore[arg-type]  # what is tried
    ),
    "join.time: expected a name that no column has": lambda: by_user.join(
        by_user, lower=0, upper=0, time="at"
    ),
    "time: expected operators of one kind of time": lambda: (
        by_user.window(tumbling("1m"))
        .agg(n=count())
        .key_by("user")
        .window(tumbling("1m"), time="processing")
        .agg(n=count())
        .to("out")
    ),
    "stream.orders: expected one declaration of each stream": lambda: by_user.join(
        stream("orders", ROWS, time="at").key_by("user"), lower=0, upper=0
    ).to("out"),
    "to.sides: expected an option among": lambda: orders.to("out", sides=None),
    "max_future: expected a length of time": lambda: orders.to("out", max_future="never"),
}


@pytest.mark.parametrize("message", _WRONG)
def test_wrong_step_is_refused_where_it_is_written(message: str) -> None:
    """An error at the first transaction is too late: each step names its part, and what was expected."""
    with pytest.raises(ValidationError) as refused:
        _WRONG[message]()
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("250 ms", 250),
        ("2 hours", 7_200_000),
        ("-5s", -5_000),
        ("1.5s", 1_500),
        (7, 7),
        (timedelta(days=1), 86_400_000),
        ("1w", 604_800_000),
    ],
)
def test_length_of_time_is_read_as_people_write_it(given: Any, ms: int) -> None:
    """Text, numbers and timedelta are one thing, and what is shown is read as the same again."""
    assert duration_ms("x", given) == ms
    assert duration_ms("x", shown_duration(ms)) == ms


@pytest.mark.parametrize("given", ["", "m", "10", "10 fortnights", "1m x", True, 1.5, "0.1ms"])
def test_no_length_of_time_is_refused(given: Any) -> None:
    """A number without a unit in text, or part of a millisecond, would be guessed otherwise."""
    with pytest.raises(ValidationError, match="expected"):
        duration_ms("x", given)


def test_undeclared_stream_has_the_columns_that_its_operators_name() -> None:
    """The shortest program has no schema: keys are text, numbers float64, times those of publication."""
    totals = (
        stream("orders")
        .key_by("user")
        .window(tumbling("10m"))
        .agg(total=sum_("amount"), final=last("state"))
    )
    assert totals.schema.names == ["user", "window_start", "window_end", "total", "final"]
    (source,) = OperatorPlan(totals.node).sources
    wanted = [("user", pa.string()), ("amount", pa.float64()), ("state", pa.string())]
    assert list(zip(source.schema.names, source.schema.types, strict=True)) == wanted
    assert isinstance(totals.to("totals"), StreamApplication)


def test_code_of_the_document_runs_and_shows_its_plan(tmp_path: Path) -> None:
    """Somebody copies it: it must be made as it stands, and explain itself as the page says."""
    (block,) = blocks_of(REPOSITORY / "docs" / "streams.md")
    source = tmp_path / "totals.py"
    source.write_text(block.code)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        document = runpy.run_path(str(source))
    assert isinstance(document["application"], StreamApplication)
    lines = [line.strip() for line in printed.getvalue().splitlines()]
    for shown in block.shown:
        begin, _, _ = shown.strip().partition("…")
        assert any(line.startswith(begin.strip()) for line in lines), shown


def test_times_without_a_column_are_those_of_publication() -> None:
    """A message has the clock of its UUID; one that opted out of sequencing has no time at all."""
    table = pa.table({"x": [1, 2]})
    clocks = np.array([clock_at(1_700_000_000_123_000_000), 0], np.uint64)
    assert times_of(table, None, clocks).tolist() == [1_700_000_000_123, NO_TIME]


def test_rows_pass_filter_columns_and_window_in_one_transaction(lives: StoreLives) -> None:
    """Event times stay with their rows through steps that drop or rename the column; the watermark closes."""
    of = (
        ticks.where(col("v") > 0)
        .select("k", twice=col("v") * 2)
        .key_by("k")
        .window(tumbling(10))
        .agg(total=sum_("twice"), middle=mean("twice"))
    )
    plan = PlanLives(lives, of, journals=["ticks"], max_future_ms=1 << 62)
    rows = [{"k": "a", "t": 1, "v": 1}, {"k": "a", "t": 2, "v": -5}, {"k": "a", "t": 30, "v": 4}]
    assert plan.transact({"ticks": rows}) == []
    closed = {"k": "a", "window_start": 0, "window_end": 10, "total": 2, "middle": 2.0}
    assert plan.drain() == [closed]


def test_rows_are_set_apart_with_their_reason(lives: StoreLives) -> None:
    """Late, without a time, too far ahead of the clock: none is lost, and none moves the watermark."""
    of = by_k.window(tumbling(10)).agg(n=count())
    plan = PlanLives(lives, of, journals=["ticks"], max_future_ms=1000)
    plan.transact({"ticks": [{"k": "a", "t": 50, "v": 1}]})
    plan.drain()
    late = {"k": "a", "t": 49, "v": 2}
    future = {"k": "a", "t": 2_001, "v": 3}
    timeless = {"k": "a", "t": None, "v": 4}
    assert plan.transact({"ticks": [late, future, timeless]}) == []
    assert plan.drain() == []
    assert plan.apart == [("future", [future]), ("no event time", [timeless]), ("late", [late])]


def test_processing_time_windows_close_by_the_clock(lives: StoreLives) -> None:
    """Rows are in the window of the transaction that reads them, and the shard wakes itself at its end."""
    of = by_k.window(tumbling(1000), time="processing").agg(n=count())
    plan = PlanLives(lives, of, journals=["ticks"])
    row = {"k": "a", "t": 5, "v": 1}
    plan.clock.now_ms = 1_100
    plan.transact({"ticks": [row, row]})
    assert plan.run.next_txn_after() == pytest.approx(0.9)
    plan.clock.now_ms = 2_000
    (closed,) = plan.transact({"ticks": [row]})
    assert (closed["n"], closed["window_start"].timestamp()) == (2, 1.0)
    assert plan.run.next_txn_after() == pytest.approx(1.0)


def test_windows_that_close_in_pieces_hold_the_operator_behind(
    lives: StoreLives,
) -> None:
    """A second operator must not close a window before the first has emitted all that belongs there."""
    counts = by_k.window(tumbling(10)).agg(n=count())
    of = counts.window(spanning("window_start", "window_end")).agg(keys=count(), rows=sum_("n"))
    plan = PlanLives(lives, of, journals=["ticks"], due_rows=3, max_future_ms=1 << 62)
    rows = [{"k": f"k{number}", "t": 1, "v": 1} for number in range(10)]
    plan.transact({"ticks": [*rows, {"k": "z", "t": 10, "v": 1}]})
    first = plan.transact()
    assert first == []
    assert plan.drain() == [{"window_start": 0, "window_end": 10, "keys": 10, "rows": 10}]


def test_plan_of_other_operators_is_refused_by_its_state(lives: StoreLives) -> None:
    """Rows of state are read by the operator that wrote them; another one's would be taken for its own."""
    plan = PlanLives(lives, by_k.window(tumbling(10)).agg(n=count()), journals=["ticks"])
    plan.transact({"ticks": [{"k": "a", "t": 5, "v": 1}]})
    with pytest.raises(ValidationError, match=r"plan\.1: expected .*tumbling 10ms.* got .*20ms"):
        PlanLives(lives, by_k.window(tumbling(20)).agg(n=count()), journals=["ticks"])
    filtered = ticks.where(col("v") > 3).key_by("k").window(tumbling(10)).agg(n=count())
    PlanLives(lives, filtered, journals=["ticks"])


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ("k long, t long, v long", r"plan\.1\.key\.k: expected string, .* got int64"),
        ("k binary, t long, v long", r"plan\.1\.key\.k: expected string, .* got binary"),
        ("k string, t long, v timestamp", r"plan\.1\.agg\.most: expected int64, .* got timestamp"),
    ],
)
def test_plan_of_other_types_is_refused_by_its_state(
    lives: StoreLives, rows: str, where: str
) -> None:
    """A key or an accumulator would be read as what it is not; wider types are none of these."""

    def plan_of(declared: str) -> Stream:
        source = stream("ticks", declared, time="t")
        return source.key_by("k").window(tumbling(10)).agg(most=max_("v"))

    plan = PlanLives(lives, plan_of("k string, t long, v long"), journals=["ticks"])
    plan.transact({"ticks": [{"k": "a", "t": 5, "v": 1}]})
    with pytest.raises(ValidationError, match=where):
        PlanLives(lives, plan_of(rows), journals=["ticks"])
    wider = PlanLives(lives, plan_of("k string, t long, v double"), journals=["ticks"])
    wider.transact({"ticks": [{"k": "a", "t": 50, "v": 0.5}]})
    assert wider.drain() == [{"k": "a", "window_start": 0, "window_end": 10, "most": 1.0}]


def test_journal_of_no_stream_is_refused(lives: StoreLives) -> None:
    """With several streams a journal belongs to the one whose name it has, or begins with."""
    of = by_k.join(by_user.of.key_by("user"), lower=0, upper=0)
    plan = PlanLives(lives, of, journals=["ticks/part-000", "orders"])
    assert plan.run.source_of("ticks/part-001").name == "ticks"
    with pytest.raises(ValidationError, match="sources: expected journals of the streams"):
        PlanLives(lives, of, journals=["ticks", "others"])


def test_open_windows_are_a_table(lives: StoreLives) -> None:
    """Queries show what is not emitted yet, as of the last durable commit."""
    of = by_k.window(session(10)).agg(n=count())
    plan = PlanLives(lives, of, journals=["ticks"], max_future_ms=1 << 62)
    plan.transact({"ticks": [{"k": "b", "t": 5, "v": 1}, {"k": "a", "t": 9, "v": 1}]})
    plan.transact({"ticks": [{"k": "a", "t": 19, "v": 1}]}, commits=False)
    assert list(plan.run.tables()) == ["operator_1"]
    with lives.store.view() as view:
        rows = [
            row for table in plan.run.open_rows(view, "operator_1", 1) for row in table.to_pylist()
        ]
    assert sorted(rows, key=lambda row: str(row["k"])) == [
        {"k": "a", "window_start": 9, "window_end": 19, "n": 1},
        {"k": "b", "window_start": 5, "window_end": 15, "n": 1},
    ]
