"""Rows by group of keys: counted only for who asks, in the groups by which shards are split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broadsheet.consumer.keyed import KeyedProcessor, KeyRows, StateHandle, TxnTime
from broadsheet.consumer.keyed.state_rows import place_of
from broadsheet.consumer.member.load_reporter import GroupCounter
from tests.support.keyed_runs import Lives, settings_of


class _Nothing(KeyedProcessor):
    def init(self, state: StateHandle) -> None:
        """Declare nothing."""

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Do nothing."""
        del key, rows, time
        return iter(())


def test_rows_are_counted_by_group_from_the_first_question_on(tmp_path: Path) -> None:
    """Several rows of a key count as many, because one hot key is told by them."""
    settings = settings_of("key string, n int", "key string")
    lives = Lives(tmp_path, _Nothing, settings)
    assert isinstance(lives.store, GroupCounter)
    lives.transact([("before", 1)])
    assert not lives.store.group_rows().any()
    rows = [("hot", n) for n in range(50)] + [("cold", 0), ("other", 0)]
    lives.transact(rows)
    lives.transact(rows)
    expected: Counter[int] = Counter()
    for key, _ in rows * 2:
        place = place_of(settings.key.encode((key,)))
        expected[int.from_bytes(place[:2])] += 1
    counted = lives.store.group_rows()
    lives.end()

    assert {int(group): int(counted[group]) for group in counted.nonzero()[0]} == expected
    assert max(expected.values()) == 100
