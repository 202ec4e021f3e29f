"""Runs of rows into the stores that keep tables or keys: what one statement a row would have done, in less time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa

from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.stores.subject import FixedShard, reading, wait

COUNTS = sa.Table(
    "upserted_counts",
    sa.MetaData(),
    sa.Column("k", sa.Text, primary_key=True),
    sa.Column("day", sa.Integer, primary_key=True),
    sa.Column("n", sa.BigInteger),
    sa.Column("x", sa.Float),
)
TIMES = sa.Table(
    "upserted_times",
    sa.MetaData(),
    sa.Column("k", sa.Text, primary_key=True),
    sa.Column("n", sa.Integer),
    sa.Column("at", sa.DateTime),
)
KEYS = sa.Table("upserted_keys", sa.MetaData(), sa.Column("k", sa.Text, primary_key=True))


class _Sqlite:
    """`SqliteStore`, whose expressions are text."""

    def __init__(self, directory: Path) -> None:
        self.shard = FixedShard()
        schema = (
            "CREATE TABLE upserted_counts (k TEXT, day INTEGER, n INTEGER, x REAL, PRIMARY KEY (k, day));"
            "CREATE TABLE upserted_keys (k TEXT PRIMARY KEY)"
        )
        self.store: Any = SqliteStore(self.shard, LocalState(directory), schema=schema)
        self.store.restore_checkpoint(self.shard)

    def upsert(self, table: sa.Table, rows: Any, *, adds: bool = False) -> None:
        key = [column.name for column in table.primary_key]
        set_ = {"n": "n + excluded.n"} if adds else None
        self.store.upsert(table.name, rows, key=key, set_=set_)

    def rows(self, table: sa.Table) -> list[tuple[Any, ...]]:
        query = f"SELECT * FROM {table.name} ORDER BY 1"  # noqa: S608 - the test's own
        wait(self.store.start_commit(self.shard, reading(1), ()))
        rows: list[tuple[Any, ...]] = self.store.read(
            lambda connection: connection.execute(query).fetchall()
        )
        return rows


class _Sql:
    """`SqlStore`, whose expressions are SQLAlchemy's."""

    def __init__(self, engine: sa.Engine) -> None:
        self.shard = FixedShard()
        for table in (COUNTS, KEYS, TIMES):
            table.create(engine)
        self.store: Any = SqlStore(self.shard, engine)
        self.store.restore_checkpoint(self.shard)

    def upsert(self, table: sa.Table, rows: Any, *, adds: bool = False) -> None:
        self.store.upsert(
            table, rows, set_=(lambda new: {"n": table.c.n + new.n}) if adds else None
        )

    def rows(self, table: sa.Table) -> list[tuple[Any, ...]]:
        wait(self.store.start_commit(self.shard, reading(1), ()))
        query = sa.select(table).order_by(*table.primary_key)
        rows: list[tuple[Any, ...]] = self.store.read(
            lambda connection: [tuple(row) for row in connection.execute(query)]
        )
        return rows


@pytest.fixture(
    params=["sqlite", "sql_sqlite", pytest.param("sql_postgresql", marks=pytest.mark.postgresql)]
)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Sqlite | _Sql]:
    """Each store, with empty tables."""
    if request.param == "sqlite":
        subject: _Sqlite | _Sql = _Sqlite(tmp_path)
        yield subject
        subject.store.destroy()
        return
    file = f"sqlite:///{tmp_path}/state.db"
    engine = sa.create_engine(
        file if request.param == "sql_sqlite" else request.getfixturevalue("postgresql_url")
    )
    subject = _Sql(engine)
    yield subject
    subject.store.destroy()
    for table in (COUNTS, KEYS, TIMES):
        table.drop(engine)
    engine.dispose()


