"""Runs of simulated divisions: journals are divided, beside splits and merges of their readers, under faults."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from broadsheet.consumer.elastic.journal_split import journal_splits_prefix
from broadsheet.testing.allocator.kernel.command import Family
from broadsheet.testing.allocator.kernel.run import Range, RunContext, Sink, run_simulation
from broadsheet.testing.divisions.cluster import DivisionCluster
from broadsheet.testing.divisions.division_checker import DivisionChecker
from broadsheet.testing.divisions.writers import OutsideWriters
from broadsheet.testing.families.run import (
    FamilyFaults,
    FamilyReport,
    FamilyScenario,
    FamilySimulation,
)
from broadsheet.testing.shards.cluster import ConsumerCluster
from broadsheet.testing.shards.faults import ShardFaults
from broadsheet.testing.shards.history_checker import HistoryChecker
from broadsheet.testing.shards.member import SimulatedConsumer
from broadsheet.wire.journal_pb2 import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionScenario(FamilyScenario):
    """A family of runs, from which a seed selects one."""

    split_seconds: Range = (1.0, 8.0)
    divide_seconds: Range = (0.3, 4.0)
    """Time between two looks of the operator at the journals."""
    journals_max: int = 7
    """Journals of keys, the divided ones among them: parts are divided, too."""
    outside_seconds: Range = (0.05, 1.0)
    """Time between two steps of programs beside the shards."""
    elected: float = 0.3
    """Share of these looks at which another member begins to lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionReport(FamilyReport):
    """The outcome of one run."""

    divisions: int
    """Number of journals that were sealed."""

    def summary(self) -> str:
        """Return what a good run did, in one line."""
        return f"{self.divisions} divisions, {FamilyReport.summary(self)}"


def simulate(
    seed: int, scenario: DivisionScenario | None = None, *, sink: Sink | None = None
) -> DivisionReport:
    """Simulate one family and its journals through the course of events of a seed.

    Do not call it in a running event loop, because it runs another one.

    Args:
        seed: Selects the family and the course of events; the same seed gives the same run.
        scenario: The family of runs; the default one if not given.
        sink: Called with every line of the trace and of members' logs.
    """
    with tempfile.TemporaryDirectory(prefix="simulated-") as directory:
        of_run = partial(DivisionSimulation, scenario or DivisionScenario(), Path(directory))
        return run_simulation(seed, of_run, sink=sink)


def divisions(scenario: DivisionScenario | None = None) -> Family[DivisionScenario]:
    """Return the runs of this simulator."""
    return Family(simulate, "broadsheet.testing.divisions", scenario or DivisionScenario())


class DivisionSimulation(FamilySimulation):
    """A family, its faults, the operator who divides its journals, and the checkers of its history."""

    def __init__(self, scenario: DivisionScenario, directory: Path, context: RunContext) -> None:
        self._division_bounds = scenario
        self._divider = Random(f"{context.seed} divider")
        self._acting: tuple[asyncio.Task[None], ...] = ()
        super().__init__(scenario, directory, context)
        chance = Random(f"{context.seed} outside")
        self._outside = OutsideWriters(self._divided.broker, chance, self._divided.clock)
        self._pauses = Random(f"{context.seed} outside pauses")

    def new_witness(self) -> HistoryChecker:
        """Make the checker of the history."""
        self._family_checker = DivisionChecker(
            tell=self._context.trace.add, findings=self._context.findings
        )
        return self._family_checker

    def new_cluster(self, witness: HistoryChecker, directory: Path) -> ConsumerCluster:
        """Make the cluster, with its journals and its first shard."""
        assert isinstance(witness, DivisionChecker), "made above"
        self._family = self._divided = DivisionCluster(
            self._context, self._scenario, checker=witness, directory=directory
        )
        return self._divided

    def new_faults(self) -> ShardFaults:
        """Make the source of faults."""
        return DivisionFaults(self._divided, self._division_bounds)

    def begin(self) -> None:
        """Start what a family does, and to divide its journals."""
        super().begin()
        group = self._context.group
        self._acting = (
            group.start_soon(self._divide(), name="divide"),
            group.start_soon(self._write_outside(), name="write outside"),
        )

    async def calm(self) -> None:
        """End the operator's part, and the writing of inputs."""
        for each in self._acting:
            each.cancel()
        await asyncio.wait(self._acting)
        await super().calm()

    async def settle(self) -> None:
        """Let programs end what they have begun, and wait until all is read."""
        self._outside.finish()
        await super().settle()

    def report(self) -> DivisionReport:
        """Return what the run did."""
        family = super().report()
        return DivisionReport(
            inputs=family.inputs,
            commits=family.commits,
            restores=family.restores,
            forks=family.forks,
            merges=family.merges,
            divisions=len(self._divided.seals()),
        )

    async def _write_outside(self) -> None:
        while True:
            await asyncio.sleep(self._pauses.uniform(*self._division_bounds.outside_seconds))
            if self._divided.broker.refuses == Status.OK:
                self._outside.step()

    async def _divide(self) -> None:
        chance, bounds = self._divider, self._division_bounds
        while True:
            await asyncio.sleep(chance.uniform(*bounds.divide_seconds))
            if chance.random() < bounds.elected and (who := self._divided.elect()):
                self._context.trace.add(f"lead: {who}")
            elif len(self._divided.middles()) + 2 <= bounds.journals_max and (
                what := self._divided.divide()
            ):
                self._context.trace.add(f"divide: {what}")


class DivisionFaults(FamilyFaults):
    """The faults of families, and strikes at the steps of divisions."""

    def __init__(self, cluster: DivisionCluster, scenario: DivisionScenario) -> None:
        super().__init__(cluster, scenario)
        self._divided = cluster
        self._prefix = journal_splits_prefix(cluster.keys.root)

    def on_keys(self, keys: list[bytes]) -> None:
        """Strike perhaps, because a division, a split or a merge has taken a step in etcd."""
        super().on_keys(keys)
        if any(key.startswith(self._prefix) for key in keys):
            self.strike_perhaps(self._sides)

    def _sides(self) -> Sequence[SimulatedConsumer | None]:
        """Return who is struck: who divides, a primary, or all primaries."""
        primaries = [self._family.primary(each) for each in self._family.shards()]
        sides = (self._divided.leaders(), [self._strikes.choice(primaries)], primaries)
        return self._strikes.choice(sides)
