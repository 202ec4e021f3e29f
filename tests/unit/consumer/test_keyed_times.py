"""The times of keyed transactions: watermark, idle sources, what the next transaction is due for, storms and expiry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broadsheet.consumer.keyed import KeyedProcessor, KeyRows, StateHandle, TxnTime
from broadsheet.consumer.keyed.ttl import filed_at
from broadsheet.consumer.keyed.txn_time import (
    PURGE_REST_MS,
    Backlog,
    TimeMode,
    TimeState,
    begun,
    next_txn_after_ms,
    observe,
)
from broadsheet.consumer.keyed.watermark import SourceTime, WatermarkRules
from tests.support.keyed_runs import Lives, settings_of

A, B = "test/a", "test/b"
NOTHING = Backlog(None, has_expired=False)
DAY_MS = 24 * 3600 * 1000


def following(
    state: TimeState, rules: WatermarkRules, now_ms: int, **latest: int | None
) -> TimeState:
    """Return the times of a transaction after `state` that had rows of some sources."""
    state = begun(state, rules, (A, B), now_ms)
    for name, latest_ms in latest.items():
        observe(state, f"test/{name}", latest_ms)
    return state


def test_watermark_is_the_least_of_all_sources_and_one_transaction_behind() -> None:
    """A row that one source has not sent yet must not become late because another source is faster."""
    rules = WatermarkRules(delay_ms=10)
    first = following(TimeState(), rules, 1000, a=100)
    assert first.watermark_ms == 0

    second = following(first, rules, 1001, b=50)
    assert second.watermark_ms == 0, "of b no row was seen before it"

    third = following(second, rules, 1002, b=500)
    assert (third.watermark_ms, third.late_ms) == (40, 0)
    fourth = following(third, rules, 1003)
    assert (fourth.watermark_ms, fourth.late_ms) == (90, 40)


def test_watermark_never_goes_back() -> None:
    """A source that was idle comes back with old rows: those are late, and what was closed stays closed."""
    rules = WatermarkRules(idle_ms=100)
    state = following(TimeState(), rules, 1000, a=500)
    state = following(state, rules, 1100)
    assert state.watermark_ms == 0, "both have been silent for so long, so none counts"
    state = following(state, rules, 1150, a=600)
    state = following(state, rules, 1160, b=20)
    assert state.watermark_ms == 600

    assert following(state, rules, 1170).watermark_ms == 600


def test_idle_source_asks_for_a_transaction_when_its_time_has_passed() -> None:
    """Without input the watermark advances by time alone, so a transaction must begin then, and none before."""
    rules = WatermarkRules(idle_ms=100)
    state = following(TimeState(), rules, 1000, a=500, b=30)
    state = following(state, rules, 1090, a=700)
    assert state.watermark_ms == 30

    after = next_txn_after_ms(state, TimeMode.EVENT, rules, NOTHING, 1095)

    assert after == 5, "b is idle at 1100"
    assert following(state, rules, 1100).watermark_ms == 700


@pytest.mark.parametrize(
    ("mode", "due", "now", "after"),
    [
        (TimeMode.NONE, None, 1000, None),
        (TimeMode.EVENT, 200, 1000, None),
        (TimeMode.EVENT, 90, 1000, 0),
        (TimeMode.PROCESSING, None, 1000, None),
        (TimeMode.PROCESSING, 1500, 1200, 300),
        (TimeMode.PROCESSING, 900, 1000, 0),
        (TimeMode.PROCESSING, 1500, 9000, 0),
        (TimeMode.PROCESSING, 1001, 400, 601),
    ],
)
def test_next_transaction_is_due_when_a_timer_is(
    mode: TimeMode, due: int | None, now: int, after: int | None
) -> None:
    """At once for what is due, at its time for what will be; and where the clock was set back, not again and again
    before it has caught up.
    """
    state = TimeState(batch_ms=1000, watermark_ms=90, late_ms=90, sources={A: SourceTime(1000, 90)})

    backlog = Backlog(due, has_expired=False)

    assert next_txn_after_ms(state, mode, WatermarkRules(), backlog, now) == after


@pytest.mark.parametrize(
    ("mode", "due", "after"),
    [
        (TimeMode.NONE, None, PURGE_REST_MS),
        (TimeMode.PROCESSING, 2_000, PURGE_REST_MS),
        (TimeMode.PROCESSING, 1_005, 5),
        (TimeMode.EVENT, 90, 0),
    ],
)
def test_removal_of_rows_that_a_split_gave_away_rests_between_two_transactions(
    mode: TimeMode, due: int | None, after: int
) -> None:
    """No caller waits for it, but rows would; timers are not later for its sake."""
    state = TimeState(batch_ms=1000, watermark_ms=90, late_ms=90, sources={A: SourceTime(1000, 90)})

    backlog = Backlog(due, has_expired=False, is_purging=True)

    assert next_txn_after_ms(state, mode, WatermarkRules(), backlog, 1000) == after


def test_filed_time_is_soon_after_the_expiry_and_moves_seldom() -> None:
    """A row that is written every millisecond must not be filed every millisecond, nor be swept before it expires."""
    ttl = 64_000
    filed = [filed_at(now + ttl, ttl) for now in range(0, 64_000, 7)]

    assert all(0 <= each - (7 * at + ttl) < 1000 for at, each in enumerate(filed))
    assert len(set(filed)) == 65


class Ringing(KeyedProcessor):
    """Sets as many timers as a row says, and tells of each; each row is told too."""

    def init(self, state: StateHandle) -> None:
        """Take the timers."""
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Set them, all in the past."""
        for row in rows:
            for number in range(row.n):
                self.timers.register(number)
            yield (*key, "row", time.batch_ms)

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Tell."""
        del time
        yield (*key, "timer", expiry_ms)


def test_storm_of_timers_goes_on_in_pieces_with_rows_between(tmp_path: Path) -> None:
    """A million timers must not hold up every row and every query of the shard. Each fires once, in order, also if the
    primary dies in the middle; and the shard says that it is not done.
    """
    parts = settings_of("key string, n int", "key string", mode=TimeMode.PROCESSING, storm_timers=4)
    lives = Lives(tmp_path, Ringing, parts)
    try:
        fired = lives.transact([("a", 6), ("b", 5)])[2:]
        assert len(fired) == 4
        assert lives.run.next_txn_after() == 0.0
        lives.reopen()
        assert lives.run.next_txn_after() == 0.0
        piece = lives.transact([("c", 0)])
        assert piece[0] == ("c", "row", 1000)
        fired += piece[1:]
        assert len(fired) == 8
        fired += lives.transact()
        assert lives.run.next_txn_after() is None
    finally:
        lives.end()
    expected = sorted([(n, "a") for n in range(6)] + [(n, "b") for n in range(5)])
    assert [(expiry, key) for key, _, expiry in fired] == expected


def test_storm_whose_handlers_are_slow_ends_each_piece_by_time(tmp_path: Path) -> None:
    """Fifty milliseconds are the longest that rows wait, whatever a handler does; one timer fires in any case."""

    class Slow(Ringing):
        def handle_timer(
            self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime
        ) -> Iterator[Any]:
            yield from super().handle_timer(key, expiry_ms, time)
            lives.clock.now_ms += 30

    parts = settings_of("key string, n int", "key string", mode=TimeMode.PROCESSING)
    lives = Lives(tmp_path, Slow, parts)
    try:
        assert len(lives.transact([("a", 5)])) == 1 + 2
        assert [len(lives.transact()) for _ in range(3)] == [2, 1, 0]
    finally:
        lives.end()


def test_timers_of_a_piece_are_those_at_its_begin_however_many(tmp_path: Path) -> None:
    """Timers are looked up while others fire. As in Spark, one that a handler deletes fires all the same, and one that
    it registers, though it is due, belongs to the next transaction.
    """
    many = 2_000

    class Changing(Ringing):
        def handle_timer(
            self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime
        ) -> Iterator[Any]:
            yield from super().handle_timer(key, expiry_ms, time)
            if expiry_ms == 1:
                self.timers.delete(many - 1)
                self.timers.register(many)

    parts = settings_of("key string, n int", "key string", mode=TimeMode.PROCESSING)
    lives = Lives(tmp_path, Changing, parts)
    try:
        # What the index has, and what the same transaction registers, are found alike.
        lives.clock.now_ms = 0
        lives.transact([("a", many)])
        lives.clock.now_ms = many
        fired = [
            (key, expiry) for key, kind, expiry in lives.transact([("b", 1)]) if kind == "timer"
        ]
        assert fired == [("b", 0)] + [("a", expiry) for expiry in range(1, many)]
        assert [expiry for *_, expiry in lives.transact()] == [many]
        assert lives.run.next_txn_after() is None
    finally:
        lives.end()


class Keeping(KeyedProcessor):
    """Keeps rows for a second."""

    def init(self, state: StateHandle) -> None:
        """Declare one of each."""
        self.value = state.value("v", int, ttl_ms=1000)
        self.list = state.list("l", int, ttl_ms=1000)
        self.map = state.map("m", int, int, ttl_ms=1000)

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Write."""
        del key, time
        for row in rows:
            self.value.update(row.n)
            self.list.append(row.n)
            self.map.put(row.n, row.n)
        yield len(list(self.list.get()))


