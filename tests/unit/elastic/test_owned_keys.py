"""Keyed shards that own a part of the keys: together they do what one shard with all keys does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broadsheet.consumer.keyed import KeyedProcessor, KeyRows, StateHandle, TxnTime
from broadsheet.consumer.keyed.absorption import KEY_TYPES, ChangedNames
from broadsheet.consumer.keyed.committed_index import CommittedIndex
from broadsheet.consumer.keyed.purge import PURGED_BUSY, PURGED_IDLE
from broadsheet.consumer.keyed.recording import KeyedFrame
from broadsheet.consumer.keyed.registry import REGISTRY
from broadsheet.consumer.keyed.row_index import MemoryIndex
from broadsheet.consumer.keyed.state_rows import META, STATE, TIMERS
from broadsheet.consumer.keyed.txn_time import TIMES, TimeMode
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import ALL_KEYS, KeyRange
from tests.support.keyed_runs import Lives, settings_of

ROWS = "user string, at timestamp"
HALVES = (KeyRange(0, 2048), KeyRange(2048, 4096))


class Sums(KeyedProcessor):
    """Counts rows of a key, and reports the count at the end of each minute of event time."""

    def init(self, state: StateHandle) -> None:
        """Declare a count."""
        self._count = state.value("count", int)
        self._timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterable[Any]:
        """Count."""
        del time
        self._count.update((self._count.get() or 0) + len(rows))
        for row in rows:
            self._timers.register((int(row.at.timestamp()) // 60 + 1) * 60_000)
        yield (*key, "rows", len(rows))

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterable[Any]:
        """Report."""
        del time
        yield (*key, expiry_ms, self._count.get())


@pytest.mark.parametrize("mode", [TimeMode.NONE, TimeMode.EVENT])
def test_shards_of_a_family_together_handle_each_row_and_timer_once(
    tmp_path: Path, mode: TimeMode
) -> None:
    """Both halves see all rows, so their watermarks are those of the whole, and each key is late or not as there."""

    def at(seconds: int) -> dt.datetime:
        return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)

    made = {
        owned: Lives(
            tmp_path / str(owned),
            Sums if mode is TimeMode.EVENT else Counts,
            settings_of(ROWS, "user string", mode=mode),
            owned=owned,
        )
        for owned in (ALL_KEYS, *HALVES)
    }
    out: dict[KeyRange, list[Any]] = {owned: [] for owned in made}
    for step in range(12):
        # One key alone has the latest times: the watermark of the half without it moves all the same.
        rows = [(f"u{number}", at(step * 20)) for number in range(step % 4 + 1)]
        rows.append(("ahead", at(step * 40)))
        for owned, lives in made.items():
            lives.clock.now_ms = int(at(step * 40).timestamp() * 1000)
            out[owned] += lives.transact(rows)
    late = {owned: sum(map(len, lives.apart)) for owned, lives in made.items()}
    for lives in made.values():
        lives.end()

    assert all(out[half] for half in HALVES), "each half has some keys"
    assert sorted(map(str, (*out[HALVES[0]], *out[HALVES[1]]))) == sorted(map(str, out[ALL_KEYS]))
    assert late[HALVES[0]] + late[HALVES[1]] == late[ALL_KEYS]


class Counts(KeyedProcessor):
    """Counts rows of a key."""

    def init(self, state: StateHandle) -> None:
        """Declare a count."""
        self._count = state.value("count", int)

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterable[Any]:
        """Count."""
        del time
        self._count.update((self._count.get() or 0) + len(rows))
        yield (*key, self._count.get())


def test_range_that_changes_while_a_transaction_runs_holds_from_the_next_one(
    tmp_path: Path,
) -> None:
    """A transaction that began with all keys commits all of them: its rows would be in no shard otherwise."""
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    lives = Lives(tmp_path, Counts, settings_of(ROWS, "user string", mode=TimeMode.NONE))
    keys = [f"u{number}" for number in range(20)]
    lives.run.begin()
    lives.owned = HALVES[0]
    schema = settings_of(ROWS, "user string").input_schema
    table = pa.table([pa.array(keys), pa.array([now] * 20, schema.field("at").type)], schema=schema)
    out: list[Any] = []
    lives.run.add(table, "test/in", lives.apart.append)
    lives.run.finish(out.extend)
    assert len(out) == 20

    after = lives.transact([(key, now) for key in keys], commits=False)
    lives.end()
    assert 0 < len(after) < 20


def test_shard_made_again_with_keys_that_its_state_lacks_is_refused(tmp_path: Path) -> None:
    """A family that is deleted, and applied with other ranges, has its old state, which lacks the rows of keys that
    another shard owned. Its sources were read before, so the input of these keys would be counted in part.
    """
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    settings = settings_of(ROWS, "user string", mode=TimeMode.NONE)
    lives = Lives(tmp_path, Counts, settings, owned=HALVES[0])
    lives.transact([(f"u{number}", now) for number in range(20)])

    for wider in (ALL_KEYS, HALVES[1], KeyRange(0, 2049)):
        lives.owned = wider
        with pytest.raises(
            ValidationError, match=r"expected a range in 0000-0800, .*got "
        ) as refused:
            lives.reopen()
        assert refused.value.field_path == "labels[broadsheet.dev/key-begin]"
    lives.owned = KeyRange(0, 1024)
    lives.reopen()
    lives.end()


class Lender:
    """Keeps the index of another life's store, as a follower of its log does; `follow` brings it to the last commit."""

    def __init__(self, lives: Lives) -> None:
        self.changed: ChangedNames | None = None
        self._lives = lives
        self._rows: dict[bytes, bytes] = {}
        self._index = CommittedIndex("other", MemoryIndex())
        self.follow()

    def lend(self) -> CommittedIndex:
        """Return the index."""
        assert self._index.acquire()
        return self._index

    def follow(self) -> None:
        """Take in what changed, and note it."""
        store = self._lives.store
        now = _rows_of(self._lives)
        metas = {name: store.meta(name) for name in (TIMES, KEY_TYPES, REGISTRY)}
        now |= {META + name: content for name, content in metas.items() if content is not None}
        changes = {name: now.get(name) for name in now.keys() | self._rows.keys()}
        self._index.follow(KeyedFrame(self._index.number + 1, b"", {}), changes)
        self._rows = now
        if self.changed is not None:
            self.changed.note(changes)


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "cancelled"])
def test_survivor_of_a_merge_goes_on_with_the_values_timers_and_expiries_of_both(
    tmp_path: Path, is_committed: bool
) -> None:
    """Taken in while both handle rows: then each timer fires once, in time, each count goes on, and what expires does.
    Given up, nothing of the other's is left, and no timer of it fires.
    """
    settings = settings_of(ROWS, "user string", mode=TimeMode.PROCESSING)
    lives = {
        owned: Lives(tmp_path / str(owned), Reminders, settings, owned=owned)
        for owned in (ALL_KEYS, *HALVES)
    }
    whole, survivor, other = lives.values()
    users = [f"u{number}" for number in range(24)]
    out: dict[int, list[Any]] = {id(each): [] for each in lives.values()}

    def transact(now_ms: int, names: Iterable[str], *, also: Iterable[Lives] = (other,)) -> None:
        rows = [(name, dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)) for name in names]
        for each in (whole, survivor, *also):
            each.clock.now_ms = now_ms
            out[id(each)] += each.transact(rows)

    transact(1_000, users)
    lender = Lender(other)
    absorption = survivor.store.absorb(lender, HALVES[1])
    lender.follow()
    transact(2_000, users[::2])
    lender.follow()
    # Timers of the other one come up here before their keys are ours.
    transact(6_500, users[::3])
    lender.follow()
    assert not absorption.are_all_taken()
    absorption.finish()
    transact(6_600, (), also=())
    assert absorption.are_all_taken()
    # Where the flip is.
    survivor.store.stop_absorbing()
    if is_committed:
        survivor.owned = ALL_KEYS
        transact(6_700, users[:5], also=())
        transact(15_000, users[5:10], also=())
        transact(40_000, (), also=())
        survivor.reopen()
        transact(40_100, users[:3], also=())
        both = out[id(survivor)] + out[id(other)]
        assert sorted(map(str, both)) == sorted(map(str, out[id(whole)]))
        assert _rows_of(survivor) == _rows_of(whole)
    else:
        transact(6_700, users[:5])
        for step in range(50):
            transact(15_000 + step, ())
        both = out[id(survivor)] + out[id(other)]
        assert sorted(map(str, both)) == sorted(map(str, out[id(whole)]))
        assert survivor.store.purged_groups(HALVES[0])[1] == 0
        assert _rows_of(survivor) | _rows_of(other) == _rows_of(whole)
        assert not _rows_of(survivor).keys() & _rows_of(other).keys()
    for each in lives.values():
        each.end()


