"""Runs of a simulated shard: other producers write while faults happen; in the end all their inputs are reflected."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random

from broadsheet.testing.allocator.kernel.command import Family
from broadsheet.testing.allocator.kernel.run import RunContext, Sink, run_simulation
from broadsheet.testing.allocator.kernel.store import StoreCommit, describe
from broadsheet.testing.allocator.kernel.virtual_loop import running_loop
from broadsheet.testing.shards.cluster import CONFIG, ConsumerCluster
from broadsheet.testing.shards.faults import ShardFaults
from broadsheet.testing.shards.history_checker import HistoryChecker, StatusChecker
from broadsheet.testing.shards.member import SimulatedConsumer
from broadsheet.testing.shards.scenario import ShardReport, ShardScenario
from broadsheet.testing.shards.writers import Writers, writers_of_outputs
from broadsheet.wire.journal_pb2 import Status

POLL_SECONDS = 1.0
FOREIGN_SHARE = 0.2
"""Share of other producers' messages that go into the shard's outputs."""


def simulate(
    seed: int, scenario: ShardScenario | None = None, *, sink: Sink | None = None
) -> ShardReport:
    """Simulate one shard through the course of events of a seed.

    Do not call it in a running event loop, because it runs another one. Meanwhile the process-wide random generator is
    seeded and logs go to `sink`; both are restored.

    Args:
        seed: Selects the shard and the course of events; the same seed gives the same run.
        scenario: The family of runs; the default one if not given.
        sink: Called with every line of the trace and of members' logs.
    """
    with tempfile.TemporaryDirectory(prefix="simulated-") as directory:
        of_run = partial(ShardSimulation, scenario or ShardScenario(), Path(directory))
        return run_simulation(seed, of_run, sink=sink)


def shards(
    scenario: ShardScenario | None = None, *, arguments: tuple[str, ...] = ()
) -> Family[ShardScenario]:
    """Return the runs of this simulator.

    Args:
        scenario: The family of runs; with more than one job it must be picklable.
        arguments: Command-line arguments that select the same scenario.
    """
    module = "broadsheet.testing.shards"
    return Family(simulate, module, scenario or ShardScenario(), arguments)


class ShardSimulation:
    """A shard, its faults, the producers of its inputs, and the checkers of its history."""

    unhandled = "S0"

    def __init__(self, scenario: ShardScenario, directory: Path, context: RunContext) -> None:
        self._scenario = scenario
        self._context = context
        self._witness = self.new_witness()
        self._cluster = self.new_cluster(self._witness, directory)
        self._statuses = StatusChecker(self._cluster.keys, context.findings)
        self._cluster.etcd.observers.append(self._on_commit)
        self._chance = Random(f"{context.seed} writers")
        self._inputs = self.new_inputs(self._chance)
        broker, clock = self._cluster.broker, self._cluster.clock
        self._outputs = writers_of_outputs(broker, self._chance, clock)
        self._writing: asyncio.Task[None] | None = None
        self.faults: ShardFaults = self.new_faults()

    def new_witness(self) -> HistoryChecker:
        """Make the checker of the history."""
        return HistoryChecker(tell=self._context.trace.add, findings=self._context.findings)

    def new_cluster(self, witness: HistoryChecker, directory: Path) -> ConsumerCluster:
        """Make the cluster, with its journals and its shard."""
        return ConsumerCluster(self._context, self._scenario, witness=witness, directory=directory)

    def new_inputs(self, chance: Random) -> Writers:
        """Make the producers of the inputs."""
        return Writers(self._cluster.broker, chance, self._cluster.clock)

    def new_faults(self) -> ShardFaults:
        """Make the source of faults."""
        return ShardFaults(self._cluster)

    def begin(self) -> None:
        """Start to assign the shard, and to write its inputs."""
        group = self._context.group
        group.start_soon(self._cluster.allocate(), name="allocate")
        self._writing = group.start_soon(self._write(), name="write")

    async def calm(self) -> None:
        """End the writing of inputs."""
        assert self._writing is not None, "the run has begun"
        self._writing.cancel()
        await asyncio.wait([self._writing])

    async def settle(self) -> None:
        """Wait until all inputs are reflected; then let a last primary roll back what dead ones left."""
        self._inputs.finish()
        self._outputs.finish()
        await self._until_reflected()
        # By then any stale primary has found out, and all late messages have arrived.
        await asyncio.sleep(CONFIG.rollback_again_seconds)
        last = self._cluster.join()
        for shard in self._cluster.shards():
            self._cluster.promote(last, shard)
        await asyncio.sleep(2 * POLL_SECONDS)
        await self._until_reflected()
        for problem in self._witness.pending(self._outputs.given_up):
            self._witness.violate("S1", problem)

    def involved(self) -> Iterable[SimulatedConsumer]:
        """Return the primary, and then the others, because any former primary may still write: the newest first."""
        primary = self._cluster.primary()
        newest_first = [member for member in reversed(self._cluster.members) if member.shards]
        return sorted(newest_first, key=lambda member: member is not primary)

    def shut_down(self) -> None:
        """End every process, and the writing and assigning beside them."""
        self._cluster.shut_down()

    def report(self) -> ShardReport:
        """Return what the run did."""
        witness = self._witness
        return ShardReport(
            inputs=len(witness.durable), commits=witness.commits, restores=witness.restores
        )

    async def _write(self) -> None:
        """Let other producers write."""
        while True:
            if self._cluster.broker.refuses == Status.OK:
                (self._outputs if self._chance.random() < FOREIGN_SHARE else self._inputs).step()
            await asyncio.sleep(self._chance.uniform(*self._scenario.write_seconds))

    async def _until_reflected(self) -> None:
        loop = running_loop()
        until = loop.time() + self._scenario.settle_seconds_max
        while self._context.findings.violation is None:
            missing, untrue = self._witness.missing(), self._statuses.untrue()
            if not (missing or untrue):
                return
            if loop.time() > until:
                invariant = "S1" if missing else "S4"
                self._witness.violate(invariant, f"in the end {'; '.join(missing or untrue)}")
            await asyncio.sleep(POLL_SECONDS)

    def _on_commit(self, commit: StoreCommit) -> None:
        self._context.trace.add(describe(self._cluster.keys, commit))
        self._statuses.on_commit(commit)
