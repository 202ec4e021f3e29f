"""A simulated member: the real session, key space and allocation loop, in a process that may stand still or die."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Protocol

from broadsheet.allocator.errors import (
    AnnounceConflictError,
    EtcdUnavailableError,
    LeaseLostError,
    MemberKeyLostError,
    TxnConflictError,
)
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.problem import Desired, Problem, Solver
from broadsheet.allocator.runtime.clock import Clock
from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.allocator.session import Session, SessionConfig
from broadsheet.allocator.simulation.etcd import FakeEtcd
from broadsheet.allocator.simulation.network import FaultyEtcd, Link
from broadsheet.allocator.simulation.values import (
    SimulatedConsistency,
    SimulatedDecoder,
    SimulatedMemberValue,
    is_failed,
)
from broadsheet.allocator.simulation.virtual_loop import Process

EXPECTED_ENDS = (
    AnnounceConflictError,
    EtcdUnavailableError,
    LeaseLostError,
    MemberKeyLostError,
)
"""What a member may end with; anything else is a defect."""


class Workload(Protocol):
    """What a member does beside being a member."""

    async def run(self) -> None:
        """Work for ever."""
        ...


@dataclass(frozen=True, slots=True)
class Planned:
    """A question that a member's solver was asked, and its answer."""

    problem: Problem
    desired: Desired


@dataclass(frozen=True, slots=True)
class Note:
    """What a member knew when it sent a transaction."""

    planned: Planned | None
    """Its newest plan."""
    epoch: int | None
    """The leadership that it had."""


class RecordingSolver:
    """Remembers what a member planned, for those who judge its writes."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self.planned: Planned | None = None
        """The newest plan."""

    def solve(self, problem: Problem) -> Desired:
        """Ask the solver."""
        desired = self._solver.solve(problem)
        self.planned = Planned(problem, desired)
        return desired


class State(Enum):
    """Where a member is in its life."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """It stands still, and may go on."""
    DEAD = "dead"
    """Killed: it stands still for ever."""
    ENDED = "ended"
    """Its program ended."""


@dataclass(eq=False, kw_only=True)
class SimulatedMember:
    """One process."""

    member_id: MemberId
    value: SimulatedMemberValue
    process: Process
    link: Link
    solver: RecordingSolver
    session: Session
    key_space: KeySpace
    workload: Workload
    killed: bool = False
    end: Exception | None = None
    """What its program ended with."""
    defect: Exception | None = None
    """The same, if it should never have happened."""
    ended: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> State:
        """Where it is in its life."""
        if self.ended:
            return State.ENDED
        if self.killed:
            return State.DEAD
        return State.STOPPED if self.process.stopped else State.ALIVE

    @property
    def decisions_refused(self) -> int:
        """How often the member did not go by what it had decided: its plan broke a rule, or something was raised."""
        registry = self.session.metrics.registry
        return int(registry.get_sample_value("gazette_allocator_plan_invalid_total") or 0)

    def change(self, value: SimulatedMemberValue) -> None:
        """Have the member announce a new value."""
        self.value = value
        self._changed.set()

    def kill(self) -> None:
        """Stop the process for ever, as SIGKILL does: what it holds in etcd stays."""
        self.killed = True
        self.process.stop()

    async def live(self) -> None:
        """Run the member until its program ends, and note why."""
        try:
            await self.session.start(self.value.encoded())
            async with TaskGroup() as group:
                group.start_soon(self.workload.run(), name=f"{self.member_id} workload")
                group.start_soon(self._announce_changes(), name=f"{self.member_id} changes")
                await self.session.run()
                group.stop()
            await self.session.revoke()
        except EXPECTED_ENDS as error:
            self.end = error
        except Exception as error:
            self.defect = self.end = error
        finally:
            self.ended = True

    async def _announce_changes(self) -> None:
        announced = self.value
        while True:
            await self._changed.wait()
            self._changed.clear()
            while announced != self.value:
                value = self.value
                try:
                    await self.session.update_member(value.encoded())
                    announced = value
                except (EtcdUnavailableError, TxnConflictError):
                    await asyncio.sleep(0.5)


class WorkloadFactory(Protocol):
    """Makes what a member does; the seam for simulating an application on top."""

    def __call__(
        self, etcd: FaultyEtcd, key_space: KeySpace, member_id: MemberId, random: Random
    ) -> Workload:
        """Return a member's workload.

        Args:
            etcd: The member's way to etcd.
            key_space: What the member sees.
            member_id: The member.
            random: Its own source of chance.
        """
        ...


def make_member(
    etcd: FakeEtcd,
    keys: Keys,
    config: SessionConfig,
    *,
    value: SimulatedMemberValue,
    solver: Solver,
    clock: Clock,
    random: Random,
    latency_seconds: tuple[float, float],
    workload: WorkloadFactory,
) -> SimulatedMember:
    """Put a member together; it does not run yet."""
    member_id = config.member_id
    link = Link(random, latency_seconds)
    recording = RecordingSolver(solver)

    def note() -> Note:
        fence = session.leadership.fence
        return Note(recording.planned, None if fence is None else fence.epoch)

    faulty = FaultyEtcd(etcd, link, author=str(member_id), note=note)
    key_space = KeySpace(faulty, keys, SimulatedDecoder())
    session = Session(
        faulty,
        key_space,
        config,
        SimulatedConsistency(),
        is_failed=is_failed,
        solver=recording,
        clock=clock,
        random=random,
    )
    return SimulatedMember(
        member_id=member_id,
        value=value,
        process=Process(str(member_id)),
        link=link,
        solver=recording,
        session=session,
        key_space=key_space,
        workload=workload(faulty, key_space, member_id, random),
    )
