"""Keyed shards that own a part of the keys: together they do what one shard with all keys does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broadsheet.consumer.keyed import KeyedProcessor, KeyRows, StateHandle, TxnTime
from broadsheet.consumer.keyed.txn_time import TimeMode
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
