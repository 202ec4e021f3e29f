"""One SQLite store after the other, each from what a log has of those before that ends anywhere."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.testing.stores.recorded_log import MirroredFiles, RecordedLog
from broadsheet.testing.stores.subject import FixedShard, reading

SCHEMA = "CREATE TABLE IF NOT EXISTS t (k INTEGER PRIMARY KEY, v BLOB)"
LIVES, KEYS = 12, 40
Rows = dict[int, bytes]


def _commit(
    store: SqliteStore, shard: FixedShard, number: int, rows: Rows, rng: random.Random
) -> Rows:
    """Commit some rows of up to three pages, with checkpoint `number`; return all rows after it."""
    changed = {
        rng.randrange(KEYS): rng.randbytes(rng.choice((10, 3000, 12_000)))
        for _ in range(rng.choice((1, 1, 8)))
    }
    for key, value in changed.items():
        store.connection.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (key, value))
    store.start_commit(shard, reading(number), ()).result()
    return rows | changed


def _cut(log: RecordedLog, begin: MirroredFiles, rng: random.Random) -> tuple[MirroredFiles, int]:
    """Return what a player has of a log that ends at any byte, and how many of its changes are whole.

    Often it ends in the last page of the last write.
    """
    is_late = rng.random() < 0.7
    files, end = begin.copy(), rng.randrange(len(log.changes) + 1)
    if is_late and log.changes:
        end = len(log.changes) - 1
    for change in log.changes[:end]:
        files.apply(change)
    if end < len(log.changes) and log.changes[end].kind == "write":
        torn = log.changes[end]
        length = len(torn.content)
        kept = max(0, length - rng.randrange(1, 4096)) if is_late else rng.randrange(length)
        files.apply(replace(torn, content=torn.content[:kept]))
    return files, end


@pytest.mark.parametrize("seed", range(10))
def test_lives_of_a_sqlite_store_follow_from_logs_cut_anywhere(tmp_path: Path, seed: int) -> None:
    """Plan: let a store open what a log has, commit a few times, and cut its log at a random byte; again and again.

    Each store finds one commit with its checkpoint and the rows of that commit, whole, and none older than the last
    that the log has: also where frames of a commit that was cut off stand behind the frames of a later life.
    """
    rng = random.Random(seed)
    states: dict[bytes, tuple[int, Rows]] = {b"": (0, {})}
    files, numbers, durable = MirroredFiles(), count(1), 0
    for life in range(LIVES):
        log = RecordedLog(files=files.copy())
        directory = files.write_to(tmp_path / str(life))
        shard = FixedShard(local_state=LocalState(directory, log.recorder()))
        store = SqliteStore(
            shard,
            schema=SCHEMA,
            wal_bytes_max=rng.choice((60_000, 1 << 20)),
            rewrite_bytes_min=50_000,
        )

        checkpoint = store.restore_checkpoint(shard).SerializeToString(deterministic=True)
        rows = dict(store.read(lambda c: c.execute("SELECT k, v FROM t").fetchall()))
        whole = store.read(lambda c: c.execute("PRAGMA integrity_check").fetchone())
        found, expected = states[checkpoint]
        assert (rows, whole) == (expected, ("ok",))
        assert found >= durable
        ends = {len(log.changes): found}
        for number in (next(numbers) for _ in range(rng.randrange(4))):
            rows = _commit(store, shard, number, rows, rng)
            states[reading(number).SerializeToString(deterministic=True)] = number, rows
            ends[log.barriers[-1]] = number
        files, whole_changes = _cut(log, files, rng)
        durable = max([durable, *(number for end, number in ends.items() if end <= whole_changes)])
        store.destroy()
