"""One run of a cluster: every revision is checked, and so is the state at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from broadsheet.testing.allocator.cluster import Cluster
from broadsheet.testing.allocator.faults import Faults
from broadsheet.testing.allocator.invariants import Invariant, check_rest, invariants
from broadsheet.testing.allocator.kernel.command import Family
from broadsheet.testing.allocator.kernel.run import (
    InvariantViolation,
    RunContext,
    Sink,
    run_simulation,
)
from broadsheet.testing.allocator.kernel.store import StoreCommit, describe
from broadsheet.testing.allocator.member import SimulatedMember
from broadsheet.testing.allocator.scenario import ClusterReport, ClusterScenario
from broadsheet.testing.allocator.world import StoredCluster

POLL_SECONDS = 1.0


def simulate(
    seed: int, scenario: ClusterScenario | None = None, *, sink: Sink | None = None
) -> ClusterReport:
    """Run one cluster through one sequence of events.

    It must not be called from a running event loop, because it runs a separate one. While it runs, the process-wide
    random generator is seeded and logs go to `sink`; both are restored.

    Args:
        seed: Selects the cluster and the sequence of events; the same seed gives the same run.
        scenario: The family of runs to select from; the default one if not given.
        sink: Gets every line of the trace, and the members' log lines.
    """
    return run_simulation(
        seed, partial(ClusterSimulation, scenario or ClusterScenario()), sink=sink
    )


def clusters(
    scenario: ClusterScenario | None = None, *, arguments: tuple[str, ...] = ()
) -> Family[ClusterScenario]:
    """Return the family of simulated clusters.

    Args:
        scenario: The scenario to draw them from; with more than one job it must be picklable.
        arguments: Command-line arguments that select the same scenario.
    """
    module = "broadsheet.testing.allocator"
    return Family(simulate, module, scenario or ClusterScenario(), arguments)


class ClusterSimulation:
    """A cluster, its faults, and its invariants."""

    unhandled = "I0"

    def __init__(self, scenario: ClusterScenario, context: RunContext) -> None:
        self._scenario = scenario
        self._trace, self._findings = context.trace, context.findings
        self._allocations = 0
        self._author = ""
        """Of the newest revision."""
        self._quiet_at = self._changed_at = 0.0
        self._invariants: list[Invariant] = [*invariants(), *scenario.invariants()]
        self._cluster = Cluster(context, scenario, on_defect=self._on_defect)
        self._world = StoredCluster(self._cluster.keys)
        self._cluster.etcd.observers.append(self._on_commit)
        self.faults = Faults(self._cluster)

    def begin(self) -> None:
        """Write the first items, and start the first members."""
        for _ in range(self._cluster.draw(self._scenario.items)):
            self._cluster.new_item()
        for _ in range(self._cluster.draw(self._scenario.members)):
            self._cluster.join()

    async def calm(self) -> None:
        """Do nothing, because only faults act from outside."""

    async def settle(self) -> None:
        """Wait until nothing has changed for long, and check what is there then."""
        loop = asyncio.get_running_loop()
        self._quiet_at = loop.time()
        while self._findings.violation is None:
            await asyncio.sleep(POLL_SECONDS)
            if not any(not member.process.stuck_in_work for member in self._cluster.alive()):
                # The last working member died or hangs after the earlier faults.
                self._cluster.join()
            if loop.time() - max(self._changed_at, self._quiet_at) >= self._scenario.idle_seconds:
                self._judge_rest()
                return
            if self._changed_at - self._quiet_at > self._scenario.settle_seconds_max:
                seconds = self._scenario.settle_seconds_max
                self._violate("I5", f"still changing {seconds:g} s after the last fault")

    def involved(self) -> Iterable[SimulatedMember]:
        """Return the newest revision's author, the leader in force, and members with a defect."""
        epoch = self._world.epoch
        named = {self._author, epoch.member if epoch is not None else ""}
        return (
            member
            for member in self._cluster.members
            if str(member.member_id) in named or member.defect or member.decisions_refused
        )

    def shut_down(self) -> None:
        """End every process."""
        self._cluster.shut_down()

    def report(self) -> ClusterReport:
        """Return what the run did, and where it came to rest."""
        replicas = self._world.replicas
        return ClusterReport(
            revisions=self._cluster.etcd.store.revision,
            settled_after_seconds=max(0.0, self._changed_at - self._quiet_at),
            allocations=self._allocations,
            placement={
                item_id: tuple(
                    str(replica.member_id)
                    for replica in sorted(
                        replicas.get(item_id, {}).values(), key=lambda replica: replica.slot
                    )
                )
                for item_id in sorted(self._world.items)
            },
        )

    def _on_defect(self, member: SimulatedMember) -> None:
        self._violate("I0", f"{member.member_id} ended with {member.defect!r}")

    def _on_commit(self, commit: StoreCommit) -> None:
        self._trace.add(describe(self._cluster.keys, commit))
        self._author = commit.author
        change = self._world.apply(commit)
        if change is None:
            return
        self._changed_at = asyncio.get_running_loop().time()
        self._allocations += change.is_allocation
        for invariant in self._invariants:
            for violation in invariant.on_change(self._world, change):
                self._findings.violate(violation)

    def _judge_rest(self) -> None:
        self._trace.add("at rest")
        for invariant in self._invariants:
            for violation in invariant.at_rest(self._world):
                self._findings.violate(violation)
        for violation in check_rest(self._world, self._scenario.solver(), self._cluster.policy):
            self._findings.violate(violation)
        for member in self._cluster.members:
            if member.decisions_refused:
                self._violate("I0", f"{member.member_id} refused what it decided")

    def _violate(self, invariant: str, problem: str) -> None:
        self._findings.violate(InvariantViolation(invariant, problem))
