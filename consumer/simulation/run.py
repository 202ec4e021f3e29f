"""Runs one simulation: a shard drawn from a seed, a time with faults, a time without, and checks throughout."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.etcd.api import KeyPut
from broadsheet.allocator.keys import AssignmentKey, Keys
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.allocator.simulation.many import Family
from broadsheet.allocator.simulation.run import logs_to
from broadsheet.allocator.simulation.store import StoreCommit
from broadsheet.allocator.simulation.trace import Trace
from broadsheet.allocator.simulation.virtual_loop import run_virtual, running_loop
from broadsheet.allocator.simulation.world import describe
from broadsheet.consumer.failure_kind import FailureKind
from broadsheet.consumer.protocol.journal_pb2 import Status
from broadsheet.consumer.protocol.shard_pb2 import ReplicaStatus
from broadsheet.consumer.simulation.application import BROKEN_ON_PURPOSE
from broadsheet.consumer.simulation.cluster import CONFIG, ROOT, ConsumerCluster
from broadsheet.consumer.simulation.faults import ShardFaults
from broadsheet.consumer.simulation.history_checker import HistoryChecker
from broadsheet.consumer.simulation.scenario import Report, Scenario
from broadsheet.consumer.simulation.writers import Writers, writers_of_outputs

POLL_SECONDS = 1.0
END_SECONDS_MAX = 600.0
"""Time after which a cancelled process that has not ended never will."""
FOREIGN_SHARE = 0.2
"""Share of other producers' messages that go into the shard's outputs."""


ALLOCATOR: Final = "allocator"
_FORESEEN: Final = (FailureKind.TRANSIENT, FailureKind.FENCED)


class Statuses:
    """Checks the statuses of shards in etcd at each revision: S0 and S4."""

    def __init__(self, keys: Keys, witness: HistoryChecker) -> None:
        self._keys = keys
        self._witness = witness
        self._codes: dict[AssignmentKey, ReplicaStatus.Code.ValueType] = {}

    def on_commit(self, commit: StoreCommit) -> None:
        """Check a revision."""
        for event in commit.events:
            key = event.kv.key if isinstance(event, KeyPut) else event.key
            assignment = self._assignment_or_none(key)
            if assignment is None:
                continue
            if not isinstance(event, KeyPut):
                self._codes.pop(assignment, None)
                continue
            self._judge(commit.author, assignment, event.kv)

    def untrue(self) -> list[str]:
        """Return the statuses that are untrue although everything works, in words."""
        return [
            f"{key.member_id} says {ReplicaStatus.Code.Name(code)} at slot {key.slot}"
            for key, code in self._codes.items()
            if code != (ReplicaStatus.STANDBY if key.slot else ReplicaStatus.PRIMARY)
        ]

    def _judge(self, author: str, assignment: AssignmentKey, kv: KeyValue) -> None:
        status = ReplicaStatus.FromString(kv.value)
        self._codes[assignment] = status.code
        if author == ALLOCATOR:
            return  # It moves an assignment together with its status.
        if author != str(assignment.member_id):
            self._witness.violate("S4", f"{author} says {status} of {assignment}")
        if kv.create_revision == kv.mod_revision or not kv.lease:
            self._witness.violate("S4", f"{author} says {status} of {assignment}, which was gone")
        self._look_at_failure(status)

    def _look_at_failure(self, status: ReplicaStatus) -> None:
        """Check the reason of a shard's failure."""
        text = "; ".join(status.errors)
        foreseen = any(f"({kind.value})" in text for kind in _FORESEEN)
        if status.code == ReplicaStatus.FAILED and not foreseen and BROKEN_ON_PURPOSE not in text:
            self._witness.violate("S0", f"a shard failed: {text}")

    def _assignment_or_none(self, key: bytes) -> AssignmentKey | None:
        try:
            parsed = self._keys.parse(key)
        except KeyDecodeError:
            return None
        return parsed if isinstance(parsed, AssignmentKey) else None


def simulate(
    seed: int,
    scenario: Scenario | None = None,
    *,
    sink: Callable[[str], object] | None = None,
) -> Report:
    """Simulate one shard through the course of events of a seed.

    Do not call it in a running event loop, because it runs another one. Meanwhile the process-wide random generator is
    seeded and logs go to `sink`; both are restored.

    Args:
        seed: Selects the shard and the course of events; the same seed gives the same run.
        scenario: The family of runs; the default one if not given.
        sink: Called with every line of the trace and of members' logs.
    """
    state = random.getstate()
    # Jitter that is not injected comes from the process-wide generator.
    random.seed(seed)
    try:
        with logs_to(sink), tempfile.TemporaryDirectory(prefix="simulated-") as directory:
            run = _Run(seed, scenario or Scenario(), sink, Path(directory))
            return run_virtual(run.run())
    finally:
        random.setstate(state)


