"""Runs of a simulated keyed shard: faults of shards, and clocks that jump; in the end its state is what inputs made."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, get_args

from broadsheet.consumer.keyed.application import KeyedShardStore
from broadsheet.testing.allocator.kernel.command import Family
from broadsheet.testing.allocator.kernel.run import (
    IntRange,
    Range,
    RunContext,
    Sink,
    run_simulation,
)
from broadsheet.testing.keyed.application import KEYS, Mode, key_of, message_of
from broadsheet.testing.keyed.cluster import KeyedCluster
from broadsheet.testing.keyed.keyed_checker import KeyedChecker
from broadsheet.testing.shards.cluster import ConsumerCluster
from broadsheet.testing.shards.history_checker import HistoryChecker
from broadsheet.testing.shards.run import ShardSimulation
from broadsheet.testing.shards.scenario import ShardReport, ShardScenario
from broadsheet.testing.shards.writers import Writers


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedScenario(ShardScenario):
    """A family of runs, from which a seed selects one."""

    recorded: float = 1.0
    standbys: IntRange = (0, 2)
    modes: tuple[Mode, ...] = get_args(Mode)
    """Kinds of time of timers; the seed selects one."""
    skew_seconds: Range = (0.0, 4.0)
    """Bound by which clocks are ahead or behind; the seed selects one."""
    jump_seconds: Range = (0.5, 6.0)
    """Time between two jumps of a clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedReport(ShardReport):
    """The outcome of one run."""

    timers: int
    """Number of timers that fired."""
    late: int
    """Number of inputs that were late."""
    warm: int
    """Number of promotions that went on from a standby's index."""

    def summary(self) -> str:
        """Return what a good run did, in one line."""
        return (
            f"{self.timers} timers, {self.late} late, {self.warm} warm, {ShardReport.summary(self)}"
        )


def simulate(
    seed: int, scenario: KeyedScenario | None = None, *, sink: Sink | None = None
) -> KeyedReport:
    """Simulate one keyed shard through the course of events of a seed.

    Do not call it in a running event loop, because it runs another one.

    Args:
        seed: Selects the shard and the course of events; the same seed gives the same run.
        scenario: The family of runs; the default one if not given.
        sink: Called with every line of the trace and of members' logs.
    """
    with tempfile.TemporaryDirectory(prefix="simulated-") as directory:
        of_run = partial(KeyedSimulation, scenario or KeyedScenario(), Path(directory))
        return run_simulation(seed, of_run, sink=sink)


def keyed_shards(scenario: KeyedScenario | None = None) -> Family[KeyedScenario]:
    """Return the runs of this simulator."""
    return Family(simulate, "broadsheet.testing.keyed", scenario or KeyedScenario())


class KeyedSimulation(ShardSimulation):
    """A keyed shard, its faults, its clocks, and the checkers of its history."""

    def __init__(self, scenario: KeyedScenario, directory: Path, context: RunContext) -> None:
        self._bounds = scenario
        self._hand = Random(f"{context.seed} clocks")
        self._mode: Mode = self._hand.choice(scenario.modes)
        self._jumping: asyncio.Task[None] | None = None
        super().__init__(scenario, directory, context)

    def new_witness(self) -> HistoryChecker:
        """Make the checker of the history."""
        self._checker = KeyedChecker(
            tell=self._context.trace.add, findings=self._context.findings, mode=self._mode
        )
        return self._checker

    def new_cluster(self, witness: HistoryChecker, directory: Path) -> ConsumerCluster:
        """Make the cluster, with its journals and its shard."""
        del witness
        self._keyed = KeyedCluster(
            self._context,
            self._scenario,
            checker=self._checker,
            mode=self._mode,
            skew_seconds=self._hand.uniform(*self._bounds.skew_seconds),
            directory=directory,
        )
        return self._keyed

    def new_inputs(self, chance: Random) -> Writers:
        """Make the producers of rows."""
        cluster = self._keyed
        return Writers(cluster.broker, chance, cluster.clock, message_of=message_of)

    def begin(self) -> None:
        """Start to assign the shard, to write its inputs, and to set clocks."""
        super().begin()
        self._jumping = self._context.group.start_soon(self._jump(), name="jump")

    async def calm(self) -> None:
        """End the jumps, and the writing of inputs."""
        assert self._jumping is not None, "the run has begun"
        self._jumping.cancel()
        await asyncio.wait([self._jumping])
        await super().calm()

    async def settle(self) -> None:
        """Wait until all inputs are reflected; then compare what the last primary has stored."""
        await super().settle()
        primary = self._cluster.primary()
        assert primary is not None, "the last primary lives on"
        store: Any = primary.shards[-1].store
        if not isinstance(store, KeyedShardStore):
            self._checker.violate("K1", "the last primary has no store")
            return
        for key in map(key_of, range(KEYS)):
            stored = {name: store.state(name, key) for name in ("count", "numbers")}
            for problem in self._checker.differences(key, stored):
                self._checker.violate("K1", f"in the end {problem}")

    def report(self) -> KeyedReport:
        """Return what the run did."""
        checker = self._checker
        late = sum(what != "row" for what in checker.handled.values())
        return KeyedReport(
            inputs=len(checker.handled),
            commits=checker.commits,
            restores=checker.restores,
            timers=checker.fired,
            late=late,
            warm=checker.warm,
        )

    async def _jump(self) -> None:
        while True:
            await asyncio.sleep(self._hand.uniform(*self._bounds.jump_seconds))
            self._context.trace.add(f"jump: {self._keyed.jump()}")
