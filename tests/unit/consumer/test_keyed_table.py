"""Keyed state as a table: a row a key, a column a variable, as of one commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from broadsheet.consumer.keyed import KeyedProcessor, KeyRows, StateHandle, TxnTime
from broadsheet.consumer.keyed.store import IndexKind
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.runtime.errors import ValidationError
from tests.support.keyed_runs import Lives, settings_of


class Point(msgspec.Struct):
    """Has a column for each field."""

    x: int
    y: float | None = None


@dataclass
class Nested:
    """Has no column: a field is of a class."""

    point: Point


class Everything(KeyedProcessor):
    """Keeps a row in every kind of variable."""

    def init(self, state: StateHandle) -> None:
        """Declare them."""
        self.count = state.value("count", int, ttl_ms=100)
        self.pair = state.value("pair", "a int, b string")
        self.nested = state.value("nested", Nested)
        self.points = state.list("points", Point)
        self.by_day = state.map("by_day", "day string", int)
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Keep it, or only a timer."""
        for row in rows:
            if row.n < 0:
                self.timers.register(time.batch_ms - row.n)
                continue
            self.count.update(row.n)
            self.pair.update((row.n, None))
            self.nested.update(Nested(Point(row.n)))
            self.points.extend([Point(row.n), Point(2, 0.5)])
            self.by_day.put((f"d{row.n}",), row.n)
        yield key


def table_of(lives: Lives, *columns: str) -> list[dict[str, Any]]:
    """Return the rows of the table, by key."""
    table = lives.run.state_table
    schema = pa.schema([table.schema.field(name) for name in columns]) if columns else table.schema
    with lives.store.view() as view:
        batches = table.batches(view, schema, now_ms=lives.clock.now_ms)
        rows: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=str)


@pytest.mark.parametrize("index", ["memory", "rocksdb"])
def test_table_has_a_row_a_key_and_a_column_a_variable(tmp_path: Path, index: IndexKind) -> None:
    """State is training data and a dashboard too: types are kept, what is expired is not there, and a key that has
    timers alone is.
    """
    parts = settings_of("key string, n int", "key string", mode=TimeMode.PROCESSING)
    lives = Lives(tmp_path, Everything, parts, index=index)
    try:
        lives.transact([("a", 1), ("b", -50), ("a", -70), ("c", 3), ("a", -60)])
        kept = {
            "key": "a",
            "count": 1,
            "pair": {"a": 1, "b": None},
            "nested": '{"point":{"x":1,"y":null}}',
            "points": [{"x": 1, "y": None}, {"x": 2, "y": 0.5}],
            "by_day": [({"day": "d1"}, 1)],
            "timers": [1060, 1070],
        }
        alone = dict.fromkeys(kept) | {"key": "b", "timers": [1050]}
        found = table_of(lives)
        assert found[0] == kept
        assert found[1] == alone
        assert (found[2]["key"], found[2]["timers"]) == ("c", [])

        lives.clock.now_ms += 100
        assert table_of(lives, "count", "key") == [
            {"count": None, "key": "a"},
            {"count": None, "key": "b"},
            {"count": None, "key": "c"},
        ]
    finally:
        lives.end()


def test_table_of_a_commit_stays_what_it_was(tmp_path: Path) -> None:
    """A scan of a large state takes minutes, in which the shard goes on."""
    lives = Lives(tmp_path, Everything, settings_of("key int, n int", "key int"), index="rocksdb")
    try:
        lives.transact([(key, 1) for key in range(300)])
        with lives.store.view() as view:
            batches = lives.run.state_table.batches(
                view, lives.run.state_table.schema, now_ms=lives.clock.now_ms
            )
            lives.transact([(key, 2) for key in range(100, 500)])
            counts = [row["count"] for batch in batches for row in batch.to_pylist()]
    finally:
        lives.end()

    assert counts == [1] * 300


def test_variable_with_the_name_of_another_column_is_refused(tmp_path: Path) -> None:
    """Two columns of one name could not be asked for."""

    class Clashing(Everything):
        def init(self, state: StateHandle) -> None:
            state.value("key", int)

    with pytest.raises(ValidationError, match="no field of the key"):
        Lives(tmp_path, Clashing, settings_of("key int, n int", "key int"))