def shards(scenario: Scenario | None = None, *, arguments: tuple[str, ...] = ()) -> Family:
    """Return the runs of this simulator.

    Args:
        scenario: The family of runs; with more than one job it must be picklable.
        arguments: Command-line arguments that select the same scenario.
    """
    return Family(partial(simulate, scenario=scenario), "broadsheet.consumer.simulation", arguments)


class _Run:
    """The state of one run."""

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        sink: Callable[[str], object] | None,
        directory: Path,
    ) -> None:
        self._seed = seed
        self._scenario = scenario
        self._sink = sink
        self._directory = directory

    async def run(self) -> Report:
        """Run to the end or to the first violation."""
        loop = running_loop()
        self._trace = Trace(loop.time, sink=self._sink)
        self._witness = HistoryChecker(tell=self._trace.add)
        self._keys = Keys(ROOT)
        self._statuses = Statuses(self._keys, self._witness)
        loop.set_exception_handler(self._on_unheard)
        async with TaskGroup() as group:
            self._cluster = ConsumerCluster(
                self._seed,
                self._scenario,
                group,
                self._trace,
                witness=self._witness,
                directory=self._directory,
            )
            try:
                await self._go_through_it(group)
            finally:
                loop.end_at(loop.time() + END_SECONDS_MAX)
                self._cluster.shut_down()
        return self._report()

    async def _go_through_it(self, group: TaskGroup) -> None:
        self._cluster.etcd.observers.append(self._on_commit)
        group.start_soon(self._cluster.allocate(), name="allocate")
        faults = ShardFaults(self._cluster)
        async with TaskGroup() as writing:
            writing.start_soon(self._write(), name="write")
            await self._time_of_faults(faults)
            writing.stop()
        faults.end()
        self._inputs.finish()
        self._outputs.finish()
        await self._time_of_quiet()

    async def _write(self) -> None:
        """Let other producers write."""
        chance = Random(f"{self._seed} writers")
        cluster = self._cluster
        self._inputs = Writers(cluster.broker, chance, cluster.clock)
        self._outputs = writers_of_outputs(cluster.broker, chance, cluster.clock)
        while True:
            if cluster.broker.refuses == Status.OK:
                (self._outputs if chance.random() < FOREIGN_SHARE else self._inputs).step()
            await asyncio.sleep(chance.uniform(*self._scenario.write_seconds))

    async def _time_of_faults(self, faults: ShardFaults) -> None:
        for _ in range(self._cluster.draw(self._scenario.steps)):
            await asyncio.sleep(self._cluster.random.uniform(*self._scenario.pause_seconds))
            if self._witness.violation is not None:
                return
            faults.next()

    async def _time_of_quiet(self) -> None:
        """Wait until all inputs are reflected; then let a last primary roll back what dead ones left."""
        await self._settle()
        # By then any stale primary has found out, and all late messages have arrived.
        await asyncio.sleep(CONFIG.rollback_again_seconds)
        self._cluster.promote(self._cluster.join())
        await asyncio.sleep(2 * POLL_SECONDS)
        await self._settle()
        for problem in self._witness.pending(self._outputs.given_up):
            self._witness.violate("S1", problem)

    async def _settle(self) -> None:
        loop = running_loop()
        until = loop.time() + self._scenario.settle_seconds_max
        while self._witness.violation is None:
            missing, untrue = self._witness.missing(), self._statuses.untrue()
            if not (missing or untrue):
                return
            if loop.time() > until:
                invariant = "S1" if missing else "S4"
                self._witness.violate(invariant, f"in the end {'; '.join(missing or untrue)}")
            await asyncio.sleep(POLL_SECONDS)

    def _on_commit(self, commit: StoreCommit) -> None:
        self._trace.add(describe(self._keys, commit))
        self._statuses.on_commit(commit)

    def _on_unheard(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Check an unhandled error."""
        self._witness.violate("S0", f"{context.get('message')}: {context.get('exception')!r}")

    def _report(self) -> Report:
        witness = self._witness
        return Report(
            seed=self._seed,
            trace_hash=self._trace.digest(),
            virtual_seconds=running_loop().time(),
            inputs=len(witness.durable),
            commits=witness.commits,
            restores=witness.restores,
            violation=witness.violation,
            recent=tuple(self._trace.recent) if witness.violation else (),
        )
