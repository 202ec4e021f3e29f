"""Rows of another shard on their way into a store: all that were there, and all that changed meanwhile, at any pace."""

from __future__ import annotations

import random

import pytest
from msgspec import msgpack

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed.absorption import STEP_BYTES, Absorption, ChangedNames, hull
from broadsheet.consumer.keyed.committed_index import CommittedIndex
from broadsheet.consumer.keyed.recording import KeyedFrame
from broadsheet.consumer.keyed.registry import REGISTRY, REMOVAL, Removal
from broadsheet.consumer.keyed.row_index import MemoryIndex, Rows
from broadsheet.consumer.keyed.state_rows import META, STATE, TIMERS, new_row
from broadsheet.consumer.keyed.timers import row_of
from broadsheet.consumer.keyed.txn_time import TIMES, TimeState, merged
from broadsheet.consumer.keyed.watermark import SourceTime
from broadsheet.wire.key_range import KeyRange

GIVEN = KeyRange(16, 32)
KEY_BYTES = 3


class Follower:
    """Follows a log of which a test makes the commits."""

    def __init__(self) -> None:
        self.changed: ChangedNames | None = None
        self.rows: dict[bytes, bytes] = {}
        self._index: CommittedIndex | None = None
        self.remake()

    def remake(self) -> None:
        """Make the index anew of all rows, as a follower does whose files were replaced."""
        self._index = None
        if self.changed is not None:
            self.changed.begin_round()
        index = CommittedIndex("shard-b", MemoryIndex())
        index.begin_again(KeyedFrame(1, b"", {}), dict(self.rows))
        index.complete()
        self._index = index

    def lose(self) -> None:
        """Have no index for now."""
        self._index = None

    def commit(self, rows: Rows) -> None:
        """Follow a commit."""
        for name, row in rows.items():
            if row is None:
                self.rows.pop(name, None)
            else:
                self.rows[name] = row
        if self._index is not None:
            self._index.follow(KeyedFrame(self._index.number + 1, b"", {}), rows)
            if self.changed is not None:
                self.changed.note(rows)

    def lend(self) -> CommittedIndex:
        """Return the index."""
        if self._index is None or not self._index.acquire():
            raise StoreError("shard-b", "none")
        return self._index


class Store:
    """Rows of a survivor: what earlier lives took in is there."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.metas: dict[bytes, bytes] = {}
        self.taken = 0

    def meta(self, name: bytes) -> bytes | None:
        """Return what is kept of no key."""
        return self.metas.get(name)

    def names_between(self, begin: bytes, end: bytes) -> list[bytes]:
        """Return names in order."""
        return sorted(name for name in self.rows if begin <= name < end)

    def take_rows(self, rows: Rows, key_end: object) -> None:
        """Make rows what they are elsewhere."""
        del key_end
        self.taken = max(self.taken, len(rows))
        for name, row in rows.items():
            if row is None:
                self.rows.pop(name, None)
            else:
                self.rows[name] = row


def _name(family: bytes, group: int, key: int) -> bytes:
    return family + group.to_bytes(2) + key.to_bytes(KEY_BYTES)


def _row(value: int) -> bytes:
    return new_row(b"\x00\x00", None, value.to_bytes(4))


def _value(name: bytes, value: int) -> bytes:
    row = _row(value) if name[:1] == STATE else row_of([value])
    assert row is not None
    return row


def _owned(rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {
        name: row
        for name, row in rows.items()
        if name[:1] in (STATE, TIMERS) and int.from_bytes(name[1:3]) in GIVEN
    }


@pytest.mark.parametrize("seed", range(40))
def test_store_has_the_rows_of_the_other_shard_whatever_changed_while_they_were_taken_in(
    seed: int,
) -> None:
    """Changes come before, behind and at the place that is read; rows go, the index is made anew, or is away for a
    while; rows of an earlier life are there, some of which are gone by now. In the end each is as of the last commit.
    """
    rng = random.Random(seed)
    names = [
        _name(family, group, key)
        for family in (STATE, TIMERS)
        for group in range(10, 40, 3)
        for key in range(rng.randrange(1, 400))
    ]
    follower, store = Follower(), Store()
    follower.commit({name: _value(name, 1) for name in rng.sample(names, len(names) // 2)})
    store.rows = {
        name: _value(name, 9) for name in rng.sample(names, len(names) // 4) if _owned({name: b""})
    }
    absorption = Absorption(follower, GIVEN)
    if rng.random() < 0.5:
        follower.remake()
    for commit in range(2, 30):
        changed = rng.sample(names, rng.randrange(1, 60))
        follower.commit(
            {name: None if rng.random() < 0.3 else _value(name, commit) for name in changed}
        )
        if rng.random() < 0.1:
            follower.remake()
        if rng.random() < 0.1:
            follower.lose()
            absorption.step(store, len, 200)
            follower.remake()
        for _ in range(rng.randrange(3)):
            absorption.step(store, len, rng.randrange(1, 2000))
    absorption.finish()
    assert absorption.has_work
    absorption.step(store, len, 1)

    assert absorption.is_complete
    assert store.rows == _owned(follower.rows)
    assert not absorption.has_work


def test_step_takes_no_more_than_a_part_of_many_rows() -> None:
    """A transaction must not wait for all of another shard's state."""
    follower, store = Follower(), Store()
    follower.commit({_name(STATE, 20, key): _row(key) for key in range(20_000)})
    absorption = Absorption(follower, GIVEN)
    assert (absorption.left_rows(), absorption.is_near) == (-1, False)
    absorption.step(store, len, 100)
    assert 90 < absorption.taken_rows <= 100
    assert absorption.has_work
    assert not absorption.is_near
    assert 18_000 < absorption.left_rows() < 20_100