def test_expired_state_leaves_the_store_without_being_asked_for(tmp_path: Path) -> None:
    """Keys that never come again must not fill the disk: a later transaction of any key removes their rows, its own
    rows stay, and so it is in the next life, whose index was made from the log.
    """
    lives = Lives(tmp_path, Keeping, settings_of("key string, n int", "key string"))
    try:
        lives.transact([("a", n) for n in range(5)])
        lives.clock.now_ms += 600
        lives.transact([("a", 9), ("b", 1)])
        assert len(list(lives.store.committed_rows())) == 2 + 7 + 2
        lives.reopen()
        lives.clock.now_ms += 500
        lives.transact()
        kept = lives.run
        assert (kept.committed("v", ["a"]), kept.committed("l", ["a"])) == (9, [9])
        assert kept.committed("m", ["a"]) == {9: 9}
        assert len(list(lives.store.committed_rows())) == 2 + 2 + 2
        lives.clock.now_ms += 2000
        lives.transact()
        assert list(lives.store.committed_rows()) == []
        lives.reopen()
        assert list(lives.store.committed_rows()) == []
    finally:
        lives.end()


def test_rest_of_a_list_that_expires_soon_after_its_first_element_leaves_the_store(
    tmp_path: Path,
) -> None:
    """An index that was made from the log has the row under the expiry of its first element, not under the end of the
    64th of the TTL in which both expire: the sweep comes between the two, and must come again.
    """
    lives = Lives(tmp_path, Keeping, settings_of("key string, n int", "key string"))
    try:
        for lives.clock.now_ms in (1001, 1005):
            lives.transact([("a", lives.clock.now_ms)])
        assert filed_at(2001, 1000) == filed_at(2005, 1000)
        lives.reopen()
        lives.clock.now_ms = 2002
        lives.transact()
        assert lives.run.committed("l", ["a"]) == [1005]
        lives.clock.now_ms = 3000
        lives.transact()
        assert list(lives.store.committed_rows()) == []
    finally:
        lives.end()


