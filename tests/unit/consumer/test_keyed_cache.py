"""The cache of a keyed store's rows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.keyed import KeyedProcessor, KeyRows, StateHandle, TxnTime
from broadsheet.consumer.keyed.row_cache import RowCache
from broadsheet.consumer.keyed.row_index import MemoryIndex
from broadsheet.consumer.keyed.txn_time import TimeMode
from tests.support.keyed_runs import Lives, settings_of

KEYS = 2_000


def test_cached_keys_are_nothing_that_a_garbage_collection_walks() -> None:
    """A collection holds up all threads for as long as it has objects to walk, and a cache has hundreds of thousands of
    keys: however they came, by a look-up or by a change, none is such an object.
    """
    cache = RowCache(1 << 30)
    gc.collect()
    before = len(gc.get_objects())
    keys = [b"%d" % number for number in range(KEYS)]
    cache.learn_keys(keys[:1000], [b"\x00\x01", b"\x00\x02"], [b"row", None] * 1000)
    for key in keys[1000:]:
        cache.change(key, b"\x00\x01", b"changed")
    cache.release(cache.take_changes())
    gc.collect()
    assert all(cache.get(key, b"\x00\x01") for key in keys)
    assert len(gc.get_objects()) - before < 100


class Reading(KeyedProcessor):
    """Reads two variables of a key, and a timer."""

    def init(self, state: StateHandle) -> None:
        """Declare them."""
        self.one = state.value("one", int)
        self.other = state.value("other", int)
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Add to both."""
        del key, time
        for row in rows:
            self.one.update((self.one.get() or 0) + row.n)
            self.other.update((self.other.get() or 0) + row.n)
            self.timers.register(1 << 40)
        yield self.one.get(), self.other.get()


def test_first_transaction_of_a_life_looks_its_keys_up_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fail-over waits for this transaction, which has all rows that came meanwhile. A look for each of them leaves
    the interpreter to other threads so often that it took hundreds of milliseconds on a busy machine.
    """
    parts = settings_of("key int, n int", "key int", mode=TimeMode.PROCESSING)
    lives = Lives(tmp_path, Reading, parts)
    try:
        lives.transact([(key, 1) for key in range(KEYS)])
        lives.reopen()
        looks: list[int] = []
        get_many = MemoryIndex.get_many

        def counted(index: MemoryIndex, keys: list[bytes]) -> list[bytes | None]:
            looks.append(len(keys))
            return get_many(index, keys)

        monkeypatch.setattr(MemoryIndex, "get_many", counted)
        answers = lives.transact([(key, 2) for key in range(KEYS)])
        assert answers == [(3, 3)] * KEYS
        # Each of the three rows of the first key, those of all others, and some of no key.
        assert len(looks) < 12
        assert max(looks) == 3 * (KEYS - 1)
    finally:
        lives.end()
