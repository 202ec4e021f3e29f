"""Runs of a simulated family: shards are split and merged under faults, above all at the steps of that."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from broadsheet.allocator.etcd.api import KeyPut
from broadsheet.allocator.model import ItemId
from broadsheet.consumer.elastic.family import absorbed_by
from broadsheet.consumer.elastic.fork import hold_key
from broadsheet.consumer.elastic.merge import merges_prefix
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


class Strike(Enum):
    """Fault of a process at a step of a split or a merge."""

    KILL = "kill"
    PAUSE = "pause"
    """It goes on later, with everything that it had begun."""
    ETCD = "etcd"
    """Its messages to and from etcd are lost or late, for a while."""
    JOURNALS = "journals"
    """Those to and from the broker are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyScenario(ShardScenario):
    """A family of runs, from which a seed selects one."""

    recorded: float = 1.0
    faults: Mapping[ShardFault, float] = field(default_factory=lambda: _FAULTS)
    steps: IntRange = (6, 14)
    shards_max: int = 3
    split_seconds: Range = (0.2, 3.0)
    """Time between two looks of the operator."""
    merged: float = 0.6
    """Share of looks at which two shards are merged rather than one split, if there are two."""
    cancelled: float = 0.08
    """Share of looks at a pending split or merge at which it is cancelled."""
    struck: float = 0.35
    """Share of steps of splits and merges at which a process stops, for good or for a while, or loses messages."""
    strikes: Sequence[Strike] = tuple(Strike)
    """Of which one is drawn."""
    settle_seconds_max: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyReport(ShardReport):
    """The outcome of one run."""

    forks: int
    """Number of splits that were committed."""
    merges: int
    """Number of merges that were committed."""

    def summary(self) -> str:
        """Return what a good run did, in one line."""
        return f"{self.forks} splits, {self.merges} merges, {ShardReport.summary(self)}"


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
    """A family, its faults, the operator who splits and merges its shards, and the checkers of its history."""

    def __init__(self, scenario: FamilyScenario, directory: Path, context: RunContext) -> None:
        self._operator = Random(f"{context.seed} operator")
        self._bounds = scenario
        self._operating: asyncio.Task[None] | None = None
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
        """Start to assign shards, to write their inputs, and to split and merge them."""
        super().begin()
        self._operating = self._context.group.start_soon(self._operate(), name="operate")

    async def calm(self) -> None:
        """End the operator's part, and the writing of inputs."""
        assert self._operating is not None, "the run has begun"
        self._operating.cancel()
        await asyncio.wait([self._operating])
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
            merges=checker.merges,
        )

    async def _operate(self) -> None:
        chance, bounds = self._operator, self._bounds
        while True:
            await asyncio.sleep(chance.uniform(*bounds.split_seconds))
            if chance.random() < bounds.cancelled and (what := self._family.cancel()):
                self._context.trace.add(f"cancel: {what}")
            elif chance.random() < bounds.merged and (what := self._family.merge()):
                self._context.trace.add(f"merge: {what}")
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
    """The faults of shards, and strikes at the steps of splits and merges."""

    def __init__(self, cluster: FamilyCluster, scenario: FamilyScenario) -> None:
        super().__init__(cluster)
        self._family = cluster
        self._scenario = scenario
        self._strikes = Random(f"{cluster.seed} strikes")
        self._calm = False

    def target(self) -> ItemId:
        """Return any shard."""
        return self.random.choice(self._family.shards())

    def end(self) -> None:
        """End all passing faults; from now on only members act."""
        self._calm = True
        super().end()

    def on_keys(self, keys: list[bytes]) -> None:
        """Strike perhaps, because a split or a merge has taken a step in etcd: its begin, hold, flip or end."""
        if pairs := self._pairs_of(keys):
            self.strike_perhaps(lambda: self._sides_of(*pairs[0]))

    def strike_perhaps(self, sides: Callable[[], Sequence[SimulatedConsumer | None]]) -> None:
        """Strike the members that `sides` draws, for some of the calls, and for none once the run has calmed down."""
        if self._calm or self._strikes.random() >= self._scenario.struck:
            return
        for member in sides():
            if member is not None and not member.killed:
                self._family.trace.add(f"strike: {member.member_id} {self._strike(member)}")

    def _sides_of(self, resting: str, taking: Sequence[str]) -> list[SimulatedConsumer | None]:
        sides = self._strikes.choice(((resting,), taking, tuple(self._family.specs())))
        return [self._family.primary(ItemId(side)) for side in sides]

    def _pairs_of(self, keys: list[bytes]) -> list[tuple[str, tuple[str, ...]]]:
        """Return the shards that rest, or will, and those that take over their keys."""
        root = self._family.keys.root
        holds, merges = hold_key(root, ""), merges_prefix(root)
        stored = {shard_id: spec for shard_id, (spec, _) in self._family.specs().items()}
        pairs = []
        for key in keys:
            if key.startswith(holds):
                resting = key[len(holds) :].decode()
                taking = tuple(
                    shard_id
                    for shard_id, spec in stored.items()
                    if resting in (value_of(spec.labels, FORK_OF), absorbed_by(spec))
                )
                pairs.append((resting, taking))
            elif key.startswith(merges):
                survivor = key[len(merges) :].decode()
                absorbed = absorbed_by(stored[survivor]) if survivor in stored else ""
                pairs.append((absorbed or survivor, (survivor,)))
        return pairs

    def _strike(self, member: SimulatedConsumer) -> str:
        draw = self._strikes
        steps = draw.randint(0, STEP_TASKS_MAX)
        kind = draw.choice(self._scenario.strikes)
        if kind is Strike.KILL:
            member.kill(after_steps=steps)
            self.later(1.0, member.process.stop)
        elif kind is Strike.PAUSE:
            member.process.stop_after(steps)
            self.later(draw.uniform(0.5, 6.0), member.resume)
        else:
            link = member.to_etcd if kind is Strike.ETCD else member.to_journals
            link.loss, link.late = draw.uniform(0.0, 0.5), draw.uniform(0.0, 0.4)
            self.later(draw.uniform(0.5, 6.0), lambda: link.heal(self._family.latency_seconds))
        return f"{kind.value} after {steps} steps"
