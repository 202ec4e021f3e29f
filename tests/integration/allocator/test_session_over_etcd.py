"""Members in one process, each with its own session, over a real etcd."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broadsheet.allocator.errors import (
    EtcdUnavailableError,
    LeaseLostError,
    MemberKeyLostError,
    TxnConflictError,
)
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.key_space import ObserverStage
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Put
from broadsheet.allocator.placement.problem import Desired, Problem
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.json_members import POISON, JsonMemberProcess, item_value, member_value, running
from tests.support.json_sessions import counted, put_items, settled, start_all

pytestmark = pytest.mark.etcd


@pytest.fixture
async def group() -> AsyncIterator[TaskGroup]:
    """A task group for members of the test; it must be empty of errors at the end."""
    async with TaskGroup() as tasks:
        yield tasks


async def test_sessions_items_written_are_spread_over_members_and_zones(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """Four members in two zones get twelve items of two replicas: six each, two zones an item, primaries spread."""
    members = await start_all(etcd, etcd_root, "a#one", "a#two", "b#one", "b#two")
    await put_items(etcd, etcd_root, 12, replication=2)

    async with running(group, *members):
        await eventually(lambda: settled(members[0], 12, replication=2))

        placement = members[0].placement()
        assert [len(member.holds()) for member in members] == [6, 6, 6, 6]
        assert all({m[0] for m in placed} == {"a", "b"} for placed in placement.values())
        primaries = [placed[0] for placed in placement.values()]
        assert {primaries.count(str(member.member_id)) for member in members} <= {2, 3, 4}


async def test_session_lease_revoked_moves_its_items_at_once(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """A member's lease ends: its session fails with LeaseLostError, others hold its items long before the TTL."""
    members = await start_all(etcd, etcd_root, "a#one", "a#two", "b#one")
    await put_items(etcd, etcd_root, 9, replication=2)
    victim = members[1]
    async with running(group, members[0], members[2]):
        victim_run = group.start_soon(_loses_membership(victim), name="victim")
        await eventually(lambda: settled(members[0], 9, replication=2))
        started = asyncio.get_running_loop().time()

        await etcd.lease_revoke(victim.session.lease)

        await eventually(
            lambda: (
                settled(members[0], 9, replication=2)
                and victim.member_id not in members[0].key_space.members
            )
        )
        assert asyncio.get_running_loop().time() - started < 8.0
        await victim_run


async def _loses_membership(member: JsonMemberProcess) -> None:
    with pytest.raises((LeaseLostError, MemberKeyLostError)):
        await member.run()


