"""An operator's choices, carried out by real sessions over a real etcd."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.key_space import ObserverStage
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.policy import AllocationPolicy, PrimaryPolicy, TransitionPolicy
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


@pytest.fixture
async def group() -> AsyncIterator[TaskGroup]:
    """A task group for members of the test; it must be empty of errors at the end."""
    async with TaskGroup() as tasks:
        yield tasks


def create(etcd: EtcdClient, root: str, name: str, policy: AllocationPolicy) -> JsonMemberProcess:
    """Make a member that goes by a policy."""
    zone, suffix = name.split("#")
    config = session_config(MemberId(zone, suffix), policy=policy)
    return JsonMemberProcess.create(etcd, root, name, config=config)


async def put_items(etcd: EtcdClient, root: str, count: int, *, replication: int) -> None:
    """Write items."""
    for number in range(count):
        await etcd.put(Keys(root).item(ItemId(f"item-{number}")), item_value(replication))


def replicas(member: JsonMemberProcess) -> Counter[str]:
    """Consistent replicas by member, by the mirror of one."""
    assignments = member.key_space.assignments.values()
    return Counter(str(a.member_id) for a in assignments if a.kv.value == CONSISTENT)


def primaries(member: JsonMemberProcess) -> Counter[str]:
    """Primaries by member, by the mirror of one."""
    return Counter(placed[0] for placed in member.placement().values())


async def test_policy_hand_overs_level_live_primaries_one_interval_apart(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """The first member has all primaries; standbys join on the second, and then primaries follow, one at a time."""
    policy = AllocationPolicy(
        transition=TransitionPolicy(settle_seconds=0.0),
        primaries=PrimaryPolicy(hand_over_above_spread=1, hand_over_interval_seconds=0.2),
    )
    first, second = (create(etcd, etcd_root, f"a#m{n}", policy) for n in range(2))
    await first.session.start(member_value(20))
    await put_items(etcd, etcd_root, 6, replication=2)
    async with running(group, first):
        await eventually(lambda: primaries(first) == {"a#m0": 6} and len(replicas(first)) == 1)
        await second.session.start(member_value(20))
        seen: list[int] = []
        first.key_space.observe(ObserverStage.WAKE, lambda: seen.append(primaries(first)["a#m1"]))
        async with running(group, second):
            await eventually(lambda: primaries(first) == {"a#m0": 4, "a#m1": 2}, message="levelled")

            assert max(b - a for a, b in pairwise(seen)) == 1
            assert replicas(first) == {"a#m0": 6, "a#m1": 6}


async def test_policy_balance_waits_until_membership_has_settled(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """A member joins: nothing moves for the time that was chosen, and then loads are level.

    Something is placed already, so that the leader does not take the cluster for one that is starting.
    """
    settle_seconds = 1.0
    policy = AllocationPolicy(transition=TransitionPolicy(settle_seconds=settle_seconds))
    first, second = (create(etcd, etcd_root, f"a#m{n}", policy) for n in range(2))
    await first.session.start(member_value(20))
    await put_items(etcd, etcd_root, 6, replication=1)
    await etcd.put(Keys(etcd_root).assignment(ItemId("former"), MemberId("a", "former"), 0), b"")
    loop = asyncio.get_running_loop()
    async with running(group, first):
        await eventually(lambda: replicas(first) == {"a#m0": 6})
        joined: list[float] = []

        def note_joining() -> None:
            # As the leader sees it: `start` may return a while later.
            if not joined and second.member_id in first.key_space.members:
                joined.append(loop.time())

        first.key_space.observe(ObserverStage.WAKE, note_joining)
        await second.session.start(member_value(20))
        async with running(group, second):
            await eventually(lambda: replicas(first) == {"a#m0": 3, "a#m1": 3})
            assert loop.time() - joined[0] >= 0.9 * settle_seconds


async def test_policy_patient_drain_goes_to_the_replacement_alone(
    etcd: EtcdClient, etcd_root: str, group: TaskGroup
) -> None:
    """Down first, then up: the leaving member keeps its items until another one joins, and that one gets them all."""
    policy = AllocationPolicy(
        transition=TransitionPolicy(settle_seconds=60.0, drain_patience_seconds=60.0)
    )
    members = [create(etcd, etcd_root, f"a#m{n}", policy) for n in range(3)]
    for member in members:
        await member.session.start(member_value(20))
    await put_items(etcd, etcd_root, 6, replication=1)
    replacement = create(etcd, etcd_root, "a#new", policy)
    leaving = members[1]
    async with running(group, *members):
        await eventually(lambda: set(replicas(members[0]).values()) == {2} and leaving.holds())
        before = [m.holds() for m in members]

        await leaving.session.update_member(member_value(20, exiting=True))
        await eventually(lambda: members[0].key_space.members[leaving.member_id].value.is_exiting())
        await replacement.session.start(member_value(20))
        async with running(group, replacement):
            await eventually(lambda: leaving.ended)

            assert replacement.holds() == before[1]
            assert [members[0].holds(), members[2].holds()] == [before[0], before[2]]
