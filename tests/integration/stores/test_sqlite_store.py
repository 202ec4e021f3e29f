"""`SqliteStore` beyond the suite: large transactions, long queries, and an application that oversteps."""

from __future__ import annotations

import sqlite3
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.stores.recorded_log import RecordedLog
from broadsheet.testing.stores.subject import FixedShard, offset_of, reading, wait

SCHEMA = "CREATE TABLE IF NOT EXISTS blobs (key INTEGER PRIMARY KEY, step INTEGER, content BLOB);"

OpenStore = Callable[..., SqliteStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Opens what a log replays to; destroys it in the end."""
    opened: list[SqliteStore] = []

    def open_one(log: RecordedLog | None = None, **options: object) -> SqliteStore:
        log = log or RecordedLog()
        directory = tmp_path / str(len(opened))
        shard = FixedShard(local_state=LocalState(directory, log.hand_over(directory)))
        options = {"schema": SCHEMA, **options}
        store = SqliteStore(shard, **options)  # type: ignore[arg-type]  # Each test's own.
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.destroy()


@pytest.fixture
def shard() -> FixedShard:
    """What the calls are told; stores have their own."""
    return FixedShard()


def put(store: SqliteStore, key: int, step: int, *, content_bytes: int = 1000) -> None:
    """Set a row."""
    store.connection.execute(
        "INSERT OR REPLACE INTO blobs VALUES (?, ?, randomblob(?))", (key, step, content_bytes)
    )


def steps(store: SqliteStore) -> dict[int, int]:
    """Return which step wrote each row."""
    return store.read(lambda connection: dict(connection.execute("SELECT key, step FROM blobs")))


def commit(store: SqliteStore, shard: FixedShard, step: int) -> None:
    """Commit, and wait."""
    wait(store.start_commit(shard, reading(step), ()))


def test_log_of_large_transactions_opens_at_a_commit_wherever_it_ends(
    open_store: OpenStore, shard: FixedShard
) -> None:
    """Transactions larger than the page cache write frames before they commit, and some of those are rolled back. The
    log is cut off between and inside its writes; among them are whole copies of the file.
    """
    log = RecordedLog()
    small = {"cache_bytes": 16 << 10, "wal_bytes_max": 256 << 10, "rewrite_bytes_min": 64 << 10}
    store = open_store(log, **small)
    store.restore_checkpoint(shard)
    for step in range(1, 16):
        for key in range(80):
            put(store, key, step)
        store.connection.execute("SAVEPOINT attempt")
        for key in range(200):
            put(store, key, -1)
        store.connection.execute("ROLLBACK TO attempt")
        put(store, 100 + step, step)
        commit(store, shard, step)
    kinds = [(change.kind, change.path) for change in log.changes]
    assert kinds.count(("rename", "/state.db.next")) >= 3
    assert kinds.count(("remove", "/state.db-wal")) >= 5

    for count, files in log.cuts():
        survivor = open_store(RecordedLog(files=files.copy()))
        step = offset_of(survivor.restore_checkpoint(shard))
        expected = dict.fromkeys(range(80), step) if step else {}
        expected |= {100 + past: past for past in range(1, step + 1)}
        assert steps(survivor) == expected, f"cut after {count} changes"
        assert step >= bisect_right(log.barriers, count) - 1
        check = survivor.read(lambda reader: reader.execute("PRAGMA integrity_check").fetchone())
        assert check == ("ok",)
        survivor.destroy()


def test_log_of_overwritten_rows_stays_in_proportion_to_the_file(
    open_store: OpenStore, shard: FixedShard
) -> None:
    """A standby plays everything since a live file began. The write-ahead log and the file must begin again often."""
    log = RecordedLog()
    store = open_store(log, wal_bytes_max=64 << 10, rewrite_bytes_min=64 << 10)
    store.restore_checkpoint(shard)
    for step in range(1, 101):
        for key in range(20):
            put(store, key, step)
        commit(store, shard, step)

    database_bytes = log.files.size_of("/state.db")
    begun = max(
        index for index, change in enumerate(log.changes) if change.path == "/state.db.next"
    )
    since = sum(len(change.content) for change in log.changes[begun:])
    assert since < 8 * database_bytes + (256 << 10)
    assert log.files.size_of("/state.db-wal") < 256 << 10


def test_next_transaction_runs_while_the_log_is_slow(
    open_store: OpenStore, shard: FixedShard
) -> None:
    """The worker need not wait for the broker; what it changes meanwhile stays out of sight and out of the log."""
    log = RecordedLog()
    store = open_store(log)
    store.restore_checkpoint(shard)
    put(store, 1, 1)
    log.hold()
    first = store.start_commit(shard, reading(1), ())

    put(store, 2, 2)

    assert not first.done()
    assert steps(store) == {}
    log.release()
    wait(first)
    assert steps(store) == {1: 1}
    commit(store, shard, 2)
    assert steps(store) == {1: 1, 2: 2}


def test_next_transaction_commits_before_the_last_one_tidied_up(
    open_store: OpenStore, shard: FixedShard
) -> None:
    """Whoever learns of a commit may be quicker than the commit's own thread; its tidying leaves the next one alone."""
    store = open_store(RecordedLog())
    store.restore_checkpoint(shard)
    put(store, 1, 1)
    followed = threading.Event()
    first = store.start_commit(shard, reading(1), ())
    first.add_done_callback(
        lambda _: followed.wait(30.0)
    )  # On the commit's thread, ahead of its tidying.
    wait(first)

    put(store, 2, 2)
    second = store.start_commit(shard, reading(2), ())
    followed.set()
    wait(second)

    commit(store, shard, 3)
    assert steps(store) == {1: 1, 2: 2}


def test_commit_of_few_rows_is_on_its_way_when_its_call_returns(
    open_store: OpenStore, shard: FixedShard
) -> None:
    """A row that comes alone waits for one hand-over less: its commit's thread learns of it with the log's answer."""
    log = RecordedLog()
    store = open_store(log)
    store.restore_checkpoint(shard)
    commit(store, shard, 1)
    log.hold()
    before = len(log.changes), len(log.barriers)
    put(store, 1, 2)

    first = store.start_commit(shard, reading(2), ())

    assert len(log.changes) > before[0]
    assert len(log.barriers) == before[1] + 1
    assert not first.done()
    log.release()
    wait(first)
    assert steps(store) == {1: 2}


def test_query_sees_one_commit_while_others_follow(
    open_store: OpenStore, shard: FixedShard
) -> None:
    """A long query is not disturbed by commits, nor they by it; those after it see them."""
    store = open_store()
    store.restore_checkpoint(shard)
    for key in range(50):
        put(store, key, 1)
    commit(store, shard, 1)

    def scan(connection: sqlite3.Connection) -> set[int]:
        rows = connection.execute("SELECT step FROM blobs")
        seen = {rows.fetchone()[0]}
        for step in (2, 3):
            for key in range(50):
                put(store, key, step)
            commit(store, shard, step)
        return seen | {step for (step,) in rows}

    assert store.read(scan) == {1}
    assert set(steps(store).values()) == {3}


def test_query_that_holds_the_log_back_for_long_is_ended(
    open_store: OpenStore, shard: FixedShard, tmp_path: Path
) -> None:
    """A forgotten query must not let the write-ahead log grow without bound."""
    store = open_store(wal_bytes_max=64 << 10)
    store.restore_checkpoint(shard)
    put(store, 1, 1)
    commit(store, shard, 1)
    begun = threading.Event()
    ended: list[str] = []

    def endless(connection: sqlite3.Connection) -> None:
        connection.create_function("begin", 0, begun.set)
        query = "WITH RECURSIVE n(i) AS (SELECT begin() UNION ALL SELECT i FROM n) SELECT count(*) FROM n"
        try:
            connection.execute(query).fetchone()
        except sqlite3.OperationalError as error:
            ended.append(str(error))

    thread = threading.Thread(target=lambda: store.read(endless))
    thread.start()
    assert begun.wait(10)
    step = 1
    while not ended and step < 60:
        step += 1
        for key in range(20):
            put(store, key, step)
        commit(store, shard, step)
    thread.join(10)

    assert ended == ["interrupted"]
    assert (tmp_path / "0" / "state.db-wal").stat().st_size < 64 << 10 << 4
    assert steps(store)[1] == step


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "END",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA Wal_Checkpoint",
        "ATTACH ':memory:' AS other",
    ],
)
def test_statement_that_would_break_the_commit_is_refused(
    open_store: OpenStore, shard: FixedShard, statement: str
) -> None:
    """An application's COMMIT would commit state without its checkpoint."""
    store = open_store()
    store.restore_checkpoint(shard)
    put(store, 1, 1)
    commit(store, shard, 1)
    put(store, 1, 2)

    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        store.connection.execute(statement)

    commit(store, shard, 2)
    assert steps(store) == {1: 2}