async def test_session_exiting_hands_over_and_returns(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """An exiting member drains, replacement first, and its run returns; its key stays until it is revoked."""
    members = await start_all(etcd, etcd_root, "a#one", "a#two", "b#one")
    await put_items(etcd, etcd_root, 6, replication=1)
    leaving = members[1]
    async with running(group, *members):
        await eventually(lambda: settled(members[0], 6, replication=1) and leaving.holds())
        lowest = 6

        def watch_coverage() -> None:
            nonlocal lowest
            consistent = {
                item_id
                for (item_id, _, _), a in members[0].key_space.assignments.items()
                if a.kv.value == b"consistent"
            }
            lowest = min(lowest, len(consistent))

        members[0].key_space.observe(ObserverStage.WAKE, watch_coverage)

        await leaving.session.update_member(member_value(100, exiting=True))

        await eventually(lambda: leaving.ended)
        assert leaving.holds() == []
        assert lowest == 6, "every item had a consistent replica all the time"
        assert leaving.member_id in members[0].key_space.members
        assert await leaving.session.revoke()
        await eventually(lambda: leaving.member_id not in members[0].key_space.members)


async def test_session_leader_exits_and_next_oldest_leads(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """The oldest member drains itself and leaves; the next oldest allocates what is written afterwards."""
    members = await start_all(etcd, etcd_root, "a#one", "a#two", "b#one")
    await put_items(etcd, etcd_root, 4, replication=1)
    async with running(group, *members):
        await eventually(lambda: settled(members[1], 4, replication=1))

        await members[0].session.update_member(member_value(100, exiting=True))
        await eventually(lambda: members[0].ended)
        await members[0].session.revoke()
        await put_items(etcd, etcd_root, 8, replication=1)

        await eventually(lambda: settled(members[2], 8, replication=1))
        assert members[0].member_id not in members[2].key_space.members


async def test_session_poisoned_keys_do_not_block_other_items(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """An undecodable item keeps its assignments, a key with too many parts is ignored, and all other items converge."""
    keys = Keys(etcd_root)
    members = await start_all(etcd, etcd_root, "a#one")
    await etcd.put(keys.item(ItemId("item-00")), b"not json")
    poisoned = keys.assignment(ItemId("item-00"), MemberId("a", "one"), 0)
    await etcd.put(poisoned, b"consistent")
    await etcd.put(keys.items_prefix + b"x#y", item_value(1))
    async with running(group, *members):
        for number in range(1, 6):
            await etcd.put(keys.item(ItemId(f"item-{number:02}")), item_value(1))

        await eventually(lambda: len(members[0].holds()) == 6)
        assert members[0].key_space.undecodable.keys() == {
            keys.item(ItemId("item-00")),
            keys.items_prefix + b"x#y",
        }
        assert members[0].key_space.kv_or_none(poisoned) is not None


async def test_session_refused_step_is_retried_on_a_timer_while_others_go_on(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """A slot is taken by a value nobody can read: its item's step is refused, sparingly, until the value is gone."""
    keys = Keys(etcd_root)
    (member,) = await start_all(etcd, etcd_root, "a#one")
    taken = keys.assignment(ItemId("item-02"), member.member_id, 0)
    await etcd.put(taken, POISON)
    async with running(group, member):
        await put_items(etcd, etcd_root, 6, replication=1)
        await eventually(lambda: len(member.holds()) == 5)
        await eventually(lambda: counted(member, "checkpoint_refused_total") >= 2)
        assert counted(member, "checkpoint_refused_total") <= 3
        assert "item-02" not in member.holds()

        await etcd.delete(taken)

        await eventually(lambda: settled(member, 6, replication=1))
        assert counted(member, "assignment_added_total") == 6


class _PlacesTwice:
    """A defective solver: every item twice on the first member."""

    def solve(self, problem: Problem) -> Desired:
        """Return a placement that no cluster could hold."""
        first = problem.members[0].member_id
        return {item.item_id: (first, first) for item in problem.items}


async def test_session_defective_plan_is_counted_and_not_carried_out(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """The verifier stands between solver and etcd: nothing is written, what is assigned stays, the session lives."""
    keys = Keys(etcd_root)
    member = JsonMemberProcess.create(etcd, etcd_root, "a#one", solver=_PlacesTwice())
    await member.session.start(member_value(10))
    await put_items(etcd, etcd_root, 2, replication=1)
    held = keys.assignment(ItemId("item-00"), member.member_id, 0)
    await etcd.put(held, b"consistent", lease=member.session.lease)
    async with running(group, member):
        await eventually(lambda: counted(member, "plan_invalid_total") >= 3)

        assert member.holds() == ["item-00"]
        assert not member.ended


class _WaitsForTheLoop:
    """Solves only once the loop has said so, which it cannot while it is held up."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.released = threading.Event()

    def solve(self, problem: Problem) -> Desired:
        """Wait, then solve."""
        self.begun.set()
        assert self.released.wait(timeout=10.0), "the loop was held up"
        return FlowSolver().solve(problem)


async def test_session_slow_solver_holds_up_neither_loop_nor_stop(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """While a solve takes its time the loop runs on, and stop ends the session without waiting for the solve."""
    solver = _WaitsForTheLoop()
    member = JsonMemberProcess.create(etcd, etcd_root, "a#one", solver=solver)
    await member.session.start(member_value(10))
    async with running(group, member):
        await eventually(solver.begun.is_set)

        member.session.stop()

        await eventually(lambda: member.ended)
        solver.released.set()


async def test_session_etcd_killed_and_restarted_goes_on(tmp_path: Path, etcd_root: str) -> None:
    """Etcd dies by kill -9 and returns on the same data: the sessions survive and allocate what is written then."""
    with EmbeddedEtcdProcess(data_dir=tmp_path / "etcd") as server:
        config = EtcdConfig(endpoints=(server.endpoint,))
        async with EtcdClient(config) as etcd, TaskGroup() as group:
            members = await start_all(etcd, etcd_root, "a#one", "b#one")
            await put_items(etcd, etcd_root, 4, replication=2)
            async with running(group, *members):
                await eventually(lambda: settled(members[0], 4, replication=2))

                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await eventually(lambda: _wrote(etcd, etcd_root))

                await eventually(lambda: settled(members[1], 8, replication=2))


async def _wrote(etcd: EtcdClient, root: str) -> bool:
    try:
        await put_items(etcd, root, 8, replication=2)
    except EtcdUnavailableError:
        return False
    return True


async def test_session_stop_returns_at_once_and_keeps_the_key(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """Stop ends run without draining or revoking: what follows is the service's business."""
    (member,) = await start_all(etcd, etcd_root, "a#one")
    await put_items(etcd, etcd_root, 2, replication=1)
    async with running(group, member):
        await eventually(lambda: settled(member, 2, replication=1))

        member.session.stop()

        await eventually(lambda: member.ended)
        found = await etcd.get_range(Keys(etcd_root).member(member.member_id))
        assert [kv.lease for kv in found.kvs] == [member.session.lease]


async def test_update_member_wins_over_a_stranger_who_wrote_the_key(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """An operator changed our limit by hand: the first attempt to say that we leave is refused, the next one works.

    A member that could never say so would stay until its drain is given up.
    """
    (member,) = await start_all(etcd, etcd_root, "a#one")
    key = Keys(etcd_root).member(member.member_id)
    async with running(group, member):
        lease = member.session.lease
        await etcd.txn((), (Put(key, member_value(7), ignore_lease=True),))

        with pytest.raises(TxnConflictError):
            await member.session.update_member(member_value(100, exiting=True))
        await member.session.update_member(member_value(100, exiting=True))

        (kv,) = (await etcd.get_range(key)).kvs
        assert (kv.value, kv.lease) == (member_value(100, exiting=True), lease)
        await eventually(lambda: member.ended)


class _RaisesForPoison:
    """A solver with a defect that shows on one item alone."""

    def solve(self, problem: Problem) -> Desired:
        """Fail while the item is there."""
        if any(item.item_id == "poison" for item in problem.items):
            raise ZeroDivisionError("a defect of the test's solver")
        return FlowSolver().solve(problem)


async def test_session_survives_a_solver_that_raises(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """A defect that one item sets off must not end the leader: each next leader would die of it in turn.

    What was planned before goes on: a replica taken away comes back. Once the item is gone, planning goes on too.
    """
    member = JsonMemberProcess.create(etcd, etcd_root, "a#one", solver=_RaisesForPoison())
    await member.session.start(member_value(100))
    await put_items(etcd, etcd_root, 2, replication=1)
    keys = Keys(etcd_root)
    async with running(group, member):
        await eventually(lambda: settled(member, 2, replication=1))

        await etcd.put(keys.item(ItemId("poison")), item_value(1))
        await eventually(lambda: counted(member, "plan_invalid_total") > 0)
        await etcd.delete(keys.assignment(ItemId("item-00"), member.member_id, 0))
        await eventually(lambda: settled(member, 2, replication=1))

        await etcd.delete(keys.item(ItemId("poison")))
        await put_items(etcd, etcd_root, 3, replication=1)
        await eventually(lambda: settled(member, 3, replication=1))
