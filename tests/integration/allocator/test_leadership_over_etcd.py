"""Leaders that die, hang and come back too late, and members that know no elections, over a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from broadsheet.allocator.errors import AllocatorError, EtcdUnavailableError
from broadsheet.allocator.etcd.api import TxnResult
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.leader.election import LeadershipConfig
from broadsheet.allocator.leader.plan_store import PlanStore
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Compare, Operation, Put
from broadsheet.allocator.placement.problem import Desired, Problem
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.json_members import (
    JsonMemberProcess,
    item_value,
    member_value,
    running,
    session_config,
)
from tests.support.memory_cluster import CONSISTENT

pytestmark = pytest.mark.etcd

T = TypeVar("T")
QUICK = LeadershipConfig(
    beat_seconds=0.1,
    suspect_after_seconds=0.6,
    confirm_seconds=0.3,
    claim_grace_seconds=0.2,
    turn_seconds_max=0.5,
    solve_seconds_max=0.5,
)
SUPERSEDED_SECONDS_MAX = 8.0
"""Vouched time, suspicion, confirmation and a grace are 1.6 s; the rest is room for a busy machine, and
less than the 10 s that a lease lives."""


@pytest.fixture
async def group() -> AsyncIterator[TaskGroup]:
    """A task group for members of the test; it must be empty of errors at the end."""
    async with TaskGroup() as tasks:
        yield tasks


class Gate:
    """An offload that can be shut: what is given to it then waits, as in a thread that does not return."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run `work` once the gate is open."""
        if not self.open.is_set():
            self.waiting += 1
            await self.open.wait()
            self.waiting -= 1
        return work()


class CountingSolver:
    """The built-in solver, and how often it was asked."""

    def __init__(self) -> None:
        self.solves = 0

    def solve(self, problem: Problem) -> Desired:
        """Solve."""
        self.solves += 1
        return FlowSolver().solve(problem)


def create(
    etcd: EtcdClient,
    root: str,
    name: str,
    *,
    solver: CountingSolver | None = None,
    offload: Gate | None = None,
) -> JsonMemberProcess:
    """Make a member whose elections are quick."""
    zone, suffix = name.split("#")
    config = session_config(MemberId(zone, suffix), leadership=QUICK)
    gate = offload or Gate()
    return JsonMemberProcess.create(etcd, root, name, config=config, solver=solver, offload=gate)


async def put_items(etcd: EtcdClient, root: str, count: int) -> None:
    """Write items of one replica."""
    for number in range(count):
        await etcd.put(Keys(root).item(ItemId(f"item-{number:02}")), item_value(1))


def leads(member: JsonMemberProcess) -> bool:
    """Whether the member leads, by its own view."""
    return member.session.leadership.fence is not None


def epoch_of(member: JsonMemberProcess) -> int:
    """The epoch that the member leads."""
    fence = member.session.leadership.fence
    assert fence is not None, "not leading"
    return fence.epoch


def is_settled(member: JsonMemberProcess, items: int) -> bool:
    """Whether each item has one consistent replica, by the member's mirror."""
    assignments = member.key_space.assignments.values()
    return (
        len(assignments) == items
        and len({a.item_id for a in assignments}) == items
        and all(a.kv.value == CONSISTENT for a in assignments)
    )


