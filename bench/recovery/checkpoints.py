"""The cost of a transaction's checkpoint, by the number of producers that have been silent.

Each transaction consumes one message of a producer that is heard, changes one row, and commits through the shard's
sequencer into the store, as a shard does. Bytes are those that the store wrote: into its recovery log where it has one,
else into its files (the SQLite write-ahead log of `sql`).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa

from bench.recovery.driven import create_log, member_journals, recording_into
from bench.report import emit
from broadsheet.consumer.application import SegmentKeeper
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.checkpoint import build_checkpoint
from broadsheet.journals.message.producers import FilingLimits
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import PRODUCER_BYTES, Flags
from broadsheet.testing.stores.subject import FixedShard
from broadsheet.wire.shard_pb2 import Checkpoint

PRODUCERS = (1, 1_000, 60_000)
TXNS = 200
WARM_UP_TXNS = 5
MINUTE_SECONDS = 60.0
"""Of reading passes before each transaction, so that the silent producers have been so for minutes."""
JOURNAL = "bench/input"
HEARD = 2**48 - 1
"""The producer that writes on."""


def run(bench: str) -> None:
    """Measure and print `checkpoint_bytes_per_txn` and `checkpoint_txn_ms` of each store."""
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedBrokerProcess(Path(name) / "broker") as broker,
        asyncio.Runner() as runner,
    ):
        numbers = count()
        for store in ("json", "sqlite", "rocksdb"):
            for producers in PRODUCERS:
                log = f"bench/logs/{next(numbers)}"
                measured = runner.run(_recorded(broker.address, Path(name), log, store, producers))
                _emit(bench, store, producers, *measured)
        for producers in PRODUCERS:
            _emit(bench, "sql", producers, *_sql(Path(name) / f"{next(numbers)}.db", producers))


def _emit(bench: str, store: str, producers: int, written: float, seconds: float) -> None:
    params: dict[str, str | int | float] = {"store": store, "producers": producers, "txns": TXNS}
    emit(bench, "checkpoint_bytes_per_txn", round(written), "bytes", **params)
    emit(bench, "checkpoint_txn_ms", seconds * 1000, "ms", **params)


async def _recorded(
    address: str, directory: Path, log: str, store: str, producers: int
) -> tuple[float, float]:
    """Return bytes of the recovery log and seconds of a transaction."""
    async with member_journals(address) as journals:
        await create_log(journals, log)
        own = directory / log.replace("/", "-")
        async with recording_into(journals, log, own) as (state, recorder):
            driven = _Driven(*_OPEN[store](FixedShard(local_state=state), state), producers)
            await asyncio.to_thread(driven.run, WARM_UP_TXNS)
            begin = recorder.recorded_bytes
            seconds = await asyncio.to_thread(driven.run, TXNS)
            written = recorder.recorded_bytes - begin
            await asyncio.to_thread(driven.destroy)
    return written / TXNS, seconds


def _sql(path: Path, producers: int) -> tuple[float, float]:
    """Return bytes of the database's write-ahead log and seconds of a transaction."""
    engine = sa.create_engine(f"sqlite:///{path}")

    @sa.event.listens_for(engine, "connect")
    def _keep_log(connection: Any, _: object) -> None:
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # All that is written stays in it.

    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE state (key INTEGER PRIMARY KEY, value INTEGER)")
    shard = FixedShard()
    store = SqlStore(shard, engine)
    driven = _Driven(shard, store, lambda n: _put_sql(store, n), producers)
    wal = path.with_name(f"{path.name}-wal")
    driven.run(WARM_UP_TXNS)
    begin = wal.stat().st_size
    seconds = driven.run(TXNS)
    written = wal.stat().st_size - begin
    driven.destroy()
    engine.dispose()
    return written / TXNS, seconds


class _Driven:
    """A store that a sequencer's checkpoints are committed to."""

    def __init__(
        self, shard: FixedShard, store: Any, put: Callable[[int], None], producers: int
    ) -> None:
        self._shard, self._store, self._put = shard, store, put
        checkpoint = store.restore_checkpoint(shard)
        keeps = isinstance(store, SegmentKeeper) and store.keeps_segments
        assert checkpoint == Checkpoint(), "a new store"
        self._sequencer = Sequencer(
            {JOURNAL: _silent(producers)}, filing=FilingLimits() if keeps else None
        )
        self._txn = 0

    def run(self, txns: int) -> float:
        """Make transactions; return the seconds that one took, the median."""
        taken: list[float] = []
        for _ in range(txns):
            self._txn += 1
            began = time.perf_counter()
            self._sequencer.queue(_message(self._txn), now_seconds=self._txn * MINUTE_SECONDS)
            self._sequencer.consume(1)
            self._put(self._txn)
            checkpoint = build_checkpoint(self._sequencer.take_checkpoint(), {})
            self._store.start_commit(self._shard, checkpoint, ()).result()
            taken.append(time.perf_counter() - began)
        return median(taken)

    def destroy(self) -> None:
        self._store.destroy()


def _silent(producers: int) -> Checkpoint.Source:
    source = Checkpoint.Source(read_through=1)
    for number in range(producers):
        source.producers.add(
            id=number.to_bytes(PRODUCER_BYTES, "big"),
            state=Checkpoint.ProducerState(last_ack=5, begin=-1),
        )
    return source


def _message(number: int) -> MessageBatch:
    """Return one message."""
    return MessageBatch(
        JOURNAL,
        [number * 100],
        [number * 100 + 100],
        [HEARD],
        [1000 + number],
        [Flags.OUTSIDE_TXN],
        [b"{}"],
        JsonType(),
    )


def _json(shard: FixedShard, state: LocalState) -> tuple[FixedShard, Any, Callable[[int], None]]:
    store = JsonFileStore[dict[str, int]](shard, initial={})
    return shard, store, lambda number: store.state.update(n=number)


def _sqlite(shard: FixedShard, state: LocalState) -> tuple[FixedShard, Any, Callable[[int], None]]:
    schema = "CREATE TABLE IF NOT EXISTS state (key INTEGER PRIMARY KEY, value INTEGER)"
    store = SqliteStore(shard, state, schema=schema)

    def put(number: int) -> None:
        store.connection.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (number,))

    return shard, store, put


def _rocksdb(shard: FixedShard, state: LocalState) -> tuple[FixedShard, Any, Callable[[int], None]]:
    store = RocksDbStore(shard, state)
    return shard, store, lambda number: store.put(b"n", number.to_bytes(8, "big"))


def _put_sql(store: SqlStore, number: int) -> None:
    store.connection.exec_driver_sql("INSERT OR REPLACE INTO state VALUES (1, ?)", (number,))


_OPEN: dict[
    str, Callable[[FixedShard, LocalState], tuple[FixedShard, Any, Callable[[int], None]]]
] = {"json": _json, "sqlite": _sqlite, "rocksdb": _rocksdb}
