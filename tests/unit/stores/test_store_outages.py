"""A store whose database does not answer says so: that is an outage, and no fault of its application."""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.pool import QueuePool

from broadsheet.consumer.errors import StoreClosedError, StoreError, StoreUnavailableError
from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.consumer.stores import sql
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.journals.message.checkpoint import EncodedCheckpoint, encoded
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.fixed_shard import FixedShard


def test_database_that_refuses_connections_is_unavailable() -> None:
    """A server that is restarted for longer than a shard has attempts must not quarantine every shard."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shard = FixedShard("shard-1")
    engine = sa.create_engine(f"postgresql+psycopg://nobody@127.0.0.1:{port}/none")
    store = SqlStore(shard, engine)

    with pytest.raises(StoreUnavailableError, match=r"cannot restore.*connection failed") as raised:
        store.restore_checkpoint(shard)

    assert failure_kind(raised.value) is FailureKind.TRANSIENT
    store.destroy()
    engine.dispose()


def test_database_that_others_hold_for_too_long_is_unavailable(tmp_path: Path) -> None:
    """Whoever holds the file lets go of it some time."""
    shard = FixedShard("shard-1")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'states.db'}")
    store = SqlStore(shard, engine, lock_wait_seconds=0.02)
    store.restore_checkpoint(shard)

    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match=r"cannot begin.*locked"):
            _ = store.connection
        other.exec_driver_sql("ROLLBACK")

    assert store.connection.in_transaction()
    store.destroy()
    engine.dispose()


def test_database_that_is_none_is_no_outage(tmp_path: Path) -> None:
    """Waiting does not mend a file of other content."""
    (tmp_path / "states.db").write_bytes(b"something else entirely, and longer than a header" * 20)
    shard = FixedShard("shard-1")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'states.db'}")
    store = SqlStore(shard, engine)

    with pytest.raises(StoreError, match="cannot restore") as raised:
        store.restore_checkpoint(shard)

    assert failure_kind(raised.value) is FailureKind.APPLICATION
    store.destroy()
    assert isinstance(engine.pool, QueuePool)
    assert engine.pool.checkedout() == 0, "each attempt would leave a connection"
    engine.dispose()


def test_database_without_a_place_is_no_outage(tmp_path: Path) -> None:
    """SQLite calls a directory that does not exist an operational error; nobody makes it by waiting."""
    shard = FixedShard("shard-1")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'nowhere' / 'states.db'}")
    store = SqlStore(shard, engine)

    with pytest.raises(StoreError, match="unable to open database file") as raised:
        store.restore_checkpoint(shard)

    assert failure_kind(raised.value) is FailureKind.APPLICATION
    store.destroy()
    engine.dispose()


def test_file_that_an_older_process_holds_is_unavailable(tmp_path: Path) -> None:
    """A primary that is stopped in the middle of a commit keeps its lock until it goes on, or ends."""
    shard = FixedShard("shard-1")
    store: JsonFileStore[dict[str, int]] = JsonFileStore(
        shard, tmp_path, initial={}, state_type=dict[str, int], lock_wait_seconds=0.02
    )
    store.restore_checkpoint(shard)
    (lock,) = tmp_path.rglob("epoch")

    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailableError, match="locked by another process"):
            store.restore_checkpoint(shard)
    store.destroy()


@pytest.fixture
def destroyed_meanwhile(tmp_path: Path) -> Iterator[tuple[SqlStore, Engine]]:
    """Yield a store of a SQLite file, and its engine; the file is free again in the end."""
    shard = FixedShard("shard-1")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'states.db'}")
    store = SqlStore(shard, engine)
    store.restore_checkpoint(shard)
    yield store, engine
    successor = SqlStore(shard, engine, lock_wait_seconds=0.02)
    successor.restore_checkpoint(shard)
    successor.destroy()
    engine.dispose()


def test_store_that_is_destroyed_while_its_transaction_begins_leaves_no_lock(
    destroyed_meanwhile: tuple[SqlStore, Engine],
) -> None:
    """A process is stopped on one thread while another begins: the next primary must not wait for its lock for ever."""
    store, engine = destroyed_meanwhile

    def destroys(*statement: object) -> None:
        if "BEGIN IMMEDIATE" in statement:
            store.destroy()

    sa.event.listen(engine, "before_cursor_execute", destroys)
    with pytest.raises(StoreClosedError):
        _ = store.connection


def test_store_that_is_destroyed_while_its_commit_starts_leaves_no_lock(
    destroyed_meanwhile: tuple[SqlStore, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, one step later: the transaction is the store's no more, and not the commit's yet."""
    store, _ = destroyed_meanwhile
    assert store.connection.in_transaction()

    def destroys(checkpoint: Checkpoint) -> EncodedCheckpoint:
        store.destroy()
        return encoded(checkpoint)

    monkeypatch.setattr(sql, "encoded", destroys)
    with pytest.raises(StoreClosedError):
        store.start_commit(FixedShard("shard-1"), Checkpoint(), ())
