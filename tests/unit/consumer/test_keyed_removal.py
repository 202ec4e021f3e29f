"""Variables that a later version of a processor removes: their rows go, and those of no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.keyed import KeyedProcessor, KeyRows, StateHandle, TxnTime
from broadsheet.runtime.errors import ValidationError
from tests.support.keyed_runs import Lives, settings_of

ROWS = "key string, n int"
KEYS = 2_500
"""More than a transaction with rows looks at."""


class First(KeyedProcessor):
    """Keeps a value and a map."""

    def init(self, state: StateHandle) -> None:
        """Declare both."""
        self.kept = state.value("kept", int)
        self.old = state.map("old", int, int)

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Write to both."""
        for row in rows:
            self.kept.update(row.n)
            self.old.put(row.n, row.n)
        yield from ()


class Second(KeyedProcessor):
    """Removes the map."""

    def init(self, state: StateHandle) -> None:
        """Remove, and declare the rest."""
        self.kept = state.value("kept", int)
        state.remove("old")
        state.remove("never was")

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Tell what is there."""
        del rows, time
        yield key[0], self.kept.get()


class Third(KeyedProcessor):
    """Has a value of the map's name."""

    def init(self, state: StateHandle) -> None:
        """Declare it."""
        self.old = state.value("old", str)

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Tell what was there, and write."""
        del rows, time
        yield key[0], self.old.get()
        self.old.update("new")


def rows_of_store(lives: Lives) -> int:
    """Return how many rows of variables the store has."""
    return sum(1 for _ in lives.store.committed_rows())


def test_removed_variable_leaves_no_row_and_its_name_may_begin_again(tmp_path: Path) -> None:
    """The rows go over several transactions, which follow without input, through a death on the way; a variable that
    takes the name before they are gone, though it is of another kind, sees none of them and loses none of its own.
    """
    lives = Lives(tmp_path, First, settings_of(ROWS, "key string"))
    lives.transact([(f"{number:05}", number) for number in range(KEYS)])
    assert rows_of_store(lives) == 2 * KEYS

    lives.with_processor(Second)
    assert lives.transact([("00007", 1)]) == [("00007", 7)]
    assert lives.run.next_txn_after() == 0
    assert KEYS < rows_of_store(lives) < 2 * KEYS
    lives.with_processor(Third)
    assert lives.transact([("00007", 1)]) == [("00007", None)]
    lives.reopen()
    while lives.run.next_txn_after() is not None:
        lives.transact()

    assert rows_of_store(lives) == KEYS + 1
    lives.reopen()
    assert lives.transact([("00007", 1), ("00008", 1)]) == [("00007", "new"), ("00008", None)]
    lives.end()


@pytest.mark.parametrize("removes_first", [False, True])
def test_variable_cannot_be_declared_and_removed(tmp_path: Path, removes_first: bool) -> None:
    """Each life of the shard would remove the rows that the one before wrote."""

    class Both(First):
        def init(self, state: StateHandle) -> None:
            if removes_first:
                state.remove("old")
            super().init(state)
            state.remove("old")

    with pytest.raises(ValidationError, match=r"old.*expected .*not.* declared"):
        Lives(tmp_path, Both, settings_of(ROWS, "key string"))
