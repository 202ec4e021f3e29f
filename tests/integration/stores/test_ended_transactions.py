"""Transactions that an application ends by itself, by any door: nothing of them stands, no checkpoint tells of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.fixed_shard import FixedShard

SALES = sa.Table(
    "sales",
    sa.MetaData(),
    sa.Column("k", sa.Text, primary_key=True),
    sa.Column("n", sa.Integer, nullable=False),
)
SHARD = FixedShard()
End: TypeAlias = Callable[[Connection], object]


def by_text(statement: str) -> End:
    """End it by a statement."""
    return lambda connection: connection.exec_driver_sql(statement)


def by_driver(method: str) -> End:
    """End it by a method of the driver's connection, which SQLAlchemy does not see."""
    return lambda connection: getattr(connection.connection.driver_connection, method)()


def by_library(method: str) -> End:
    """End it by a method of SQLAlchemy's connection."""
    return lambda connection: getattr(connection, method)()


ENDS = {
    "ROLLBACK": by_text("ROLLBACK"),
    "COMMIT": by_text("COMMIT"),
    "driver.rollback": by_driver("rollback"),
    "driver.commit": by_driver("commit"),
    "connection.rollback": by_library("rollback"),
    "connection.commit": by_library("commit"),
}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A database of its own."""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
    else:
        url = f"sqlite:///{tmp_path}/sales.db"
    engine = sa.create_engine(url)
    SALES.drop(engine, checkfirst=True)
    SALES.create(engine)
    yield engine
    SALES.drop(engine)
    engine.dispose()


def add(connection: Connection, first: int, end: int) -> None:
    """Add rows [first, end)."""
    for row in range(first, end):
        connection.execute(SALES.insert().values(k=f"row{row}", n=row))


def attempt(store: SqlStore, end: End, *, swallow: bool) -> None:
    """Add ten rows, have one refused, end the transaction, add five more, and commit."""
    connection = store.connection
    add(connection, 0, 10)
    try:
        add(connection, 3, 4)
    except sa.exc.IntegrityError:
        with suppress(*([Exception] if swallow else [])):
            end(connection)
    add(connection, 10, 15)
    checkpoint = Checkpoint()
    checkpoint.sources["journal"].read_through = 1500
    store.start_commit(SHARD, checkpoint, ()).result(20)


def committed(engine: Engine) -> tuple[int, int]:
    """Return how many rows are there, and through where the next life finds its source read."""
    store = SqlStore(SHARD, engine)
    through = store.restore_checkpoint(SHARD).sources["journal"].read_through
    store.destroy()
    with engine.connect() as connection:
        return len(connection.execute(sa.select(SALES.c.k)).all()), through


@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize("end", ENDS)
def test_transaction_that_the_application_ends_stands_whole_or_not_at_all(
    engine: Engine, end: str, swallow: bool
) -> None:
    """The usual recipe after a refused row: roll back and go on. Half of the rows with the checkpoint of all of them
    are lost rows; rows without their checkpoint are applied again.
    """
    store = SqlStore(SHARD, engine)
    through = store.restore_checkpoint(SHARD).sources["journal"].read_through

    with suppress(StoreError, sa.exc.SQLAlchemyError, sqlite3.Error, psycopg.Error):
        attempt(store, ENDS[end], swallow=swallow)

    store.destroy()
    # Where SQLite refused the statement, and the application did not mind, the transaction goes on.
    whole = [(15, 1500)] if engine.dialect.name == "sqlite" and swallow else []
    assert committed(engine) in [(0, through), *whole]


def test_transaction_that_was_not_ended_commits(engine: Engine) -> None:
    """The guard lets the store's own commit through, and leaves the pool's connections as they were."""
    store = SqlStore(SHARD, engine)
    store.restore_checkpoint(SHARD)
    connection = store.connection
    add(connection, 0, 10)
    with pytest.raises(sa.exc.IntegrityError), connection.begin_nested():
        add(connection, 3, 4)
    add(connection, 10, 15)
    checkpoint = Checkpoint()
    checkpoint.sources["journal"].read_through = 1500
    store.start_commit(SHARD, checkpoint, ()).result(20)
    store.destroy()

    with engine.begin() as connection:
        add(connection, 20, 21)
    assert committed(engine) == (16, 1500)


def swallowed(connection: sqlite3.Connection, statement: str) -> None:
    """Execute it, and pass over its error."""
    with suppress(sqlite3.Error):
        connection.execute(statement)


SWALLOWED_FIRST = "INSERT OR ROLLBACK INTO sales VALUES ('row1', 9)"
LATER = {
    "same text as before": "INSERT INTO sales VALUES ('row1', 1)",
    "another text": "INSERT INTO sales (k, n) VALUES ('row2', 2)",
    "with": "WITH new(k, n) AS (SELECT 'row3', 3) INSERT INTO sales SELECT k, n FROM new",
    "schema": "CREATE TABLE more AS SELECT 'row4' AS k, 4 AS n",
    "savepoint": "SAVEPOINT rows",
    "begin": "BEGIN",
}


@pytest.mark.parametrize("later", LATER)
def test_row_after_a_swallowed_end_of_the_transaction_is_refused_in_sqlite_store(
    tmp_path: Path, later: str
) -> None:
    """Where no transaction is open, SQLite commits each statement: rows of a file that stays, without a checkpoint."""
    store = SqliteStore(
        SHARD,
        LocalState(tmp_path),
        schema="CREATE TABLE IF NOT EXISTS sales (k TEXT PRIMARY KEY, n INT)",
    )
    store.restore_checkpoint(SHARD)
    connection = store.connection
    connection.execute(LATER["same text as before"])
    swallowed(connection, SWALLOWED_FIRST)

    with pytest.raises(sqlite3.Error):
        connection.execute(LATER[later])

    with pytest.raises(StoreError, match="passed over"):
        _ = store.connection
    with pytest.raises(StoreError, match="passed over"):
        store.start_commit(SHARD, Checkpoint(), ()).result(10)
    store.destroy()
    with sqlite3.connect(tmp_path / "state.db") as outside:
        assert outside.execute("SELECT count(*) FROM sales").fetchone() == (0,)
        assert outside.execute(
            "SELECT count(*) FROM sqlite_schema WHERE name = 'more'"
        ).fetchone() == (0,)
    outside.close()


@pytest.mark.parametrize("later", LATER)
def test_row_after_a_swallowed_end_of_the_transaction_is_refused_in_sql_store(
    tmp_path: Path, later: str
) -> None:
    """As above, by the driver's connection and by SQLAlchemy's."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/sales.db")
    SALES.create(engine)
    store = SqlStore(SHARD, engine)
    store.restore_checkpoint(SHARD)
    connection = store.connection
    connection.exec_driver_sql(LATER["same text as before"])
    with suppress(sa.exc.IntegrityError):
        connection.exec_driver_sql(SWALLOWED_FIRST)

    with pytest.raises(sa.exc.DatabaseError):
        connection.exec_driver_sql(LATER[later])

    with pytest.raises(StoreError, match="passed over"):
        _ = store.connection
    store.destroy()
    assert committed(engine) == (0, 0)
    engine.dispose()


def test_authorizer_of_a_sqlite_store_stays(tmp_path: Path) -> None:
    """Without it the application could commit by text."""
    store = SqliteStore(SHARD, LocalState(tmp_path))
    store.restore_checkpoint(SHARD)

    with pytest.raises(StoreError, match="authorizer"):
        store.connection.set_authorizer(None)
    store.destroy()
