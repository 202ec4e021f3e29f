"""Elections among simulated members, where a course of events was once got wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from structlog.testing import capture_logs

from broadsheet.allocator.config import Runtime
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import AssignmentKey, AuxiliaryKeys, Keys
from broadsheet.allocator.leader.election import EpochRecord, LeaderRecord, decoded_or_none, name_of
from broadsheet.allocator.leader.executor import Executor
from broadsheet.allocator.leader.leadership import Fence
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.ops import Delete, Put, TxnCheckpoint
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import AllocationPolicy, MoveLogPolicy, TransitionPolicy
from broadsheet.allocator.session import Session, SessionConfig
from broadsheet.allocator.transition.converge import ConvergeStep, ReplicaCounts
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator import ClusterScenario
from broadsheet.testing.allocator.cluster import Cluster
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.testing.allocator.kernel.run import Findings, RunContext, Trace
from broadsheet.testing.allocator.kernel.store import StoreCommit, key_of
from broadsheet.testing.allocator.kernel.virtual_loop import VirtualClock, run_virtual, running_loop
from broadsheet.testing.allocator.member import SimulatedMember
from broadsheet.testing.allocator.values import (
    SimulatedDecoder,
    SimulatedItem,
    SimulatedMemberValue,
)

AT_ONCE = TransitionPolicy(settle_seconds=0.0)


def _new_cluster(group: TaskGroup, policy: AllocationPolicy | None = None) -> Cluster:
    scenario = ClusterScenario(
        zones=(1, 1),
        limit=(4, 4),
        lease_ttl_seconds=20,
        latencies_seconds=((0.001, 0.01),),
        skews_seconds=(0.0,),
        policies=(policy or AllocationPolicy(transition=AT_ONCE),),
    )
    context = RunContext(1, group, Trace(running_loop().time), Findings())
    return Cluster(context, scenario, on_defect=lambda _: None)


def _assignments(cluster: Cluster) -> int:
    prefix = cluster.keys.assignments_prefix
    return sum(key.startswith(prefix) for key in cluster.etcd.store.kvs)


def test_member_whose_allocation_hangs_does_not_claim_again_from_one_that_leaves() -> None:
    """A leader that leaves gives way to one that stays, but not to one that was superseded for standing still: it would
    take leadership back at once, every time, and nobody would ever allocate.
    """

    async def hang_and_leave() -> tuple[int, int, int]:
        async with TaskGroup() as group:
            cluster = _new_cluster(group)
            hanging = cluster.join()
            await asyncio.sleep(3.0)
            leaving = cluster.join()
            # It has to stay as long as nobody else can hold its replica.
            cluster.put_item(ItemId("needs-both"), 2)
            await asyncio.sleep(10.0)
            before = _assignments(cluster)
            hanging.process.get_stuck()
            leaving.change(replace(leaving.value, exiting=True))
            cluster.put_item(ItemId("while-hanging"), 1)
            await asyncio.sleep(60.0)
            meanwhile = _assignments(cluster)
            hanging.process.get_unstuck()
            cluster.put_item(ItemId("afterwards"), 1)
            await asyncio.sleep(60.0)
            afterwards = _assignments(cluster)
            cluster.shut_down()
        return before, meanwhile, afterwards

    assert run_virtual(hang_and_leave()) == (2, 3, 4)


def test_leader_without_an_answer_to_a_write_leads_anew_before_it_decides_again() -> None:
    """What it sent may still arrive, after a decision that does not know of it: a new epoch has it refused."""

    async def lose_an_answer() -> tuple[int, int, int]:
        async with TaskGroup() as group:
            cluster = _new_cluster(group)
            member = cluster.join()
            await asyncio.sleep(3.0)
            before = _epoch(cluster)

            _lose_an_answer_of(member, cluster)
            cluster.put_item(ItemId("item"), 1)
            await asyncio.sleep(30.0)
            after = _epoch(cluster)
            cluster.shut_down()
            return before, after, _assignments(cluster)

    before, after, assignments = run_virtual(lose_an_answer())

    assert after == before + 1
    assert assignments == 1


def _lose_an_answer_of(member: SimulatedMember, cluster: Cluster) -> None:
    """Cut a member off as soon as its next step is performed, for as long as the answer travels."""

    def cut_once(commit: StoreCommit) -> None:
        if any(key_of(e).startswith(cluster.keys.assignments_prefix) for e in commit.events):
            cluster.etcd.observers.remove(cut_once)
            member.link.cut_off(refuses=False)
            running_loop().call_later(0.1, member.link.mend)

    cluster.etcd.observers.append(cut_once)


def test_leader_that_takes_leadership_anew_remembers_since_when_a_drain_waits() -> None:
    """A drain may wait twenty seconds for a replacement. Half of that is over when the leader loses an answer, and so
    begins a new epoch: the drain begins when it would have, not twenty seconds after the new epoch.
    """

    async def drain() -> tuple[int, float]:
        patient = AllocationPolicy(
            transition=TransitionPolicy(settle_seconds=0.0, drain_patience_seconds=20.0)
        )
        async with TaskGroup() as group:
            cluster = _new_cluster(group, patient)
            leader = cluster.join()
            await asyncio.sleep(3.0)
            leaving = cluster.join()
            await asyncio.sleep(3.0)
            for name in ("one", "two"):
                cluster.put_item(ItemId(name), 1)
            await asyncio.sleep(30.0)
            epoch = _epoch(cluster)
            held = _held_by(leaving, cluster)
            leaving.change(replace(leaving.value, exiting=True))
            since = running_loop().time()
            await asyncio.sleep(10.0)
            _lose_an_answer_of(leader, cluster)
            cluster.put_item(ItemId("three"), 1)
            await _wait_until(lambda: held <= _held_by(leader, cluster))
            waited = running_loop().time() - since
            epochs = _epoch(cluster) - epoch
            cluster.shut_down()
            return epochs, waited

    epochs, waited = run_virtual(drain())

    assert epochs == 1
    assert 20.0 <= waited <= 22.0


async def _wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, for a minute at most."""
    for _ in range(600):
        if condition():
            return
        await asyncio.sleep(0.1)