@pytest.mark.parametrize("adds", [True, False])
def test_runs_do_what_a_loop_over_their_rows_does(subject: _Sqlite | _Sql, adds: bool) -> None:
    """With keys that occur several times in one run, nulls, and runs of all lengths."""
    seed = random.Random(3)
    expected: dict[tuple[str, int], list[Any]] = {}
    for length in (1, 7, 250, 0, 1000):
        rows = {
            "k": [f"k{seed.randrange(40)}" for _ in range(length)],
            "day": np.array([seed.randrange(3) for _ in range(length)], np.int64),
            "n": pa.array([seed.randrange(100) for _ in range(length)], pa.int64()),
            "x": [seed.choice((None, 0.5, 1.5)) for _ in range(length)],
        }
        subject.upsert(COUNTS, rows, adds=adds)
        for k, day, n, x in zip(
            *(list(map(_plain, column)) for column in rows.values()), strict=True
        ):
            if adds and (k, day) in expected:
                expected[k, day][0] += n
            else:
                expected[k, day] = [n, x]

    found = {(k, day): [n, x] for k, day, n, x in subject.rows(COUNTS)}
    assert found == expected


def test_values_and_parameters_of_sqlalchemys_own_are_bound(subject: _Sqlite | _Sql) -> None:
    """A time is text in SQLite, and a bound is part of the statement."""
    if isinstance(subject, _Sqlite):
        return
    when = datetime(2026, 1, 2, 3, 4)  # noqa: DTZ001 - the column has no zone
    for values in ([1, 70, 3], [90, 1, 1]):
        rows = {"k": ["a", "b", "a"], "n": values, "at": [when] * 3}
        subject.store.upsert(
            TIMES, rows, set_=lambda new: {"n": sa.case((new.n > 50, 50), else_=new.n)}
        )
    subject.upsert(TIMES, {"k": ["c"], "n": [1], "at": [when]})

    assert subject.rows(TIMES) == [("a", 1, when), ("b", 1, when), ("c", 1, when)]


def _plain(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value


def test_run_of_an_arrow_table_that_is_only_a_key(subject: _Sqlite | _Sql) -> None:
    """A set of keys: there is nothing to update."""
    for _ in range(2):
        subject.upsert(KEYS, pa.table({"k": ["a", "b", "a"]}))

    assert subject.rows(KEYS) == [("a",), ("b",)]


@pytest.mark.parametrize(
    "rows",
    [
        {"k": ["a"], "day": [1, 2], "n": [1]},
        {"k": ["a"], "n": [1]},
    ],
    ids=["lengths", "no key"],
)
def test_run_that_does_not_fit_is_refused(subject: _Sqlite | _Sql, rows: Any) -> None:
    """Before anything is written; the transaction goes on."""
    with pytest.raises(ValidationError):
        subject.upsert(COUNTS, rows)

    assert subject.rows(COUNTS) == []


@pytest.mark.parametrize(
    "column",
    [list, lambda values: pa.array(values), lambda values: pa.array(values).cast("string")],
    ids=["list", "binary", "text"],
)
def test_rocksdb_takes_runs_of_keys(tmp_path: Path, column: Callable[[Any], Any]) -> None:
    """As single puts and deletes do, in their order."""
    shard = FixedShard()
    store = RocksDbStore(shard, LocalState(tmp_path), families=("a",))
    store.restore_checkpoint(shard)

    store.put_many(column([b"a", b"b", b"a"]), column([b"1", b"2", b"3"]), family="a")
    store.put_many(column([b"c", b"d"]), column([b"4", b"5"]))
    store.delete_many(column([b"b", b"never"]), family="a")
    wait(store.start_commit(shard, reading(1), ()))

    assert store.read(lambda view: dict(view.items(family="a"))) == {b"a": b"3"}
    assert store.read(lambda view: dict(view.items())) == {b"c": b"4", b"d": b"5"}
    for keys, values, told in (
        ([b"a", b"\x00mine"], [b"", b""], "zero byte"),
        (["a"], [b""], "keys: expected bytes, got str"),
        ([b"a"], [1], "values: expected bytes, got int"),
        ([b"a"], [], "values: expected 1, got 0"),
    ):
        with pytest.raises(ValidationError, match=told):
            store.put_many(keys, values)
    store.destroy()
