"""What every store promises: state and checkpoint commit together, after what they wait for, under the newest fence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest
import sqlalchemy as sa

from consumer.application import Store
from consumer.errors import CommitFencedError, StoreClosedError, StoreError
from consumer.op_future import OpFuture, failed
from consumer.protocol.shard_pb2 import Checkpoint
from consumer.stores.json_file import JsonFileStore
from consumer.stores.sql import SqlStore
from tests.support.fixed_shard import FixedShard

WAIT_SECONDS = 20.0


class Harness(Protocol):
    """One kind of store, driven alike."""

    def open(self, shard: FixedShard) -> Store:
        """Return a new holder of the shard's store."""
        ...

    def put(self, store: Any, key: str, value: int) -> None:
        """Change the state of the running transaction."""
        ...

    def committed(self, store: Any) -> dict[str, int]:
        """Return the state as of the last commit, as others see it."""
        ...


class JsonHarness:
    """`JsonFileStore` in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, shard: FixedShard) -> JsonFileStore[dict[str, int]]:
        """Open it."""
        return JsonFileStore(
            shard, self._directory, initial={}, state_type=dict[str, int], lock_wait_seconds=2
        )

    def put(self, store: JsonFileStore[dict[str, int]], key: str, value: int) -> None:
        """Set a key."""
        store.state[key] = value

    def committed(self, store: JsonFileStore[dict[str, int]]) -> dict[str, int]:
        """Read it back."""
        return store.committed_state()


class SqlHarness:
    """`SqlStore` with a table of its own."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._table = sa.Table(
            f"state_{uuid4().hex}",
            sa.MetaData(),
            sa.Column("shard", sa.String(255), primary_key=True),
            sa.Column("key", sa.String(255), primary_key=True),
            sa.Column("value", sa.Integer),
        )
        self._table.create(engine)

    def open(self, shard: FixedShard) -> SqlStore:
        """Open it."""
        return SqlStore(shard, self._engine, lock_wait_seconds=5, takeover_seconds=0.1)

    def put(self, store: SqlStore, key: str, value: int) -> None:
        """Insert or update a row."""
        table, fqn = self._table, store._fqn
        mine = sa.and_(table.c.shard == fqn, table.c.key == key)
        store.connection.execute(sa.delete(table).where(mine))
        store.connection.execute(sa.insert(table).values(shard=fqn, key=key, value=value))

    def committed(self, store: SqlStore) -> dict[str, int]:
        """Read the shard's rows."""
        query = sa.select(self._table.c.key, self._table.c.value).where(
            self._table.c.shard == store._fqn
        )
        return store.read(
            lambda connection: {row.key: row.value for row in connection.execute(query)}
        )