def _forget_who_leads(cluster: Cluster) -> None:
    """Delete the leader's key, as an operator may: the same member claims again, a while later."""
    cluster.etcd.perform((), (Delete(AuxiliaryKeys(cluster.keys.root).leader),))


@pytest.mark.parametrize("elections", [0, 1, 3])
def test_leader_that_is_elected_again_remembers_when_membership_changed(elections: int) -> None:
    """Balance waits until membership has been quiet for twenty seconds. Fifteen of them are over when the leader is
    elected again, once or several times: it moves what it would have moved, when it would have.
    """

    async def balance() -> tuple[int, float]:
        patient = AllocationPolicy(transition=TransitionPolicy(settle_seconds=20.0))
        async with TaskGroup() as group:
            cluster = _new_cluster(group, patient)
            cluster.join()
            for name in ("one", "two"):
                cluster.put_item(ItemId(name), 1)
            await asyncio.sleep(60.0)
            epoch = _epoch(cluster)
            newcomer, since = cluster.join(), running_loop().time()
            await asyncio.sleep(12.0)
            for _ in range(elections):
                await asyncio.sleep(1.0)
                _forget_who_leads(cluster)
            await _wait_until(lambda: bool(_held_by(newcomer, cluster)))
            waited = running_loop().time() - since
            epochs = _epoch(cluster) - epoch
            cluster.shut_down()
            return epochs, waited

    epochs, waited = run_virtual(balance())

    assert epochs == elections
    assert 20.0 <= waited <= 22.0


