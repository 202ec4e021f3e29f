"""Answers about keys, against what a model of the same state says: pages, prefixes, timers, bounds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from broadsheet.consumer.errors import KeyElsewhereError
from broadsheet.consumer.keyed import KeyedProcessor, KeyRows, StateHandle, TxnTime
from broadsheet.consumer.keyed.key_fields import fields_of
from broadsheet.consumer.keyed.plain_values import plain
from broadsheet.consumer.keyed.store import IndexKind
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.consumer.stores.keyed_queries import (
    KeyedPageOrder,
    KeyedQueries,
    KeyPrefix,
    TimerRange,
)
from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.wire.key_range import KeyRange
from tests.support.keyed_runs import Lives, settings_of

ROWS = "user string, item long, n long"
KEY = "user string, item long"
ENDLESS = 1 << 40


class Carts(KeyedProcessor):
    """Counts items, keeps what came, and has a timer for each number beyond all times."""

    def init(self, state: StateHandle) -> None:
        """Declare a value, a list, a map, and a value that expires."""
        self.count = state.value("count", int)
        self.came = state.list("came", int)
        self.texts = state.map("texts", int, str)
        self.fresh = state.value("fresh", int, ttl_ms=10)
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> None:
        """Note each row; a number below zero removes what is noted, but for the timers."""
        del key, time
        for row in rows:
            if row.n < 0:
                for variable in (self.count, self.came, self.texts, self.fresh):
                    variable.clear()
                continue
            self.count.update((self.count.get() or 0) + 1)
            self.came.append(row.n)
            self.texts.put(row.n, "x" * min(row.n, 1 << 20))
            self.fresh.update(row.n)
            self.timers.register(ENDLESS + row.n)


@pytest.fixture(params=["memory", "rocksdb"])
def lives(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lives]:
    """Yield a shard of carts over either index."""
    index: IndexKind = request.param
    made = Lives(tmp_path, Carts, settings_of(ROWS, KEY, mode=TimeMode.PROCESSING), index=index)
    yield made
    made.end()


def paged(queries: KeyedQueries, prefix: KeyPrefix, size: int) -> list[dict[str, Any]]:
    """Return the rows of all pages."""
    rows, cursor = [], b""
    while True:
        page = queries.scan("state", prefix, KeyedPageOrder(size=size, cursor=cursor))
        assert len(page.table) <= size
        rows += page.table.to_pylist()
        cursor = page.cursor
        if not cursor:
            return rows


def timers_of(queries: KeyedQueries, wanted: TimerRange, size: int) -> list[tuple[int, str, int]]:
    """Return (due, user, item) of all pages."""
    found, cursor = [], b""
    while True:
        page = queries.timers("", wanted, KeyedPageOrder(size=size, cursor=cursor))
        found += [tuple(row.values()) for row in page.table.to_pylist()]
        cursor = page.cursor
        if not cursor:
            return found


def test_pages_prefixes_and_look_ups_have_each_key_once(lives: Lives) -> None:
    """A scan has every key once, with pages of any size, and just those that begin so; a look-up has the same row."""
    rows = [(f"u{n % 13}\x00" if n % 5 else f"u{n % 13}", n % 3 - 1, n) for n in range(120)]
    lives.transact(rows)
    keys = {(user, item) for user, item, _ in rows}
    queries = lives.run.queries
    for size in (1, 7, 1_000):
        found = paged(queries, KeyPrefix(), size)
        assert sorted((row["user"], row["item"]) for row in found) == sorted(keys)
        one = paged(queries, KeyPrefix(fields=("u1",)), size)
        assert {(row["user"], row["item"]) for row in one} == {
            key for key in keys if key[0] == "u1"
        }
        begun = paged(queries, KeyPrefix(text="u1"), size)
        wanted = {key for key in keys if key[0].startswith("u1")}
        assert {(row["user"], row["item"]) for row in begun} == wanted
    by_key = {(row["user"], row["item"]): row for row in paged(queries, KeyPrefix(), 50)}
    asked = [*sorted(keys), ("nobody", 0)]
    page = queries.get("", asked)
    assert page.key_numbers == list(range(len(keys)))
    assert page.table.to_pylist() == [by_key[key] for key in sorted(keys)]
    counts = queries.get("state", asked, ["count"]).table.column("count").to_pylist()
    assert counts == [by_key[key]["count"] for key in sorted(keys)]


@pytest.mark.parametrize("asks_timers", [False, True])
def test_cursor_of_a_shard_that_was_split_or_of_another_one_is_refused(
    lives: Lives, asks_timers: bool
) -> None:
    """The pages would end without the keys of the groups that are elsewhere, as if there were none."""
    lives.transact([(f"u{n}", 0, n) for n in range(50)])
    queries: Any = lives.run.queries

    def page(cursor: bytes) -> bytes:
        order = KeyedPageOrder(size=5, cursor=cursor)
        asked = queries.timers("", page=order) if asks_timers else queries.scan("", page=order)
        return bytes(asked.cursor)

    all_groups = page(b"")
    queries.store.owned = KeyRange(0, 0x800)
    with pytest.raises(
        ValidationError, match="groups 0000-0800 of this shard, got one of 0000-1000"
    ):
        page(all_groups)
    lower = page(b"")
    assert page(lower)
    queries.store.owned = KeyRange(0x800, 0x1000)
    with pytest.raises(ValidationError, match="ask each shard of the family"):
        page(lower)
    # Of a shard that took another one in, which has more now.
    queries.store.owned = KeyRange()
    assert page(lower)


def test_keys_that_a_split_takes_away_while_they_are_looked_up_are_refused(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys were found to be the shard's own, and then its next transaction has fewer: without rows, they would be
    told to have no state.
    """
    keys = [(f"u{n}", 0) for n in range(50)]
    lives.transact([(*key, 1) for key in keys])
    queries: Any = lives.run.queries
    reading = queries.store.reading

    def split_before() -> Any:
        queries.store.owned = KeyRange(0, 0x800)
        return reading()

    monkeypatch.setattr(queries.store, "reading", split_before)
    with pytest.raises(KeyElsewhereError, match="groups 0000-0800 of this shard"):
        queries.get("", keys)


