"""The cost of recording: the same transactions of the same store, recorded and not.

Recorded, a commit waits for the log at a durable broker, and the disk here need not keep anything; not recorded, it
waits for the disk here. In both cases the rows of the next transaction are put meanwhile, as a shard does.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

from bench.recovery.driven import (
    STORES,
    DrivenStore,
    Rows,
    create_log,
    member_journals,
    recording_into,
)
from bench.report import emit
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.embedded.broker import EmbeddedBrokerProcess

ROUNDS = 7
"""One of each side, in turn; which of them is first changes with each."""
KEYS = 50_000
VALUE_BYTES = 100


@dataclass(frozen=True, slots=True)
class Load:
    """The load: `txns` of exactly `per_txn` rows, or as many rows in transactions as a busy shard makes them."""

    name: str
    per_txn: int
    txns: int

    @property
    def rows(self) -> Rows:
        """Of each transaction, at least."""
        return Rows(KEYS, self.per_txn, VALUE_BYTES)

    def run(self, driven: DrivenStore) -> float:
        """Return the seconds that it takes."""
        if self.name == "full":
            return driven.run_full(self.txns * self.per_txn)
        return driven.run(self.txns)


LOADS = (Load("full", 1_000, 300), Load("fixed", 10, 300), Load("fixed", 10_000, 12))
"""A shard with input at hand, one that commits rarely more than a few rows, and one that catches up."""


def run(bench: str) -> None:
    """Measure and print `recording_cost_ratio`: by how much longer recorded transactions take."""
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedBrokerProcess(Path(name) / "broker") as broker,
        asyncio.Runner() as runner,
    ):
        sides = _Sides(broker.address, Path(name))
        for store in STORES:
            for load in LOADS:
                pairs = _pairs(
                    partial(sides.recorded, runner, store, load),
                    partial(sides.bare, store, load),
                )
                costs = sorted(recorded / bare - 1 for recorded, bare in pairs)
                rows = load.txns * load.per_txn
                emit(
                    bench,
                    "recording_cost_ratio",
                    median(costs),
                    "ratio",
                    store=store,
                    transactions=load.name,
                    rows_per_txn=load.per_txn,
                    recorded_rows_per_s=round(rows / median(recorded for recorded, _ in pairs)),
                    bare_rows_per_s=round(rows / median(bare for _, bare in pairs)),
                    least=round(costs[0], 4),
                    most=round(costs[-1], 4),
                )


def _pairs(
    recorded: Callable[[], float], bare: Callable[[], float]
) -> Sequence[tuple[float, float]]:
    """Measure both sides next to each other, in rounds.

    A ratio is of two neighbours: a machine that drifts does so under both. Before each run the disk has caught up, or
    one would pay for what the other wrote.
    """
    pairs: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        seconds: dict[Callable[[], float], float] = {}
        for side in (recorded, bare) if number % 2 else (bare, recorded):
            os.sync()
            seconds[side] = side()
        pairs.append((seconds[recorded], seconds[bare]))
    return pairs


class _Sides:
    """Each run begins with a new store, and each recorded one with a new log."""

    def __init__(self, address: str, directory: Path) -> None:
        self._address = address
        self._directory = directory
        self._numbers = count()

    def recorded(self, runner: asyncio.Runner, store: str, load: Load) -> float:
        """Return the seconds of a load, recorded."""
        return runner.run(self._recorded(store, load))

    def bare(self, store: str, load: Load) -> float:
        """Return the seconds of a load that nobody records."""
        local_state = LocalState(self._new_directory())
        driven = DrivenStore(store, local_state, recorded=False, rows=load.rows)
        driven.run(1)
        seconds = load.run(driven)
        driven.destroy()
        return seconds

    async def _recorded(self, store: str, load: Load) -> float:
        log = f"bench/logs/{next(self._numbers)}"
        async with member_journals(self._address) as journals:
            await create_log(journals, log)
            async with recording_into(journals, log, self._new_directory()) as (state, _):
                driven = await asyncio.to_thread(
                    DrivenStore, store, state, recorded=True, rows=load.rows
                )
                await asyncio.to_thread(driven.run, 1)
                seconds = await asyncio.to_thread(load.run, driven)
                await asyncio.to_thread(driven.destroy)
        return seconds

    def _new_directory(self) -> Path:
        directory = self._directory / f"store-{next(self._numbers)}"
        directory.mkdir()
        return directory
