"""One run: a cluster drawn from a seed, a period of faults, a quiet period, and checks throughout."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import CRITICAL

import structlog

from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.allocator.simulation.cluster import Cluster
from broadsheet.allocator.simulation.faults import Faults
from broadsheet.allocator.simulation.invariants import (
    Invariant,
    InvariantViolation,
    check_rest,
    invariants,
)
from broadsheet.allocator.simulation.member import SimulatedMember
from broadsheet.allocator.simulation.scenario import HASTE_SECONDS_MAX, Report, Scenario
from broadsheet.allocator.simulation.store import StoreCommit
from broadsheet.allocator.simulation.trace import Trace
from broadsheet.allocator.simulation.virtual_loop import current_process, run_virtual, running_loop
from broadsheet.allocator.simulation.world import World, describe

POLL_SECONDS = 1.0
END_SECONDS_MAX = 600.0
"""Bound after which a cancelled member that has not ended counts as stuck."""


class InvariantViolationError(Exception):
    """A run broke an invariant; the message is the report."""


def simulate(
    seed: int,
    scenario: Scenario | None = None,
    *,
    sink: Callable[[str], object] | None = None,
) -> Report:
    """Run one cluster through one sequence of events.

    It must not be called from a running event loop, because it runs a separate one. While it runs, the process-wide
    random generator is seeded and logs go to `sink`; both are restored.

    Args:
        seed: Selects the cluster and the sequence of events; the same seed gives the same run.
        scenario: The family of runs to select from; the default one if not given.
        sink: Gets every line of the trace, and the members' log lines.
    """
    state = random.getstate()
    # Jitter that is not injected comes from the process-wide generator.
    random.seed(seed)
    try:
        with logs_to(sink):
            return run_virtual(_Run(seed, scenario or Scenario(), sink).run())
    finally:
        random.setstate(state)


class _Run:
    """The state of one run."""

    def __init__(self, seed: int, scenario: Scenario, sink: Callable[[str], object] | None) -> None:
        self._seed = seed
        self._scenario = scenario
        self._sink = sink
        self._violation: InvariantViolation | None = None
        self._allocations = 0
        self._changed_at = 0.0
        self._invariants: list[Invariant] = [*invariants(), *scenario.invariants()]

    async def run(self) -> Report:
        """Run to the end, or to the first violation."""
        loop = asyncio.get_running_loop()
        self._trace = Trace(loop.time, sink=self._sink)
        quiet_at = loop.time()
        async with TaskGroup() as group:
            self._cluster = Cluster(
                self._seed, self._scenario, group, self._trace, on_defect=self._on_defect
            )
            self._world = World(self._cluster.keys)
            self._cluster.etcd.observers.append(self._on_commit)
            self._populate()
            faults = Faults(self._cluster)
            await self._time_of_faults(faults)
            faults.end()
            quiet_at = loop.time()
            try:
                await self._time_of_quiet(quiet_at)
            finally:
                # Also after an error of a check, because a stopped process could not even be cancelled.
                await self._shut_down()
        return self._report(quiet_at)

    def _populate(self) -> None:
        for _ in range(self._cluster.draw(self._scenario.items)):
            self._cluster.new_item()
        for _ in range(self._cluster.draw(self._scenario.members)):
            self._cluster.join()

    async def _time_of_faults(self, faults: Faults) -> None:
        for _ in range(self._cluster.draw(self._scenario.steps)):
            await asyncio.sleep(self._pause_seconds())
            if self._violation is not None:
                return
            faults.next()

    def _pause_seconds(self) -> float:
        chance = self._cluster.random
        hasty = chance.random() < self._scenario.haste
        bounds = (0.0, HASTE_SECONDS_MAX) if hasty else self._scenario.pause_seconds
        return chance.uniform(*bounds)

    async def _time_of_quiet(self, quiet_at: float) -> None:
        loop = asyncio.get_running_loop()
        while self._violation is None:
            await asyncio.sleep(POLL_SECONDS)
            if not any(not member.process.stuck_in_work for member in self._cluster.alive()):
                # The last working member died or hangs after the earlier faults.
                self._cluster.join()
            if loop.time() - max(self._changed_at, quiet_at) >= self._scenario.idle_seconds:
                self._judge_rest()
                return
            if self._changed_at - quiet_at > self._scenario.settle_seconds_max:
                seconds = self._scenario.settle_seconds_max
                self._violate(
                    InvariantViolation("I5", f"still changing {seconds:g} s after the last fault")
                )

    async def _shut_down(self) -> None:
        loop = running_loop()
        loop.end_at(loop.time() + END_SECONDS_MAX)
        self._cluster.shut_down()

    def _on_defect(self, member: SimulatedMember) -> None:
        self._violate(InvariantViolation("I0", f"{member.member_id} ended with {member.defect!r}"))

    def _on_commit(self, commit: StoreCommit) -> None:
        self._trace.add(describe(self._cluster.keys, commit))
        change = self._world.apply(commit)
        if change is None:
            return
        self._changed_at = asyncio.get_running_loop().time()
        self._allocations += change.is_allocation
        for invariant in self._invariants:
            for violation in invariant.on_change(self._world, change):
                self._violate(violation)

    def _judge_rest(self) -> None:
        self._trace.add("at rest")
        for invariant in self._invariants:
            for violation in invariant.at_rest(self._world):
                self._violate(violation)
        for violation in check_rest(self._world, self._scenario.solver(), self._cluster.policy):
            self._violate(violation)
        for member in self._cluster.members:
            if member.decisions_refused:
                self._violate(
                    InvariantViolation("I0", f"{member.member_id} refused what it decided")
                )

    def _violate(self, violation: InvariantViolation) -> None:
        self._trace.add(f"VIOLATION {violation}")
        # The first one is reported, because later ones often follow from it.
        self._violation = self._violation or violation

    def _report(self, quiet_at: float) -> Report:
        return Report(
            seed=self._seed,
            trace_hash=self._trace.digest(),
            revisions=self._cluster.etcd.store.revision,
            virtual_seconds=asyncio.get_running_loop().time(),
            settled_after_seconds=max(0.0, self._changed_at - quiet_at),
            allocations=self._allocations,
            placement={
                item_id: tuple(
                    str(replica.member_id)
                    for replica in sorted(
                        self._world.replicas.get(item_id, {}).values(), key=lambda r: r.slot
                    )
                )
                for item_id in sorted(self._world.items)
            },
            violation=self._violation,
            recent=tuple(self._trace.recent) if self._violation else (),
        )


@contextmanager
def logs_to(sink: Callable[[str], object] | None) -> Iterator[None]:
    """Send structured logs to `sink`, or discard them, for a while."""

    def show(_: object, method: str, event: structlog.typing.EventDict) -> str:
        process = current_process()
        text = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        now = asyncio.get_running_loop().time()
        assert sink is not None, "without a sink nothing gets here"
        sink(f"{now:10.4f}      [{process.name if process else '-'}] {event['event']} {text}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[show],
        wrapper_class=structlog.make_filtering_bound_logger(CRITICAL if sink is None else 0),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