def test_keys_of_the_groups_of_others_are_in_no_page(lives: Lives) -> None:
    """Behind a split both shards have them until they are removed, and one may tell of them."""
    lives.transact([(f"u{n}", 0, n) for n in range(50)])
    queries: Any = lives.run.queries
    shown: list[list[tuple[str, int]]] = []
    for owned in (KeyRange(0, 0x800), KeyRange(0x800, 0x1000)):
        queries.store.owned = owned
        rows = paged(queries, KeyPrefix(), 7)
        timers = timers_of(queries, TimerRange(), 7)
        assert {row["user"] for row in rows} == {user for _, user, _ in timers}
        shown.append([(row["user"], row["item"]) for row in rows])

    assert sorted([*shown[0], *shown[1]]) == sorted((f"u{n}", 0) for n in range(50))


def test_answers_are_of_the_last_commit_and_without_what_expired(lives: Lives) -> None:
    """A running transaction is not seen, an expired value is left out, and a key without values shows its timers."""
    lives.transact([("a", 1, 5)])
    queries = lives.run.queries
    lives.transact([("a", 1, 6)], commits=False)
    (row,) = queries.get("", [("a", 1)]).table.to_pylist()
    assert (row["count"], row["fresh"]) == (1, 5)
    lives.restore()
    lives.clock.now_ms += 20
    queries = lives.run.queries
    (row,) = queries.get("", [("a", 1)]).table.to_pylist()
    assert (row["count"], row["fresh"], row["texts"]) == (1, None, [(5, "xxxxx")])
    # Nothing of the variable that is asked for, and yet the key is there.
    assert queries.get("", [("a", 1)], ["fresh"]).table.to_pylist() == [{"fresh": None}]
    lives.transact([("a", 1, -1)])
    (row,) = queries.get("", [("a", 1)]).table.to_pylist()
    assert (row["count"], row["came"], row["timers"]) == (None, None, [ENDLESS + 5])
    assert queries.describe().next_timer_ms == ENDLESS + 5


def test_timers_are_listed_by_time_and_by_key(lives: Lives) -> None:
    """The next timers come first, through pages of any size, in a range of time, or of one key."""
    rows = [("b" if n % 2 else "a", n % 3, n) for n in range(50)]
    lives.transact(rows)
    wanted = [(ENDLESS + n, user, item) for user, item, n in rows]
    queries = lives.run.queries
    for size in (1, 8, 1_000):
        assert timers_of(queries, TimerRange(), size) == wanted
        middle = TimerRange(from_ms=ENDLESS + 10, until_ms=ENDLESS + 20)
        assert timers_of(queries, middle, size) == wanted[10:21]
        mine = TimerRange(key=("b", 1), until_ms=ENDLESS + 30)
        assert timers_of(queries, mine, size) == [
            each for each in wanted[:31] if each[1:] == ("b", 1)
        ]
    assert timers_of(queries, TimerRange(key=("z", 1)), 5) == []
    assert timers_of(queries, TimerRange(from_ms=-1 << 63, until_ms=(1 << 63) - 1), 99) == wanted


