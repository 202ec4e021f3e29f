"""A simulated member: the real session, key space and allocation loop, in a process that may stop or die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
"""Errors that a member may end with; any other one is a defect."""


class Workload(Protocol):
    """A member's application."""

    async def run(self) -> None:
        """Run for ever."""
        ...


@dataclass(frozen=True, slots=True)
class Planned:
    """A problem that a member's solver got, and its solution."""

    problem: Problem
    desired: Desired


@dataclass(frozen=True, slots=True)
class Note:
    """A member's knowledge when it sent a transaction."""

    planned: Planned | None
    """Its newest plan."""
    epoch: int | None
    """The leadership that it had."""


class RecordingSolver:
    """Records a member's plans for the invariants that check its writes."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self.planned: Planned | None = None
        """The newest plan."""

    def solve(self, problem: Problem) -> Desired:
        """Call the solver."""
        desired = self._solver.solve(problem)
        self.planned = Planned(problem, desired)
        return desired


class State(Enum):
    """State of a member's process."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """Stopped; it may continue."""
    DEAD = "dead"
    """Killed: it never continues."""
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
    """The error that its program ended with."""
    defect: Exception | None = None
    """The same, if it is unexpected."""
    ended: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> State:
        """The state of the process."""
        if self.ended:
            return State.ENDED
        if self.killed:
            return State.DEAD
        return State.STOPPED if self.process.stopped else State.ALIVE

    @property
    def decisions_refused(self) -> int:
        """Number of decisions that the member discarded: its plan broke a rule, or an error was raised."""
        registry = self.session.metrics.registry
        return int(registry.get_sample_value("gazette_allocator_plan_invalid_total") or 0)

    def change(self, value: SimulatedMemberValue) -> None:
        """Have the member announce a new value."""
        self.value = value
        self._changed.set()

    def kill(self) -> None:
        """Stop the process for ever, as SIGKILL does: its keys stay in etcd."""
        self.killed = True
        self.process.stop()

    async def live(self) -> None:
        """Run the member until its program ends, and record why."""
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
            # The value may change again while it is being written.
            while announced != self.value:
                value = self.value
                try:
                    await self.session.update_member(value.encoded())
                    announced = value
                except (EtcdUnavailableError, TxnConflictError):
                    await asyncio.sleep(0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadContext:
    """A member as its workload sees it."""

    member_id: MemberId
    etcd: FaultyEtcd
    """The member's way to etcd."""
    key_space: KeySpace
    """The member's mirror."""
    random: Random
    """The member's source of randomness."""


WorkloadFactory = Callable[[WorkloadContext], Workload]
"""Makes a member's workload; the seam for simulating an application on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFactory:
    """Assembles the members of one simulated cluster."""

    etcd: FakeEtcd
    keys: Keys
    clock: Clock
    latency_seconds: tuple[float, float]
    """Bounds of the latency of messages without faults."""
    new_solver: Callable[[], Solver]
    """Makes each member's solver."""
    new_workload: WorkloadFactory

    def make(
        self, config: SessionConfig, *, value: SimulatedMemberValue, random: Random
    ) -> SimulatedMember:
        """Assemble a member; it does not run yet.

        Args:
            config: Its identity and times.
            value: The value that it announces.
            random: Its source of randomness.
        """
        member_id = config.member_id
        link = Link(random, self.latency_seconds)
        solver = RecordingSolver(self.new_solver())

        def note() -> Note:
            fence = session.leadership.fence
            return Note(solver.planned, None if fence is None else fence.epoch)

        etcd = FaultyEtcd(self.etcd, link, author=str(member_id), note=note)
        key_space = KeySpace(etcd, self.keys, SimulatedDecoder())
        session = Session(
            etcd,
            key_space,
            config,
            SimulatedConsistency(),
            is_failed=is_failed,
            solver=solver,
            clock=self.clock,
            random=random,
        )
        context = WorkloadContext(
            member_id=member_id, etcd=etcd, key_space=key_space, random=random
        )
        return SimulatedMember(
            member_id=member_id,
            value=value,
            process=Process(str(member_id)),
            link=link,
            solver=solver,
            session=session,
            key_space=key_space,
            workload=self.new_workload(context),
        )
