"""A simulated member: the real session, key space and allocation loop, in a process that may stop or die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
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
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.problem import Desired, Problem, Solver
from broadsheet.allocator.session import Session, SessionConfig
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.cluster import SharedParts, SimulatedProcess
from broadsheet.testing.allocator.kernel.network import FaultyEtcd, Link
from broadsheet.testing.allocator.kernel.virtual_loop import Process
from broadsheet.testing.allocator.values import (
    SimulatedConsistency,
    SimulatedDecoder,
    SimulatedMemberValue,
    is_failed,
)

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


@dataclass(eq=False, kw_only=True)
class SimulatedMember(SimulatedProcess):
    """A process that takes part in allocation."""

    value: SimulatedMemberValue
    link: Link
    solver: RecordingSolver
    session: Session
    key_space: KeySpace
    workload: Workload
    end: Exception | None = None
    """The error that its program ended with."""
    defect: Exception | None = None
    """The same, if it is unexpected."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def links(self) -> tuple[Link, ...]:
        """Its link to etcd."""
        return (self.link,)

    @property
    def decisions_refused(self) -> int:
        """Number of decisions that the member discarded: its plan broke a rule, or an error was raised."""
        registry = self.session.metrics.registry
        return int(registry.get_sample_value("gazette_allocator_plan_invalid_total") or 0)

    def change(self, value: SimulatedMemberValue) -> None:
        """Have the member announce a new value."""
        self.value = value
        self._changed.set()

    def machine_stories(self) -> str:
        """Return the recent events of its election, and of its rounds as leader."""
        return self.session.story()

    async def live(self) -> None:
        """Run the member until its program ends, and record why."""
        try:
            await self.session.start(self.value.encoded())
            async with TaskGroup() as group:
                group.start_soon(self.workload.run(), name=f"{self.member_id} workload")
                group.start_soon(self._announce_changes(), name=f"{self.member_id} changes")
                await self.session.run()
                group.stop()
            # The workload has ended before, as a service stops its shards before it revokes its lease.
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
class MemberFactory(SharedParts):
    """Assembles the members of one simulated cluster."""

    skew_seconds: float
    """How far the watches of each may lag behind."""
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
        link = Link(random, self.latency_seconds, self.skew_seconds)
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