def test_key_with_too_much_state_is_refused_and_does_not_hide_others(lives: Lives) -> None:
    """An answer is bounded: a key beyond it is named with what to do, and its small columns and other keys can be
    read.
    """
    lives.transact([("big", 0, (1 << 20) + n) for n in range(5)] + [("small", 0, 1)])
    queries = lives.run.queries
    with pytest.raises(BoundExceededError, match=r"key \('big', 0\) has more than 4 MiB"):
        queries.get("", [("big", 0)])
    assert queries.get("", [("big", 0)], ["count"]).table.to_pylist() == [{"count": 5}]
    assert queries.get("", [("small", 0)]).table.column("count").to_pylist() == [1]
    with pytest.raises(BoundExceededError, match=r"key \('big', 0\)"):
        paged(queries, KeyPrefix(), 1)


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda q: q.get("", []), "keys: expected 1 to 1,000 keys, got 0"),
        (lambda q: q.get("", [("a", 1)] * 1_001), "keys: expected 1 to 1,000 keys, got 1,001"),
        (lambda q: q.get("", [("a", "b")]), r"keys\[0\]\.item: expected int64, got 'b'"),
        (lambda q: q.get("other", [("a", 1)]), "table: expected one of state; got 'other'"),
        (
            lambda q: q.get("", [("a", 1)], ["x"]),
            r"columns\[0\]: expected one of user, item, count",
        ),
        (lambda q: q.scan("", KeyPrefix(fields=(1,))), "prefix.user: expected string, got 1"),
        (
            lambda q: q.scan("", KeyPrefix(fields=("a", 1, 2))),
            r"prefix: expected at most 2 fields \(user, item\), got 3",
        ),
        (lambda q: q.scan("", KeyPrefix(fields=("a",), text="b")), "text_prefix: expected none"),
        (lambda q: q.scan("", page=KeyedPageOrder(size=10_001)), "page_size: expected 1 to 10,000"),
        (
            lambda q: q.scan("", KeyPrefix(text="b"), KeyedPageOrder(cursor=b"ab\x01zzz")),
            "cursor: expected that of an earlier page",
        ),
        (lambda q: q.scan("", page=KeyedPageOrder(cursor=b"\xff")), "cursor: expected that of"),
        (lambda q: q.timers("", page=KeyedPageOrder(cursor=b"ab")), "cursor: expected that of"),
        (lambda q: q.timers("", TimerRange(key=("a",))), r"key: expected 2 fields \(user, item\)"),
        (
            lambda q: q.timers("", TimerRange(from_ms=1 << 70)),
            "from_ms: expected Unix milliseconds",
        ),
        (lambda q: q.timers("", TimerRange(until_ms=-1 << 70)), "until_ms: expected Unix"),
    ],
)
def test_wrong_question_is_answered_with_what_was_expected(
    lives: Lives, ask: Any, problem: str
) -> None:
    """Anybody may ask anything: each wrong part is named, and none is an error of a library."""
    lives.transact([("a", 1, 1)])
    with pytest.raises(ValidationError, match=problem):
        ask(lives.run.queries)


KEY_FIELDS = pa.schema(
    {
        "text": pa.string(),
        "number": pa.int64(),
        "real": pa.float64(),
        "raw": pa.binary(),
        "truth": pa.bool_(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(10, 2),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(
        st.none() | st.text(),
        st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        st.none() | st.floats(allow_nan=False),
        st.none() | st.binary(),
        st.none() | st.booleans(),
        st.none() | st.dates(),
        st.none() | st.datetimes(timezones=st.just(UTC)),
        st.none() | st.decimals(-1000, 1000, places=2),
    )
)
def test_key_as_json_is_the_key_again(key: tuple[Any, ...]) -> None:
    """What a client sends of a key in JSON is that key for the server, for every type that keys have."""
    sent = [
        float(each) if type(each) is int and abs(each) <= 1 << 53 else each
        for each in plain([*key])
    ]
    assert tuple(fields_of(sent, KEY_FIELDS, "key")) == key


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", 1.0),
        ("number", 1.5),
        ("number", True),
        ("number", "1e3"),
        ("number", float(1 << 60)),
        ("real", "much"),
        ("real", False),
        ("raw", "no base64!"),
        ("truth", "yes"),
        ("day", "30.1.2030"),
        ("at", 5.0),
        ("price", "ten"),
        ("price", [1.0]),
        ("text", {"a": 1.0}),
    ],
)
def test_key_of_another_type_is_refused_with_the_type(field: str, value: Any) -> None:
    """JSON has fewer types than keys: what does not fit is named with the field and the form that is expected."""
    schema = pa.schema([KEY_FIELDS.field(field)])
    with pytest.raises(ValidationError, match=rf"^key\.{field}: expected .*, as "):
        fields_of([value], schema, "key")