@pytest.fixture(
    params=["json_file", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """Each kind of store in turn."""
    if request.param == "json_file":
        yield JsonHarness(tmp_path)
        return
    url = (
        f"sqlite:///{tmp_path}/state.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgresql_url")
    )
    engine = sa.create_engine(url)
    try:
        yield SqlHarness(engine)
    finally:
        engine.dispose()


@pytest.fixture
def shard() -> FixedShard:
    """A shard that no other test shares."""
    return FixedShard(root=f"/test/{uuid4().hex}")


@pytest.fixture
def open_store(harness: Harness, shard: FixedShard) -> Iterator[Callable[[], Any]]:
    """Opens holders of the test's shard, and destroys them in the end."""
    opened: list[Store] = []

    def open_one() -> Store:
        opened.append(harness.open(shard))
        return opened[-1]

    yield open_one
    for store in opened:
        store.destroy()


def reading(offset: int) -> Checkpoint:
    """Return a checkpoint with everything that one can hold."""
    checkpoint = Checkpoint(ack_intents={"out/a": b"\x00\xffack\n"})
    source = checkpoint.sources["in/a;meta"]
    source.read_through = offset
    entry = source.producers.add(id=b"\x01\x02\x03\x04\x05\x06")
    entry.state.last_ack = 2**64 - 1
    entry.state.begin = -1
    return checkpoint


def wait(commit: OpFuture) -> None:
    """Wait for a commit."""
    commit.result(WAIT_SECONDS)


def test_restore_of_a_new_shard_returns_an_empty_checkpoint(
    open_store: Callable[[], Any], shard: FixedShard
) -> None:
    """The first primary ever begins at the beginning."""
    assert open_store().restore_checkpoint(shard) == Checkpoint()


def test_commit_then_restore_returns_state_and_checkpoint(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """Both survive in another holder, whole: 64-bit clocks, offsets -1 and arbitrary bytes too."""
    first = open_store()
    first.restore_checkpoint(shard)
    harness.put(first, "a", 1)

    wait(first.start_commit(shard, reading(10), ()))

    second = open_store()
    assert second.restore_checkpoint(shard) == reading(10)
    assert harness.committed(second) == {"a": 1}


def test_state_before_commit_is_not_visible(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """Readers see the last commit, never the running transaction."""
    store = open_store()
    store.restore_checkpoint(shard)

    harness.put(store, "a", 1)

    assert harness.committed(store) == {}


def test_commit_waits_for_every_future(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """Nothing is durable before the appends are: a reader must not see state whose outputs may yet be lost."""
    store = open_store()
    store.restore_checkpoint(shard)
    harness.put(store, "a", 1)
    appends: list[Future[object]] = [Future(), Future()]

    commit = store.start_commit(shard, reading(10), appends)
    appends[1].set_result(None)

    with pytest.raises(TimeoutError):
        commit.result(0.1)
    assert harness.committed(store) == {}
    appends[0].set_result(None)
    wait(commit)
    assert harness.committed(store) == {"a": 1}


def test_commit_whose_wait_fails_is_not_made(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """A lost output must not be remembered as published; the store is free for the next holder at once."""
    store = open_store()
    store.restore_checkpoint(shard)
    harness.put(store, "a", 1)

    never: Future[object] = Future()
    commit = store.start_commit(shard, reading(10), (never, failed(OSError("broker is gone"))))

    with pytest.raises(OSError, match="broker is gone"):
        wait(commit)
    next_holder = open_store()
    assert next_holder.restore_checkpoint(shard) == Checkpoint()
    assert harness.committed(next_holder) == {}


def test_state_changed_after_start_commit_belongs_to_the_next(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """Transactions overlap: what N+1 changes while N commits must not slip into N."""
    store = open_store()
    store.restore_checkpoint(shard)
    harness.put(store, "a", 1)
    commit = store.start_commit(shard, reading(10), ())
    harness.put(store, "a", 2)
    wait(commit)

    assert harness.committed(store) == {"a": 1}
    wait(store.start_commit(shard, reading(20), ()))
    assert harness.committed(store) == {"a": 2}
    assert open_store().restore_checkpoint(shard) == reading(20)


def test_commit_without_state_keeps_the_checkpoint(
    open_store: Callable[[], Any], shard: FixedShard
) -> None:
    """A transaction may change nothing but the offsets."""
    store = open_store()
    store.restore_checkpoint(shard)

    wait(store.start_commit(shard, reading(10), ()))

    assert open_store().restore_checkpoint(shard) == reading(10)


def test_older_holder_cannot_commit_after_a_newer_restore(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """A primary that was replaced while it worked is fenced, and leaves nothing behind."""
    older, newer = open_store(), open_store()
    older.restore_checkpoint(shard)
    wait(older.start_commit(shard, reading(10), ()))
    newer.restore_checkpoint(shard)

    with pytest.raises((CommitFencedError, StoreError)):
        harness.put(older, "a", 666)
        wait(older.start_commit(shard, reading(666), ()))

    harness.put(newer, "a", 1)
    wait(newer.start_commit(shard, reading(20), ()))
    assert harness.committed(newer) == {"a": 1}


def test_older_holder_caught_in_mid_transaction_loses_it(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """The hard case: the older transaction began before the newer restore, and commits after it."""
    older, newer = open_store(), open_store()
    older.restore_checkpoint(shard)
    appends: Future[object] = Future()
    if isinstance(harness, JsonHarness) or older._dialect.__class__.__name__ == "PostgresqlDialect":
        harness.put(older, "a", 666)  # A SQLite writer would rather make its successor wait.
    commit = older.start_commit(shard, reading(666), (appends,))

    assert newer.restore_checkpoint(shard) == Checkpoint()
    appends.set_result(None)

    with pytest.raises((CommitFencedError, StoreError)):
        wait(commit)
    harness.put(newer, "a", 1)
    wait(newer.start_commit(shard, reading(20), ()))
    assert harness.committed(newer) == {"a": 1}
    assert open_store().restore_checkpoint(shard) == reading(20)


def test_crash_before_commit_leaves_the_commit_before(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """A holder that dies with a transaction open has changed nothing."""
    store = open_store()
    store.restore_checkpoint(shard)
    harness.put(store, "a", 1)
    wait(store.start_commit(shard, reading(10), ()))
    harness.put(store, "a", 2)
    store.destroy()

    survivor = open_store()

    assert survivor.restore_checkpoint(shard) == reading(10)
    assert harness.committed(survivor) == {"a": 1}


def test_destroy_aborts_a_commit_that_still_waits(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """A broker that never answers must not keep a shard from stopping; and the commit fails for good."""
    store = open_store()
    store.restore_checkpoint(shard)
    harness.put(store, "a", 1)
    never: Future[object] = Future()
    commit = store.start_commit(shard, reading(10), (never,))

    store.destroy()
    store.destroy()

    with pytest.raises(StoreClosedError):
        wait(commit)
    never.set_result(None)
    assert open_store().restore_checkpoint(shard) == Checkpoint()


def test_shards_do_not_see_each_other(harness: Harness, shard: FixedShard) -> None:
    """Many shards share one database or directory; fences and checkpoints are each one's own."""
    other = FixedShard(id="shard-0002", root=shard.root)
    first, second = harness.open(shard), harness.open(other)
    try:
        first.restore_checkpoint(shard)
        second.restore_checkpoint(other)
        wait(first.start_commit(shard, reading(10), ()))
        wait(second.start_commit(other, reading(20), ()))

        assert harness.open(shard).restore_checkpoint(shard) == reading(10)
        assert harness.open(other).restore_checkpoint(other) == reading(20)
    finally:
        first.destroy()
        second.destroy()


def test_commit_cannot_be_cancelled(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """The application is given the commit's future; whoever loses patience with it must not undo it."""
    store = open_store()
    store.restore_checkpoint(shard)
    harness.put(store, "a", 1)
    append: Future[object] = Future()

    commit = store.start_commit(shard, reading(10), (append,))

    assert not commit.cancel()
    append.set_result(None)
    wait(commit)
    assert harness.committed(store) == {"a": 1}


def test_same_holder_restores_again_and_drops_what_it_had_not_committed(
    open_store: Callable[[], Any], harness: Harness, shard: FixedShard
) -> None:
    """A shard whose input ended, or whose sources changed, restores in place; a query may have left state behind."""
    store = open_store()
    store.restore_checkpoint(shard)
    harness.put(store, "a", 1)
    wait(store.start_commit(shard, reading(10), ()))
    harness.put(store, "a", 2)

    assert store.restore_checkpoint(shard) == reading(10)

    harness.put(store, "b", 3)
    wait(store.start_commit(shard, reading(20), ()))
    assert harness.committed(store) == {"a": 1, "b": 3}


def test_transaction_that_the_database_rolled_back_does_not_commit(
    tmp_path: Path, shard: FixedShard
) -> None:
    """SQLite ends the whole transaction on some errors. An application that goes on after one would commit its second
    half, with the checkpoint of both.
    """
    engine = sa.create_engine(f"sqlite:///{tmp_path}/state.db")
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE kept (n INTEGER PRIMARY KEY)"))
        connection.execute(sa.text("INSERT INTO kept VALUES (1)"))
    store = SqlStore(shard, engine)
    store.restore_checkpoint(shard)
    store.connection.execute(sa.text("INSERT INTO kept VALUES (2)"))
    with pytest.raises(sa.exc.IntegrityError):
        store.connection.execute(sa.text("INSERT OR ROLLBACK INTO kept VALUES (1)"))

    with pytest.raises(StoreError, match="rolled back"):
        wait(store.start_commit(shard, reading(10), ()))

    store.destroy()
    again = SqlStore(shard, engine)
    assert again.restore_checkpoint(shard) == Checkpoint()
    again.destroy()
    engine.dispose()