def test_event_time_of_the_far_future_does_not_make_the_others_late(tmp_path: Path) -> None:
    """One message with a wrong clock must not close everything. It goes to the side journal, with the reason; without
    one it is handled.
    """
    rows = [("a", 1, 500), ("a", 2, 1000 + 2 * DAY_MS)]
    for has_side_journal, handled in ((True, 1), (False, 2)):
        parts = settings_of(
            "key string, n int, at long",
            "key string",
            mode=TimeMode.EVENT,
            has_side_journal=has_side_journal,
        )
        lives = Lives(tmp_path / str(handled), Ringing, parts)
        try:
            assert len(lives.transact([(key, 0, at) for key, _, at in rows])) == handled
            lives.transact()
            assert lives.transact([("b", 0, 501)]) == [("b", "row", 1000)]
            assert [each["late_reason"].to_pylist() for each in lives.apart] == (
                [["future"]] if has_side_journal else []
            )
        finally:
            lives.end()


def test_late_rows_are_told_each_time_that_there_are_twice_as_many(tmp_path: Path) -> None:
    """Dropped rows must not go unseen, and a source that is always late must not fill the log."""
    parts = settings_of("key string, n int, at long", "key string", mode=TimeMode.EVENT)
    lives = Lives(tmp_path, Ringing, parts)
    try:
        lives.transact([("a", 0, 500)])
        lives.transact()
        with capture_logs() as logs:
            for _ in range(9):
                assert lives.transact([("a", 0, 500)]) == []
        assert lives.run.late_rows == 9
    finally:
        lives.end()
    told = [each["rows"] for each in logs if each["event"] == "keyed.rows_late"]
    assert told == [1, 2, 4, 8]
