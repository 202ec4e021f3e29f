"""Runs of a simulated family: shards are split under faults, above all at the steps of a split."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from broadsheet.allocator.etcd.api import KeyPut
from broadsheet.allocator.model import ItemId
from broadsheet.consumer.elastic.fork import hold_key
from broadsheet.testing.allocator.kernel.command import Family
from broadsheet.testing.allocator.kernel.run import (
    IntRange,
    Range,
    RunContext,
    Sink,
    run_simulation,
)
from broadsheet.testing.allocator.kernel.store import StoreCommit
from broadsheet.testing.families.cluster import FamilyCluster
from broadsheet.testing.families.family_checker import FamilyChecker
from broadsheet.testing.shards.cluster import ConsumerCluster
from broadsheet.testing.shards.faults import ShardFaults
from broadsheet.testing.shards.history_checker import HistoryChecker
from broadsheet.testing.shards.member import SimulatedConsumer
from broadsheet.testing.shards.run import ShardSimulation
from broadsheet.testing.shards.scenario import FAULTS, ShardFault, ShardReport, ShardScenario
from broadsheet.wire.labels import FORK_OF, value_of

STEP_TASKS_MAX: Final = 60
"""Steps of a process's tasks, behind a step of a split, within which it stops."""
_FAULTS: Final[Mapping[ShardFault, float]] = {
    # Without its registers a log may not tell which branch is its history, and a child would refuse it.
    fault: weight
    for fault, weight in FAULTS.items()
    if fault is not ShardFault.REGISTERS_LOST
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyScenario(ShardScenario):
    """A family of runs, from which a seed selects one."""

    recorded: float = 1.0
    faults: Mapping[ShardFault, float] = field(default_factory=lambda: _FAULTS)
    steps: IntRange = (4, 10)
    shards_max: int = 3
    split_seconds: Range = (0.2, 4.0)
    """Time between two looks of the operator."""
    cancelled: float = 0.08
    """Share of looks at a pending split at which it is cancelled."""
    struck: float = 0.35
    """Share of steps of splits at which a process stops, for good or for a while, or loses messages."""
    settle_seconds_max: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyReport(ShardReport):
    """The outcome of one run."""

    forks: int
    """Number of splits that were committed."""

    def summary(self) -> str:
        """Return what a good run did, in one line."""
        return f"{self.forks} splits, {ShardReport.summary(self)}"


def simulate(
    seed: int, scenario: FamilyScenario | None = None, *, sink: Sink | None = None
) -> FamilyReport:
    """Simulate one family through the course of events of a seed.

    Do not call it in a running event loop, because it runs another one.

    Args:
        seed: Selects the family and the course of events; the same seed gives the same run.
        scenario: The family of runs; the default one if not given.
        sink: Called with every line of the trace and of members' logs.
    """
    with tempfile.TemporaryDirectory(prefix="simulated-") as directory:
        of_run = partial(FamilySimulation, scenario or FamilyScenario(), Path(directory))
        return run_simulation(seed, of_run, sink=sink)


def families(scenario: FamilyScenario | None = None) -> Family[FamilyScenario]:
    """Return the runs of this simulator."""
    return Family(simulate, "broadsheet.testing.families", scenario or FamilyScenario())


class FamilySimulation(ShardSimulation):
    """A family, its faults, the operator who splits it, and the checkers of its history."""

    def __init__(self, scenario: FamilyScenario, directory: Path, context: RunContext) -> None:
        self._operator = Random(f"{context.seed} operator")
        self._bounds = scenario
        self._splitting: asyncio.Task[None] | None = None
        super().__init__(scenario, directory, context)

    def new_witness(self) -> HistoryChecker:
        """Make the checker of the history."""
        self._family_checker = FamilyChecker(
            tell=self._context.trace.add, findings=self._context.findings
        )
        return self._family_checker

    def new_cluster(self, witness: HistoryChecker, directory: Path) -> ConsumerCluster:
        """Make the cluster, with its journals and its first shard."""
        del witness
        self._family = FamilyCluster(
            self._context, self._scenario, checker=self._family_checker, directory=directory
        )
        return self._family

    def new_faults(self) -> ShardFaults:
        """Make the source of faults."""
        return FamilyFaults(self._family, self._bounds)

    def begin(self) -> None:
        """Start to assign shards, to write their inputs, and to split them."""
        super().begin()
        self._splitting = self._context.group.start_soon(self._split(), name="split")

    async def calm(self) -> None:
        """End the operator's part, and the writing of inputs."""
        assert self._splitting is not None, "the run has begun"
        self._splitting.cancel()
        await asyncio.wait([self._splitting])
        self._family.peers.heal(self._family.latency_seconds)
        await super().calm()

    def report(self) -> FamilyReport:
        """Return what the run did."""
        checker = self._family_checker
        return FamilyReport(
            inputs=len(checker.durable),
            commits=checker.commits,
            restores=checker.restores,
            forks=checker.forks,
        )

    async def _split(self) -> None:
        chance, bounds = self._operator, self._bounds
        while True:
            await asyncio.sleep(chance.uniform(*bounds.split_seconds))
            if chance.random() < bounds.cancelled and (what := self._family.cancel()):
                self._context.trace.add(f"cancel: {what}")
            elif len(self._family.specs()) < bounds.shards_max and (what := self._family.split()):
                self._context.trace.add(f"split: {what}")

    def _on_commit(self, commit: StoreCommit) -> None:
        super()._on_commit(commit)
        prefix = self._family.keys.items_prefix
        keys = [each.kv.key if isinstance(each, KeyPut) else each.key for each in commit.events]
        if any(key.startswith(prefix) for key in keys):
            self._family_checker.on_specs()
        assert isinstance(self.faults, FamilyFaults), "of this simulation"
        self.faults.on_keys(keys)


class FamilyFaults(ShardFaults):
    """The faults of shards, and strikes at the steps of splits."""

    def __init__(self, cluster: FamilyCluster, scenario: FamilyScenario) -> None:
        super().__init__(cluster)
        self._family = cluster
        self._scenario = scenario
        self._strikes = Random(f"{cluster.seed} strikes")
        self._calm = False

    def end(self) -> None:
        """End all passing faults; from now on only members act."""
        self._calm = True
        super().end()

    def on_keys(self, keys: list[bytes]) -> None:
        """Strike perhaps, because a split has taken a step in etcd: its begin, its hold, its flip, its end."""
        holds = hold_key(self._family.keys.root, "")
        parents = [key[len(holds) :].decode() for key in keys if key.startswith(holds)]
        if self._calm or not parents or self._strikes.random() >= self._scenario.struck:
            return
        stored = self._family.specs()
        forks = tuple(
            shard_id
            for shard_id, (spec, _) in stored.items()
            if value_of(spec.labels, FORK_OF) == parents[0]
        )
        sides = self._strikes.choice(((parents[0],), forks, tuple(stored)))
        struck = [self._family.primary(ItemId(side)) for side in sides]
        for member in struck:
            if member is not None and not member.killed:
                self._family.trace.add(f"strike: {member.member_id} {self._strike(member)}")

    def _strike(self, member: SimulatedConsumer) -> str:
        draw = self._strikes
        steps = draw.randint(0, STEP_TASKS_MAX)
        kind = draw.choice(("kill", "pause", "etcd", "journals"))
        if kind == "kill":
            member.kill(after_steps=steps)
            self.later(1.0, member.process.stop)
        elif kind == "pause":
            member.process.stop_after(steps)
            self.later(draw.uniform(0.5, 6.0), member.resume)
        else:
            link = member.to_etcd if kind == "etcd" else member.to_journals
            link.loss, link.late = draw.uniform(0.0, 0.5), draw.uniform(0.0, 0.4)
            self.later(draw.uniform(0.5, 6.0), lambda: link.heal(self._family.latency_seconds))
        return f"{kind} after {steps} steps"