def test_calls_that_would_break_the_commit_are_refused(
    open_store: OpenStore, shard: FixedShard
) -> None:
    """The driver's own ways to end a transaction, too."""
    store = open_store()
    store.restore_checkpoint(shard)
    put(store, 1, 1)

    for call in (store.connection.commit, store.connection.rollback, store.connection.close):
        with pytest.raises(StoreError, match=r"store\.connection"):
            call()
    with pytest.raises((StoreError, sqlite3.DatabaseError)), store.connection:
        put(store, 2, 1)
    with pytest.raises((StoreError, sqlite3.DatabaseError)):
        store.connection.executescript("DELETE FROM blobs")

    assert store.connection.in_transaction
    commit(store, shard, 1)
    assert steps(store) == {1: 1, 2: 1}


def test_transaction_that_the_database_rolled_back_does_not_commit(
    open_store: OpenStore, shard: FixedShard
) -> None:
    """SQLite ends the whole transaction on some errors. An application that goes on after one would commit its second
    half, with the checkpoint of both.
    """
    store = open_store()
    store.restore_checkpoint(shard)
    put(store, 1, 1)
    with pytest.raises(sqlite3.IntegrityError):
        store.connection.execute("INSERT OR ROLLBACK INTO blobs VALUES (1, 2, NULL)")

    with pytest.raises(StoreError, match="rolled back"):
        commit(store, shard, 1)