def test_merge_that_is_tried_again_keeps_timers_that_came_up_meanwhile(tmp_path: Path) -> None:
    """Between two tries keys of the other shard are foreign ones, so their timers that come up are dropped; their rows
    are still here, and equal, when the next try compares them.
    """
    settings = settings_of(ROWS, "user string", mode=TimeMode.PROCESSING)
    lives = {
        owned: Lives(tmp_path / str(owned), Reminders, settings, owned=owned)
        for owned in (ALL_KEYS, *HALVES)
    }
    whole, survivor, other = lives.values()
    # More of them than are removed between the two tries.
    rows = [(f"u{number}", dt.datetime.fromtimestamp(1, dt.UTC)) for number in range(2_400)]
    out = {id(each): each.transact(rows) for each in lives.values()}
    assert sum(name[:1] == TIMERS for name in _rows_of(other)) > PURGED_IDLE

    for is_again in (False, True):
        absorption = survivor.store.absorb(lender := Lender(other), HALVES[1])
        lender.follow()
        survivor.clock.now_ms += 100
        out[id(survivor)] += survivor.transact()
        if is_again:
            absorption.finish()
            out[id(survivor)] += survivor.transact()
            assert absorption.are_all_taken()
            survivor.owned = ALL_KEYS
        survivor.store.stop_absorbing()
        survivor.clock.now_ms = whole.clock.now_ms = 6_500
        out[id(survivor)] += survivor.transact()
    out[id(whole)] += whole.transact()

    both = out[id(survivor)] + out[id(other)]
    assert sorted(map(str, both)) == sorted(map(str, out[id(whole)]))
    for each in lives.values():
        each.end()


