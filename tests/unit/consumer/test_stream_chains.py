"""Operators behind operators: rows that come one at a time give what they give when they come together.

No row is late in its source, so none may be late in an operator behind another, however long that keeps rows back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.stores.keyed_queries import TimerRange
from broadsheet.keyed import Stream, count, session, stream, sum_, tumbling, until
from broadsheet.runtime.errors import ValidationError
from tests.support.stream_runs import PlanLives, Rows, StoreLives

_DELAY = 20
_END = 1_000_000
_EMPTY_TXNS_MAX = 50


def _orders() -> Stream:
    return stream("orders", "k string, t long, v long", time="t", delay=f"{_DELAY}ms")


def _views() -> Stream:
    return stream("views", "k string, t long, w long", time="t", delay=f"{_DELAY}ms")


def _windows() -> Stream:
    return _orders().key_by("k").window(tumbling("10ms")).agg(n=count())


def _joined(how: Any, lower: str | None, upper: str | None) -> Stream:
    left, right = _orders().key_by("k"), _views().key_by("k")
    return left.join(right, lower=lower, upper=upper, how=how, time="met")


def _windowed_join(how: Any, lower: str | None, upper: str | None) -> Stream:
    of = _joined(how, lower, upper)
    return of.key_by("k").window(tumbling("10ms")).agg(n=count(), v=sum_("v"), w=sum_("w"))


def _joined_windows() -> Stream:
    windows = _windows().key_by("k")
    return windows.join(windows, lower="-10ms", upper="10ms")


CHAINS: dict[str, Callable[[], Stream]] = {
    "duplicates for ever, then windows": lambda: (
        _orders().key_by("k", "v").deduplicate().key_by("k").window(tumbling("10ms")).agg(n=count())
    ),
    "duplicates for a while, then sessions": lambda: (
        _orders()
        .key_by("k", "v")
        .deduplicate(within="1h")
        .key_by("k")
        .window(session("7ms"))
        .agg(n=count())
    ),
    "windows, then duplicates": lambda: (
        _windows().key_by("k", "window_start").deduplicate(within="1h")
    ),
    "windows, then a join": _joined_windows,
    "windows, a join, then windows": lambda: (
        _joined_windows().key_by("k").window(tumbling("30ms")).agg(n=count())
    ),
    "left join, then windows": lambda: _windowed_join("left", "0ms", "50ms"),
    "right join, then windows": lambda: _windowed_join("right", "-50ms", "0ms"),
    "full join, then windows": lambda: _windowed_join("full", "-15ms", "5ms"),
    "full join, then duplicates": lambda: (
        _joined("full", "-15ms", "5ms").key_by("k", "met", "v", "w").deduplicate(within="1h")
    ),
    "unbounded join, then windows": lambda: _windowed_join("inner", None, None),
    "left join in the past, then windows": lambda: _windowed_join("left", "-20ms", "-10ms"),
}


@pytest.fixture(name="new_lives")
def _new_lives(tmp_path: Path) -> Iterator[Callable[[Stream], tuple[StoreLives, PlanLives]]]:
    made: list[StoreLives] = []

    def new(of: Stream) -> tuple[StoreLives, PlanLives]:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(StoreLives(directory))
        return made[-1], PlanLives(made[-1], of, journals=("orders", "views"))

    yield new
    for each in made:
        each.end()


def _input(seed: int, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return rows of both sources, none of which is late by more than half of the delay."""
    chance = random.Random(seed)
    rows: list[tuple[str, dict[str, Any]]] = []
    for number in range(count):
        time = 100 + 4 * number + chance.randint(-_DELAY // 2, _DELAY // 2)
        journal = chance.choice(["orders", "views"])
        value = chance.randint(0, 3) if journal == "orders" else number
        name = "v" if journal == "orders" else "w"
        rows.append((journal, {"k": chance.choice("abcdefgh"), "t": time, name: value}))
    return rows


def _drained(lives: PlanLives) -> Rows:
    out: Rows = []
    for _ in range(_EMPTY_TXNS_MAX):
        if lives.run.next_txn_after() != 0:
            return out
        out += lives.transact()
    raise AssertionError("transactions without rows go on for ever")


def _ended(lives: PlanLives) -> Rows:
    last = {"k": "end", "t": _END, "v": None, "w": None}
    rows = {journal: [last] for journal in ("orders", "views")}
    out = lives.transact(rows) + _drained(lives)
    return [row for row in out if row["k"] != "end"]


def _in_order(rows: Rows) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize("name", CHAINS)
def test_rows_of_one_operator_are_not_late_for_the_next(
    new_lives: Callable[[Stream], tuple[StoreLives, PlanLives]], name: str
) -> None:
    """Rows one at a time, and restarts between them, give what all at once give; none is set apart."""
    rows = _input(seed=7, count=100)
    _, at_once = new_lives(CHAINS[name]())
    together: dict[str, Rows] = {}
    for journal, row in rows:
        together.setdefault(journal, []).append(row)
    expected = at_once.transact(together) + _ended(at_once)
    store, one_by_one = new_lives(CHAINS[name]())
    found: Rows = []
    for number, (journal, row) in enumerate(rows):
        found += one_by_one.transact({journal: [row]}) + _drained(one_by_one)
        if number % 13 == 0:
            store.reopen()
            one_by_one.restore()
    found += _ended(one_by_one)
    assert expected
    assert one_by_one.apart == []
    assert _in_order(found) == _in_order(expected)


def test_rows_whose_interval_ends_anywhere_have_no_event_times() -> None:
    """An outer join until a column of left rows emits these however late, so no window can follow it."""
    left = stream("orders", "k string, t long, until long", time="t").key_by("k")
    joined = left.join(_views().key_by("k"), lower="0ms", upper=until("until"), how="left")
    with pytest.raises(ValidationError, match="an outer join until a column"):
        joined.key_by("k").window(tumbling("10ms"))


def test_open_window_behind_others_is_due_when_it_will_be_emitted(
    new_lives: Callable[[Stream], tuple[StoreLives, PlanLives]],
) -> None:
    """A question for timers finds it, from the first entry of the index and from the one that a restart makes."""
    store, plan = new_lives(CHAINS["left join, then windows"]())
    orders = [{"k": "a", "t": time, "v": 1} for time in (5, 70)]
    plan.transact({"orders": orders, "views": [{"k": "a", "t": 5, "w": 2}, {"k": "b", "t": 70}]})
    assert _drained(plan) == []
    for _ in range(2):
        # The window [0, 10) ends 50 ms late, because a row without a partner waits so long.
        for until_ms, found in ((59, []), (60, [60])):
            wanted = TimerRange(until_ms=until_ms)
            page = plan.run.queries.timers("operator_2", wanted)
            assert page.table.column("due_ms").to_pylist() == found
        store.reopen()
        plan.restore()
