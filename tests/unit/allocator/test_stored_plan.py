"""What a leader leaves for the next one: enough to go on, and not trusted blindly."""

from __future__ import annotations

from dataclasses import replace

from broadsheet.allocator.leader.decision import stored_plan_of, taken_up
from broadsheet.allocator.leader.stored_plan import (
    PLAN_BYTES_MAX,
    StoredPlan,
    digest,
    pack,
    plan_to_store,
    unpack_or_none,
)
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.plan import Plan
from tests.support.memory_cluster import MemoryCluster

ONE, TWO, THREE = (MemberId("a", name) for name in ("one", "two", "three"))


def cluster_in_motion() -> MemoryCluster:
    """Three members, four items of one replica, of which two should move to the third member."""
    cluster = MemoryCluster()
    for member in (ONE, TWO, THREE):
        cluster.put_member("a", member.suffix, 8)
    for number in range(4):
        cluster.put_item(f"i{number}", 1)
        cluster.put_assignment(f"i{number}", "a", "one" if number < 2 else "two", 0)
    return cluster


DESIRED = {
    ItemId("i0"): (ONE,),
    ItemId("i1"): (THREE,),
    ItemId("i2"): (TWO,),
    ItemId("i3"): (THREE,),
}
PRIMARIES = {item_id: members[0] for item_id, members in DESIRED.items()}


def test_stored_plan_packed_and_taken_up_is_the_same_placement() -> None:
    """Only the two moves are stored; the successor gets all of it back, also after one of them was carried out."""
    cluster = cluster_in_motion()
    state = cluster.state()
    stored = plan_to_store(state, state.demand(), DESIRED, PRIMARIES)

    found = unpack_or_none(pack(stored))

    assert found is not None
    assert set(found.pending) == set(found.primaries) == {"i1", "i3"}
    cluster.put_assignment("i1", "a", "three", 1)
    later = cluster.state()
    assert found.desired(later) == DESIRED
    assert found.planned_primaries(later) == PRIMARIES
    plan = taken_up(found, later)
    assert plan is not None
    assert plan.desired == DESIRED


def test_gap_of_a_stored_plan_is_told_by_the_next_leader() -> None:
    """A placement that is not proven best: the successor says so too, without a solve. None stored is 0."""
    state = cluster_in_motion().state()
    plan = Plan(state.demand(), DESIRED, primaries=PRIMARIES, gap=0.125)

    found = unpack_or_none(pack(stored_plan_of(state, plan)))
    older = unpack_or_none(pack(plan_to_store(state, plan.demand, plan.desired, plan.primaries)))

    assert found is not None
    assert older is not None
    later = taken_up(found, state)
    assert later is not None
    assert later.gap == plan.gap
    earlier = taken_up(older, state)
    assert earlier is not None
    assert earlier.gap == 0.0


def test_stored_plan_for_another_demand_is_not_taken_up() -> None:
    """An item more, or a member less: what was planned answers another question."""
    cluster = cluster_in_motion()
    state = cluster.state()
    stored = plan_to_store(state, state.demand(), DESIRED, {})
    assert taken_up(stored, state) is not None

    cluster.put_item("i4", 1)

    assert taken_up(stored, cluster.state()) is None


def test_stored_plan_that_no_longer_covers_is_not_taken_up() -> None:
    """A replica that was in place was deleted since: taking that for the plan would leave its item without one."""
    cluster = cluster_in_motion()
    state = cluster.state()
    stored = plan_to_store(state, state.demand(), DESIRED, {})

    cluster.etcd.delete(cluster.keys.assignment(ItemId("i0"), ONE, 0))

    assert taken_up(stored, cluster.state()) is None


def test_stored_plan_spoilt_is_no_plan() -> None:
    """Truncated bytes, foreign bytes, and positions beyond the members are all refused."""
    state = cluster_in_motion().state()
    stored = plan_to_store(state, state.demand(), DESIRED, {})

    assert unpack_or_none(pack(stored)[:-3]) is None
    assert unpack_or_none(b"neither") is None


def test_digest_is_of_the_demand_alone() -> None:
    """Equal demands have one digest, whatever order a set has; each field counts."""
    demand = cluster_in_motion().state().demand()
    avoided = frozenset((ItemId(f"i{n}"), ONE) for n in range(9))
    one, other = (
        replace(demand, avoided=avoided),
        replace(demand, avoided=frozenset(sorted(avoided))),
    )

    assert digest(one) == digest(other) != digest(demand)
    assert digest(replace(demand, items=demand.items[:-1])) != digest(demand)
    assert digest(replace(demand, members=demand.members[:-1])) != digest(demand)
    objective = replace(demand.objective, moves_before_balance=True)
    assert digest(replace(demand, objective=objective)) != digest(demand)


def test_packed_plan_of_many_times_its_length_is_no_plan() -> None:
    """A megabyte of stored bytes can stand for a gigabyte of memory. What is above the bound is not unpacked: the bytes
    here are a plan in every other respect.
    """
    stored = StoredPlan(demand="d" * (PLAN_BYTES_MAX + 1), members=[], pending={}, primaries={})

    assert unpack_or_none(pack(stored)) is None
