"""Embedded stores as a shard drives them, recorded into a log at a real broker or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bench.journal_specs import journal_change
from broadsheet.consumer.application import Store
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.recoverylog.player import Player
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import BULK_CHUNK_BYTES, TransportPolicy
from broadsheet.runtime.op_future import OpFuture, completed
from broadsheet.testing.stores.subject import FixedShard, reading
from broadsheet.wire.labels import CONTENT_TYPE_RECOVERY_LOG
from broadsheet.wire.recorded_op_pb2 import FSMHints

AUTHOR = 7
STRIDE = 7919
"""Rows go round the keys in it, so that pages and tables are touched all over."""

Put: TypeAlias = Callable[[int], None]
"""Sets the n-th row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The load: `per_txn` rows in each transaction, to `keys` keys."""

    keys: int
    per_txn: int
    value_bytes: int

    def key(self, row: int) -> int:
        """Return the key of the n-th row."""
        return row * STRIDE % self.keys


class DrivenStore:
    """One store that is open. A shard's thread calls it, and puts the next rows while a commit is under way."""

    def __init__(self, kind: str, local_state: LocalState, *, recorded: bool, rows: Rows) -> None:
        """Open `sqlite` or `rocksdb`."""
        self._shard = FixedShard(local_state=local_state if recorded else None)
        self._rows = rows
        self._store, self._put = _OPEN[kind](self._shard, local_state, rows)
        self._store.restore_checkpoint(self._shard)
        self._txn = 0
        self._commit: OpFuture = completed()

    def run(self, txns: int, on_commit: Callable[[OpFuture], None] = lambda _: None) -> float:
        """Make transactions; return the seconds that they took, the last commit included."""
        per_txn = self._rows.per_txn
        began = time.perf_counter()
        for _ in range(txns):
            first = self._txn * per_txn
            for row in range(first, first + per_txn):
                self._put(row)
            self._txn += 1
            self._commit.result()
            self._commit = self._store.start_commit(self._shard, reading(self._txn), ())
            on_commit(self._commit)
        self._commit.result()
        return time.perf_counter() - began

    def run_full(self, rows: int) -> float:
        """Put so many rows; return the seconds, the last commit included.

        Transactions end where a shard with input at hand ends them: when the commit before is done, and not before it
        has `per_txn` rows.
        """
        began = time.perf_counter()
        first = end = 0
        while end < rows:
            while end - first < self._rows.per_txn or not (self._commit.done() or end >= rows):
                self._put(end)
                end += 1
            self._commit.result()
            self._txn += 1
            self._commit = self._store.start_commit(self._shard, reading(self._txn), ())
            first = end
        self._commit.result()
        return time.perf_counter() - began

    def destroy(self) -> None:
        """Close it, and remove its files if they are recorded."""
        self._store.destroy()


def member_journals(address: str) -> JournalClient:
    """Return a client like that of a member."""
    return JournalClient(address, policy=TransportPolicy(chunk_bytes=BULK_CHUNK_BYTES))


async def create_log(journals: JournalClient, log: str) -> None:
    """Create a recovery log."""
    await journals.apply([journal_change(log, CONTENT_TYPE_RECOVERY_LOG)])


@asynccontextmanager
async def recording_into(
    journals: JournalClient, log: str, directory: Path
) -> AsyncIterator[tuple[LocalState, Recorder]]:
    """Take a log over, and yield what a store and its recorder need."""
    player = Player(journals, FSMHints(log=log), directory)
    player.hand_over(AUTHOR)
    recovered = await player.run()
    async with AppendService(journals) as appends:
        recorder = Recorder(
            recovered.fsm, appends, log=log, author=recovered.author, head=recovered.head
        )
        yield LocalState(recovered.directory, recorder), recorder


async def fill(
    journals: JournalClient, kind: str, log: str, directory: Path, *, rows: Rows, txns: int
) -> FSMHints:
    """Record so many transactions of a store into a new log; return the hints of its end."""
    await create_log(journals, log)
    async with recording_into(journals, log, directory) as (local_state, recorder):
        driven = await asyncio.to_thread(DrivenStore, kind, local_state, recorded=True, rows=rows)
        await asyncio.to_thread(driven.run, txns)
        hints, covered = recorder.snapshot_hints()
        await asyncio.wrap_future(covered)
        await asyncio.to_thread(driven.destroy)
    return hints


def _sqlite(shard: FixedShard, local_state: LocalState, rows: Rows) -> tuple[Store, Put]:
    schema = "CREATE TABLE IF NOT EXISTS state (key INTEGER PRIMARY KEY, value BLOB)"
    store = SqliteStore(shard, local_state, schema=schema)

    def put(row: int) -> None:
        store.connection.execute(
            "INSERT OR REPLACE INTO state VALUES (?, ?)", (rows.key(row), _value(row, rows))
        )

    return store, put


def _rocksdb(shard: FixedShard, local_state: LocalState, rows: Rows) -> tuple[Store, Put]:
    store = RocksDbStore(shard, local_state)

    def put(row: int) -> None:
        store.put(b"%012d" % rows.key(row), _value(row, rows))

    return store, put


def _value(row: int, rows: Rows) -> bytes:
    # Of no compressible content: what is measured is bytes.
    return row.to_bytes(8, "big") + _NOISE[row % 64 :][: rows.value_bytes - 8]


_NOISE = bytes((number * number * 31 + number * 7) >> 3 & 0xFF for number in range(4096))
_OPEN: dict[str, Callable[[FixedShard, LocalState, Rows], tuple[Any, Put]]] = {
    "sqlite": _sqlite,
    "rocksdb": _rocksdb,
}
STORES = tuple(_OPEN)