@pytest.mark.parametrize(
    ("theirs", "ours", "problem"),
    [
        ({b"key": b"int64"}, {b"key": b"string"}, "keys have other types"),
        (
            {REGISTRY: msgpack.encode({"a": [1]})},
            {REGISTRY: msgpack.encode({"a": [2]})},
            "other numbers",
        ),
        ({REMOVAL: Removal([3]).encode()}, {}, "was removed"),
        ({}, {REMOVAL: Removal([3]).encode()}, "was removed"),
    ],
)
def test_rows_that_would_be_read_as_others_are_not_taken_in(
    theirs: dict[bytes, bytes], ours: dict[bytes, bytes], problem: str
) -> None:
    """A row of variable 2 of one release may be one of variable 3 in another: that is told, and nothing is taken."""
    follower, store = Follower(), Store()
    store.metas = ours
    follower.commit({META + name: content for name, content in theirs.items()})
    follower.commit({_name(STATE, 20, 1): _row(1)})
    absorption = Absorption(follower, GIVEN)
    absorption.finish()
    absorption.step(store, len, 100)

    assert problem in absorption.refusal
    assert not absorption.is_complete
    assert not store.rows


def test_times_of_the_other_shard_come_with_the_last_rows() -> None:
    """They are as of the same commit."""
    follower, store = Follower(), Store()
    times = TimeState(batch_ms=5, watermark_ms=3)
    follower.commit({META + TIMES: msgpack.encode(times)})
    absorption = Absorption(follower, GIVEN)
    absorption.step(store, len, 100)
    assert absorption.times is None
    absorption.finish()
    absorption.step(store, len, 100)
    assert absorption.times == times


def test_times_of_merged_shards_are_the_earlier_ones_but_for_the_clock() -> None:
    """No row of either becomes late by the other's watermark; a batch's time never goes back."""
    ours = TimeState(
        batch_ms=100,
        watermark_ms=50,
        late_ms=40,
        sources={"a": SourceTime(100, 60), "b": SourceTime(90, None)},
        storm_ms=7,
    )
    theirs = TimeState(
        batch_ms=110,
        watermark_ms=45,
        late_ms=45,
        sources={"a": SourceTime(110, 55), "b": SourceTime(80, 70), "c": SourceTime(1, 2)},
    )
    both = merged(ours, theirs)
    assert (both.batch_ms, both.watermark_ms, both.late_ms, both.storm_ms) == (110, 45, 40, 7)
    assert both.sources == {
        "a": SourceTime(110, 55),
        "b": SourceTime(90, 70),
        "c": SourceTime(1, 2),
    }


def test_hull_of_ranges_reaches_from_the_first_group_to_the_last() -> None:
    """Rows of neither are removed while a merge is under way."""
    assert hull(KeyRange(16, 32), KeyRange(0, 16)) == KeyRange(0, 32)


def test_step_takes_in_as_many_large_rows_as_its_bytes_allow() -> None:
    """Rows that arrive meanwhile wait until all that a transaction takes in is recorded, however large each is."""
    large = 10_000
    follower, store = Follower(), Store()
    for key in range(400):
        follower.rows[_name(STATE, GIVEN.begin, key)] = new_row(b"\x00\x00", None, bytes(large))
    follower.remake()
    absorption = Absorption(follower, GIVEN)

    steps = 0
    while not absorption.is_near:
        before = len(store.rows)
        absorption.step(store, len, 20_000)
        steps += 1
        assert 0 < (len(store.rows) - before) * large <= 1.01 * STEP_BYTES

    assert steps == pytest.approx(400 * large / STEP_BYTES, abs=1)
    absorption.finish()
    absorption.step(store, len, 20_000)
    assert store.rows == follower.rows