def test_leader_that_leads_again_after_another_remembers_since_when_a_drain_waits() -> None:
    """The drain's patience is twenty seconds. The leader stands still after five of them, another one takes over, and
    stands still in turn: the first one leads again, and does not begin to count again.
    """

    async def drain() -> tuple[int, float]:
        patient = AllocationPolicy(
            transition=TransitionPolicy(settle_seconds=0.0, drain_patience_seconds=20.0)
        )
        async with TaskGroup() as group:
            cluster = _new_cluster(group, patient)
            first = cluster.join()
            await asyncio.sleep(3.0)
            second, leaving = cluster.join(), cluster.join()
            await asyncio.sleep(3.0)
            for name in ("one", "two", "three"):
                cluster.put_item(ItemId(name), 1)
            await asyncio.sleep(30.0)
            epoch, held = _epoch(cluster), _held_by(leaving, cluster)
            leaving.change(replace(leaving.value, exiting=True))
            since = running_loop().time()
            for hanging in (first, second):
                await asyncio.sleep(1.0)
                hanging.process.stop()
                await _wait_until(partial(_follows, hanging, cluster))
                hanging.process.go_on()
            await _wait_until(lambda: held <= _held_by(first, cluster) | _held_by(second, cluster))
            waited = running_loop().time() - since
            leads_again = not _follows(first, cluster)
            epochs = _epoch(cluster) - epoch
            cluster.shut_down()
            assert held, "a drain of nothing waits for nothing"
            assert leads_again
            return epochs, waited

    epochs, waited = run_virtual(drain())

    assert epochs == 2
    assert 20.0 <= waited <= 22.0


def test_leader_that_is_elected_again_remembers_since_when_a_replica_has_failed() -> None:
    """A standby that has failed for fifteen seconds is placed elsewhere, also if the leader is elected again."""

    async def fail() -> float:
        item_id = ItemId("item")
        async with TaskGroup() as group:
            cluster = _new_cluster(group)
            members = [cluster.join() for _ in range(3)]
            await asyncio.sleep(5.0)
            cluster.put_item(item_id, 2)
            await asyncio.sleep(10.0)
            standbys = [each for each in members if _holds(each, item_id, cluster, slot=1)]
            cluster.cursed.add((item_id, standbys[0].member_id))
            since = running_loop().time()
            await asyncio.sleep(10.0)
            _forget_who_leads(cluster)
            await _wait_until(lambda: not _holds(standbys[0], item_id, cluster, slot=1))
            waited = running_loop().time() - since
            cluster.shut_down()
            return waited

    # To fail, and to catch up elsewhere, takes up to four seconds each. A leader that had forgotten would count the
    # fifteen from its election, which is ten seconds later.
    assert 15.0 <= run_virtual(fail()) < 25.0


def _holds(member: SimulatedMember, item_id: ItemId, cluster: Cluster, *, slot: int) -> bool:
    return cluster.keys.assignment(item_id, member.member_id, slot) in cluster.etcd.store.kvs


def _follows(member: SimulatedMember, cluster: Cluster) -> bool:
    kv = cluster.etcd.store.kvs.get(AuxiliaryKeys(cluster.keys.root).leader)
    record = None if kv is None else decoded_or_none(kv.value, LeaderRecord)
    return record is None or record.member != name_of(member.member_id)


def _held_by(member: SimulatedMember, cluster: Cluster) -> set[str]:
    prefix = cluster.keys.assignments_prefix
    parsed = [cluster.keys.parse(k) for k in cluster.etcd.store.kvs if k.startswith(prefix)]
    return {
        key.item_id
        for key in parsed
        if isinstance(key, AssignmentKey) and key.member_id == member.member_id
    }