def test_rows_that_are_taken_in_expire_only_once_they_are_ours(tmp_path: Path) -> None:
    """Until then they are what they are at the other shard, which alone may change them: also when this clock is ahead
    of the other one's last transaction.
    """
    settings = settings_of(ROWS, "user string", mode=TimeMode.PROCESSING)
    survivor, other = (
        Lives(tmp_path / str(owned), Reminders, settings, owned=owned) for owned in HALVES
    )
    rows = [(f"u{number}", dt.datetime.fromtimestamp(1, dt.UTC)) for number in range(24)]
    for each in (survivor, other):
        each.transact(rows)
    theirs = _rows_of(other)
    absorption = survivor.store.absorb(Lender(other), HALVES[1])
    survivor.transact()
    survivor.clock.now_ms = 12_000
    survivor.transact()
    assert {name: _committed(survivor, name) for name in theirs} == theirs

    absorption.finish()
    survivor.transact()
    survivor.store.stop_absorbing()
    survivor.owned = ALL_KEYS
    for _ in range(2):
        survivor.transact()
    assert len(_rows_of(survivor)) == len(rows), "the counts; what was seen has expired"
    for each in (survivor, other):
        each.end()


def _rows_of(lives: Lives) -> dict[bytes, bytes]:
    """Return all rows of keys, also those that are hidden, as of the last commit."""
    names, _ = lives.store.foreign_names(b"", 1 << 20)
    hidden = {name: _committed(lives, name) for name in names}
    with lives.store.view() as view:
        rows = {STATE + name: row for name, row in view.rows()}
        return rows | {TIMERS + name: row for name, row in view.timers()} | hidden


def _committed(lives: Lives, name: bytes) -> bytes:
    # Where the suffix of a state's row begins does not matter to its name.
    place, suffix = (name[1:], b"") if name[:1] == TIMERS else (name[1:-1], name[-1:])
    row = lives.store.committed(place, suffix)
    assert row is not None
    return row


class Reminders(KeyedProcessor):
    """Counts rows of a key, reports the count some seconds after each, and remembers that it was there for ten."""

    def init(self, state: StateHandle) -> None:
        """Declare a count, and what expires."""
        self._count = state.value("count", int)
        self._seen = state.value("seen", int, ttl_ms=10_000)
        self._timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterable[Any]:
        """Count, and be reminded."""
        self._count.update((self._count.get() or 0) + len(rows))
        yield (*key, "seen before", self._seen.get())
        self._seen.update(time.batch_ms)
        self._timers.register(time.batch_ms + 5_000)

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterable[Any]:
        """Report."""
        del time
        yield (*key, expiry_ms, self._count.get())


@pytest.mark.parametrize("rows", [0, 1])
def test_removal_of_foreign_rows_keeps_rows_that_come_waiting_only_briefly(
    tmp_path: Path, rows: int
) -> None:
    """Right behind a split all of them are left, and rows wait since it began."""
    lives = Lives(tmp_path, Sums, settings_of(ROWS, "user string", mode=TimeMode.EVENT))
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    lives.transact([(f"user-{number}", at) for number in range(3 * PURGED_IDLE)])
    lives.owned = HALVES[1]
    before = len(_rows_of(lives))

    lives.transact([("user-1", at)] * rows)

    assert before - len(_rows_of(lives)) == (PURGED_BUSY if rows else PURGED_IDLE)
    lives.end()
