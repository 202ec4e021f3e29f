"""What recording costs: the same transactions of the same store, recorded and not.

Recorded, a commit waits for the log at a durable broker, and the disk here need not keep anything; not recorded, it
waits for the disk here. In both cases the rows of the next transaction are put meanwhile, as a shard does.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from itertools import count
from pathlib import Path

from bench.recovery.driven import STORES, DrivenStore, Rows, create_log, recording_into
from bench.report import alternate, emit
from consumer.embedded.broker import EmbeddedBrokerProcess
from consumer.journal.client import JournalClient
from consumer.local_state import LocalState

ROUNDS = 5
CASES = ((Rows(keys=50_000, per_txn=10, value_bytes=100), 300), (Rows(50_000, 10_000, 100), 12))
"""What a shard commits when it is quiet, and when it catches up; and how many such transactions."""


def run(bench: str) -> None:
    """Measure and print `recording_cost_ratio`: by how much longer recorded transactions take."""
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedBrokerProcess(Path(name) / "broker") as broker,
        asyncio.Runner() as runner,
    ):
        sides = _Sides(broker.address, Path(name))
        for store in STORES:
            for rows, txns in CASES:
                recorded, bare = alternate(
                    partial(sides.recorded, runner, store, rows, txns),
                    partial(sides.bare, store, rows, txns),
                    ROUNDS,
                )
                emit(
                    bench,
                    "recording_cost_ratio",
                    recorded / bare - 1,
                    "ratio",
                    store=store,
                    rows_per_txn=rows.per_txn,
                    recorded_txn_per_s=round(txns / recorded, 1),
                    bare_txn_per_s=round(txns / bare, 1),
                )


class _Sides:
    """Each run begins with a new store, and each recorded one with a new log."""

    def __init__(self, address: str, directory: Path) -> None:
        self._address = address
        self._directory = directory
        self._numbers = count()

    def recorded(self, runner: asyncio.Runner, store: str, rows: Rows, txns: int) -> float:
        """Return the seconds of so many transactions, recorded."""
        return runner.run(self._recorded(store, rows, txns))

    def bare(self, store: str, rows: Rows, txns: int) -> float:
        """Return the seconds of as many that nobody records."""
        driven = DrivenStore(store, LocalState(self._new_directory()), recorded=False, rows=rows)
        driven.run(1)
        seconds = driven.run(txns)
        driven.destroy()
        return seconds

    async def _recorded(self, store: str, rows: Rows, txns: int) -> float:
        log = f"bench/logs/{next(self._numbers)}"
        async with JournalClient(self._address) as journals:
            await create_log(journals, log)
            async with recording_into(journals, log, self._new_directory()) as (state, _):
                driven = await asyncio.to_thread(
                    DrivenStore, store, state, recorded=True, rows=rows
                )
                await asyncio.to_thread(driven.run, 1)
                seconds = await asyncio.to_thread(driven.run, txns)
                await asyncio.to_thread(driven.destroy)
        return seconds

    def _new_directory(self) -> Path:
        directory = self._directory / f"store-{next(self._numbers)}"
        directory.mkdir()
        return directory