def test_leader_whose_decision_fails_stays_and_decides_again() -> None:
    """Its view of a replica raises: a member that died of it would hand the same on to the next, until none is left.
    It says so, keeps what there is, and goes on by itself once the cause is gone.
    """

    async def fail_for_a_while() -> tuple[int, float | None, int, int]:
        consistency = Moody()
        async with TaskGroup() as group:
            etcd = FakeEtcd()
            keys = Keys("/simulated")
            session = Session(
                etcd,
                KeySpace(etcd, keys, SimulatedDecoder()),
                SessionConfig(member_id=MemberId("zone", "one")),
                consistency,
                solver=FlowSolver(),
                clock=VirtualClock(running_loop()),
            )
            await session.start(SimulatedMemberValue(4).encoded())
            group.start_soon(session.run(), name="session")
            etcd.perform((), (Put(keys.item(ItemId("item")), SimulatedItem(1).encoded()),))
            await asyncio.sleep(5.0)
            first = _assigned(etcd, keys)
            consistency.raises = True
            etcd.perform((), (Put(keys.item(ItemId("item")), SimulatedItem(0).encoded()),))
            for name in ("next", "last"):
                etcd.perform((), (Put(keys.item(ItemId(name)), SimulatedItem(1).encoded()),))
            await asyncio.sleep(30.0)
            refused = session.metrics.registry.get_sample_value(
                "gazette_allocator_plan_invalid_total"
            )
            meanwhile = _assigned(etcd, keys)
            consistency.raises = False
            await asyncio.sleep(10.0)
            after = _assigned(etcd, keys)
            etcd.close()
            group.stop()
        return first, refused, meanwhile, after

    with capture_logs() as logs:
        first, refused, meanwhile, after = run_virtual(fail_for_a_while())

    assert (first, meanwhile, after) == (1, 1, 2)
    reported = [log for log in logs if log["event"] == "allocation.plan_invalid"]
    assert refused == len(reported) > 1
    assert "events of the leader's rounds" in reported[-1]["exc_info"].__notes__[0]


class Moody:
    """Takes every replica as consistent, or raises."""

    raises = False

    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        """Return that it is, unless in the mood."""
        if self.raises:
            raise AssertionError("no idea")
        return True

    def standby_value(self, primary: Assignment) -> bytes:
        """Return the value unchanged."""
        return primary.kv.value


def _assigned(etcd: FakeEtcd, keys: Keys) -> int:
    return sum(key.startswith(keys.assignments_prefix) for key in etcd.store.kvs)


def test_leader_decides_nothing_while_its_own_writes_do_not_show() -> None:
    """Its key space stands still: what it did is not there to be seen, and would be done again, elsewhere perhaps."""

    async def perform_unseen() -> tuple[bool, bool]:
        etcd = FakeEtcd()
        keys = Keys("/simulated")
        key_space = KeySpace(etcd, keys, SimulatedDecoder())
        await key_space.load()
        runtime = Runtime(clock=VirtualClock(running_loop()))
        move_log = MoveLog(
            etcd,
            keys,
            member_id=MemberId("zone", "one"),
            policy=MoveLogPolicy(entries_max=0),
            clock=runtime.clock,
        )
        executor = Executor(
            etcd, key_space, move_log=move_log, runtime=runtime, on_progress=lambda: None
        )
        put = Put(keys.item(ItemId("item")), SimulatedItem(1).encoded())
        step = ConvergeStep(TxnCheckpoint((), (put,), subject="item"), ReplicaCounts(added=1))
        async with TaskGroup() as group:
            performing = group.start_soon(executor.perform((step,), Fence(1, ())), name="perform")
            await asyncio.sleep(60.0)
            unseen = performing.done()
            await key_space.load()
            await asyncio.sleep(1.0)
            seen = performing.done()
        return unseen, seen

    assert run_virtual(perform_unseen()) == (False, True)


def test_story_of_a_leader_at_rest_keeps_what_it_did() -> None:
    """Beats and rounds without anything to do go on for ever: they must not push out what a report is read for."""

    async def rest() -> tuple[str, str]:
        async with TaskGroup() as group:
            cluster = _new_cluster(group)
            leader = cluster.join()
            cluster.put_item(ItemId("item"), 1)
            await asyncio.sleep(3.0)
            other = cluster.join()
            await asyncio.sleep(600.0)
            told = leader.story(), other.story()
            cluster.shut_down()
        return told

    told, other = run_virtual(rest())

    assert "claim()" in told
    assert "own_epoch None → " in told
    assert "item added 1" in told
    assert "own_epoch None → " not in other
    assert "events of the leader's rounds" in other


def _epoch(cluster: Cluster) -> int:
    kv = cluster.etcd.store.kvs[AuxiliaryKeys(cluster.keys.root).epoch]
    record = decoded_or_none(kv.value, EpochRecord)
    assert record is not None
    return record.epoch