async def test_leadership_oldest_leads_and_the_next_takes_over_with_a_higher_epoch(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """Elections leave one leader at a time; its death hands on at once, and epochs only grow."""
    members = [create(etcd, etcd_root, f"a#m{n}") for n in range(3)]
    for member in members:
        await member.session.start(member_value(10))
    async with running(group, *members[1:]):
        first = group.start_soon(_until_lost(members[0]), name="first")
        await eventually(lambda: leads(members[0]))
        epoch = epoch_of(members[0])

        await etcd.lease_revoke(members[0].session.lease)

        await eventually(lambda: leads(members[1]))
        assert epoch_of(members[1]) > epoch
        assert not leads(members[2])
        await first


async def _until_lost(member: JsonMemberProcess) -> None:
    with pytest.raises(AllocatorError):
        await member.run()


async def test_leadership_leader_that_exits_gives_way_before_it_is_gone(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """In a rollout the oldest is drained first: a member that stays leads meanwhile."""
    members = [create(etcd, etcd_root, f"a#m{n}") for n in range(2)]
    for member in members:
        await member.session.start(member_value(10))
    await put_items(etcd, etcd_root, 4)
    async with running(group, *members):
        await eventually(lambda: leads(members[0]) and is_settled(members[1], 4))

        await members[0].session.update_member(member_value(10, exiting=True))

        await eventually(lambda: leads(members[1]) and members[0].ended)
        # The new leader may not have seen the last removal yet.
        await eventually(lambda: is_settled(members[1], 4))


async def test_leadership_hung_leader_is_superseded_and_its_late_writes_are_refused(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """A leader whose decision does not return keeps its lease: another one leads within the bound, and does its work.

    What the hung one decided comes back after all, on old keys that still compare equal: the epoch refuses it.
    """
    gate = Gate()
    members = [create(etcd, etcd_root, "a#old", offload=gate), create(etcd, etcd_root, "a#new")]
    for member in members:
        await member.session.start(member_value(20))
    old, new = members
    async with running(group, *members):
        await eventually(lambda: leads(old))
        epoch = epoch_of(old)
        # Its turn is over; the next one does not end.
        gate.open.clear()
        started = asyncio.get_running_loop().time()
        await put_items(etcd, etcd_root, 6)

        await eventually(lambda: leads(new))

        assert asyncio.get_running_loop().time() - started < SUPERSEDED_SECONDS_MAX
        assert epoch_of(new) > epoch
        assert gate.waiting == 1
        await eventually(lambda: is_settled(new, 6))
        assert old.member_id in new.key_space.members, "its lease is alive"
        gate.open.set()
        await eventually(lambda: gate.waiting == 0)
        await put_items(etcd, etcd_root, 8)
        await eventually(lambda: is_settled(new, 8))
        assert leads(new)
        assert not leads(old)


async def test_leadership_late_write_of_a_superseded_leader_is_refused_by_the_epoch(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """A write with the old fence, to keys that nobody touched, fails for the epoch alone."""
    members = [create(etcd, etcd_root, f"a#m{n}") for n in range(2)]
    for member in members:
        await member.session.start(member_value(10))
    async with running(group, *members):
        await eventually(lambda: leads(members[0]))
        fence = members[0].session.leadership.fence
        assert fence is not None
        key = f"{etcd_root}-other/late".encode()
        assert (await etcd.txn(fence.compares, (Put(key, b"1"),))).succeeded
        await members[0].session.update_member(member_value(11))
        assert (await etcd.txn(fence.compares, (Put(key, b"2"),))).succeeded, "beats do not matter"

        await members[0].session.update_member(member_value(10, exiting=True))
        await eventually(lambda: leads(members[1]))

        assert not (await etcd.txn(fence.compares, (Put(key, b"3"),))).succeeded


async def test_leadership_foreign_member_older_than_us_leads_alone(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """A member without a candidate key is the oldest: we do nothing until it is gone, and then we do it all."""
    keys = Keys(etcd_root)
    lease = await etcd.lease_grant(60)
    await etcd.put(keys.member(MemberId("a", "foreign")), member_value(5), lease=lease)
    member = create(etcd, etcd_root, "a#ours")
    await member.session.start(member_value(10))
    await put_items(etcd, etcd_root, 3)
    async with running(group, member):
        await eventually(lambda: _has_candidate(etcd, etcd_root, member))
        await _some_beats()
        assert not leads(member)
        assert not member.key_space.assignments

        await etcd.lease_revoke(lease)

        await eventually(lambda: is_settled(member, 3))
        # A younger one is allowed to join, for it acts only once we are gone.
        lease = await etcd.lease_grant(60)
        await etcd.put(keys.member(MemberId("a", "foreign")), member_value(5), lease=lease)
        await eventually(lambda: len(member.key_space.members) == 2)
        await put_items(etcd, etcd_root, 4)
        await eventually(lambda: len(member.key_space.assignments) == 4)
        await etcd.lease_revoke(lease)


async def _has_candidate(etcd: EtcdClient, root: str, member: JsonMemberProcess) -> bool:
    key = AuxiliaryKeys(root).candidate(member.member_id)
    return bool((await etcd.get_range(key)).kvs)


async def _some_beats() -> None:
    """Let enough time pass for a claim that must not come."""
    deadline = asyncio.get_running_loop().time() + 4 * QUICK.claim_grace_seconds
    await eventually(lambda: asyncio.get_running_loop().time() >= deadline)


class _RefusesAssignments(EtcdClient):
    """A client that lets the leader store its plan, and then carry out nothing of it."""

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Fail for assignments."""
        if any(b"/assign/" in each.key for each in success):
            raise EtcdUnavailableError((), "the test's etcd takes no assignments")
        return await super().txn(compares, success, failure)


async def test_leadership_killed_leader_plan_is_finished_by_the_next_without_a_solve(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """A leader without replicas of its own dies after planning: the next one carries out that plan, move by move."""
    async with _RefusesAssignments(etcd.config) as mute:
        first = create(mute, etcd_root, "a#leader")
        await first.session.start(member_value(0))
        solver = CountingSolver()
        others = [create(etcd, etcd_root, f"a#m{n}", solver=solver) for n in range(4)]
        for member in others:
            await member.session.start(member_value(10))
        await put_items(etcd, etcd_root, 12)
        first_run = group.start_soon(_until_lost(first), name="first")
        async with running(group, *others):
            await eventually(lambda: _is_stored(etcd, etcd_root, items=12, members=4))
            assert not others[0].key_space.assignments

            await etcd.lease_revoke(first.session.lease)

            await eventually(lambda: is_settled(others[0], 12))
            await first_run
            assert solver.solves == 0
            added = sum(counted(member, "assignment_added_total") for member in others)
            assert added == 12
            # The next change of the demand is planned as ever.
            await put_items(etcd, etcd_root, 13)
            await eventually(lambda: is_settled(others[0], 13))
            assert solver.solves == 1


async def _is_stored(etcd: EtcdClient, root: str, *, items: int, members: int) -> bool:
    found = await PlanStore(etcd, AuxiliaryKeys(root)).load()
    return (
        found is not None
        and len(found.plan.pending) == items
        and len(found.plan.members) == members
    )


@pytest.mark.timeout(900)
class _KillsInThePass(EtcdClient):
    """Kills etcd before the third transaction that adds assignments, in the same step, so that no more get through."""

    def __init__(self, server: EmbeddedEtcdProcess, root: str) -> None:
        super().__init__(EtcdConfig(endpoints=(server.endpoint,)))
        self._server = server
        self._prefix = Keys(root).assignments_prefix
        self.passed = 0

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Count it, if it adds any."""
        if any(isinstance(each, Put) and each.key.startswith(self._prefix) for each in success):
            self.passed += 1
            if self.passed == 3:
                self._server.kill()
        return await super().txn(compares, success, failure)


async def test_leadership_etcd_killed_in_the_middle_of_a_pass_goes_on_where_it_was(
    tmp_path: Path, etcd_root: str
) -> None:
    """Etcd dies by kill -9 with a part of the transactions applied: what is missing is added, and nothing twice."""
    items = 1_500
    with EmbeddedEtcdProcess(data_dir=tmp_path / "etcd") as server:
        async with _KillsInThePass(server, etcd_root) as etcd, TaskGroup() as group:
            keys = Keys(etcd_root)
            names = [ItemId(f"item-{number:04}") for number in range(items)]
            for at in range(0, items, 100):
                puts = [Put(keys.item(name), item_value(1)) for name in names[at : at + 100]]
                await etcd.txn((), tuple(puts))
            members = [create(etcd, etcd_root, f"a#m{n}") for n in range(2)]
            for member in members:
                await member.session.start(member_value(items))
            async with running(group, *members):
                await eventually(lambda: etcd.passed >= 3, timeout_seconds=300.0)
                assert len(members[1].key_space.assignments) < items, "it was over already"
                await asyncio.to_thread(server.start)

                await eventually(lambda: is_settled(members[1], items), timeout_seconds=300.0)
                assert sum(leads(member) for member in members) == 1


def counted(member: JsonMemberProcess, name: str) -> float:
    """Return one of the member's metrics."""
    value = member.session.metrics.registry.get_sample_value(f"gazette_allocator_{name}")
    assert value is not None, f"no metric {name}"
    return value