def test_query_cannot_write(open_store: OpenStore, shard: FixedShard) -> None:
    """A write of a query's would be in no transaction of the store's."""
    store = open_store()
    store.restore_checkpoint(shard)

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.read(lambda connection: connection.execute("DELETE FROM blobs"))


def test_schema_may_hold_triggers_and_change_between_lives(
    open_store: OpenStore, shard: FixedShard
) -> None:
    """Statements are told apart as SQLite does it; a later version adds to what the log replays to."""
    log = RecordedLog()
    first = open_store(log)
    first.restore_checkpoint(shard)
    put(first, 1, 1)
    commit(first, shard, 1)
    trigger = "CREATE TRIGGER IF NOT EXISTS t AFTER INSERT ON blobs BEGIN INSERT INTO log VALUES (new.key); END"
    more = f"{SCHEMA} CREATE TABLE IF NOT EXISTS log (key INTEGER); {trigger}"

    second = open_store(log, schema=more)

    assert second.restore_checkpoint(shard) == reading(1)
    put(second, 2, 2)
    commit(second, shard, 2)
    assert second.read(lambda reader: reader.execute("SELECT key FROM log").fetchall()) == [(2,)]


def test_store_without_log_and_without_directory_says_what_to_do(shard: FixedShard) -> None:
    """Nothing must be kept in a place that the next machine does not have, unless the application says so."""
    with pytest.raises(ValidationError, match="recovery_log_prefix"):
        SqliteStore(shard)


def test_store_that_is_not_restored_says_so(open_store: OpenStore) -> None:
    """In place of an error of the library's."""
    with pytest.raises(StoreError, match="restore_checkpoint"):
        _ = open_store().connection
