"""Which replica becomes primary, and which live ones are handed over."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.plan import Plan, plan_for
from broadsheet.allocator.placement.primaries import (
    HAND_OVERS_LISTED_MAX,
    HandOver,
    plan_primaries,
    primary_spread,
    wanted_hand_overs,
)
from broadsheet.allocator.placement.problem import Problem, ProblemItem, ProblemMember
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import PrimaryPolicy
from tests.support.memory_cluster import MemoryCluster

A, B, C = (MemberId(zone, zone) for zone in "abc")
ELECT_ONLY = PrimaryPolicy()
LEVEL = PrimaryPolicy(hand_over_above_spread=1)


def members(*capacities: int, exiting: MemberId | None = None) -> tuple[ProblemMember, ...]:
    """Members a, b, c with these capacities."""
    return tuple(
        ProblemMember(
            member_id=member_id, limit=1000, exiting=member_id == exiting, capacity=capacity
        )
        for member_id, capacity in zip((A, B, C), capacities, strict=False)
    )


def item(name: str, *current: MemberId, primary: MemberId | None = None) -> ProblemItem:
    """An item on these members."""
    return ProblemItem(
        item_id=ItemId(name), replication=len(current), current=current, primary=primary
    )


def staying(*items: ProblemItem) -> dict[ItemId, tuple[MemberId, ...]]:
    """The placement that leaves everything where it is."""
    return {each.item_id: each.current for each in items}


def test_primaries_900_items_of_three_on_nine_members_are_100_each() -> None:
    """The model elects the first of each item in order of members, and leaves six of nine members without a primary."""
    nine = tuple(
        ProblemMember(member_id=MemberId(zone, f"{zone}{n}"), limit=1000, exiting=False)
        for zone in "abc"
        for n in range(3)
    )
    problem = Problem(
        members=nine,
        items=tuple(
            ProblemItem(item_id=ItemId(f"i{n:03}"), replication=3, current=(), primary=None)
            for n in range(900)
        ),
    )
    desired = FlowSolver().solve(problem)

    primaries = plan_primaries(problem, desired, policy=ELECT_ONLY)

    assert all(primaries[item_id] in placed for item_id, placed in desired.items())
    counts = Counter(primaries.values())
    assert all(99 <= counts[member.member_id] <= 101 for member in nine)
    assert primary_spread(nine, counts) <= 1


def test_primaries_follow_capacities() -> None:
    """A member that carries three times as much is primary of three times as many."""
    items = [item(f"i{n}", A, B) for n in range(8)]
    desired = staying(*items)
    fresh = tuple(replace(each, current=()) for each in items)

    primaries = plan_primaries(
        Problem(members=members(30, 10), items=fresh), desired, policy=ELECT_ONLY
    )

    assert Counter(primaries.values()) == {A: 6, B: 2}
    assert primary_spread(members(30, 10), Counter(primaries.values())) == 0


def test_primaries_live_ones_stay_and_elections_make_up_for_them() -> None:
    """Four live primaries on one member stay; four new items get theirs on the other."""
    live = [item(f"live{n}", A, B, primary=A) for n in range(4)]
    new = [replace(item(f"new{n}", A, B), current=()) for n in range(4)]
    desired = {each.item_id: (A, B) for each in live + new}

    primaries = plan_primaries(
        Problem(members=members(1, 1), items=(*live, *new)), desired, policy=ELECT_ONLY
    )

    assert {primaries[each.item_id] for each in live} == {A}
    assert {primaries[each.item_id] for each in new} == {B}


def test_primaries_lost_one_is_followed_by_a_replica_that_is_there() -> None:
    """A replica yet to be made cannot take over at once, however few primaries its member has."""
    lost = item("lost", A)
    busy = [item(f"busy{n}", A, primary=A) for n in range(5)]
    desired = staying(lost, *busy) | {lost.item_id: (A, B)}

    primaries = plan_primaries(
        Problem(members=members(1, 1), items=(*busy, lost)), desired, policy=ELECT_ONLY
    )

    assert primaries[lost.item_id] == A


def test_primaries_leaving_one_may_be_followed_by_a_replica_yet_to_come() -> None:
    """A primary that is drained serves until its replacement is ready, so that one may be elected."""
    leaving = item("leaving", A, C, primary=C)
    busy = [item(f"busy{n}", A, primary=A) for n in range(2)]
    desired = staying(leaving, *busy) | {leaving.item_id: (A, B)}

    primaries = plan_primaries(
        Problem(members=members(1, 1, 1), items=(*busy, leaving)), desired, policy=ELECT_ONLY
    )

    assert primaries[leaving.item_id] == B


def test_primaries_exiting_and_failing_replicas_come_last() -> None:
    """They are elected only where there is nothing else."""
    torn = replace(item("torn", A, B, C), avoided=(A,))
    alone = item("alone", B)
    problem = Problem(members=members(1, 1, 1, exiting=B), items=(alone, torn))

    primaries = plan_primaries(problem, staying(torn, alone), policy=ELECT_ONLY)

    assert primaries == {torn.item_id: C, alone.item_id: B}


def test_hand_overs_are_wanted_only_above_the_spread() -> None:
    """Six primaries against two: a spread of four is too much for one policy and not for another."""
    items = [item(f"a{n}", A, B, primary=A) for n in range(6)]
    items += [item(f"b{n}", A, B, primary=B) for n in range(2)]
    problem, desired = Problem(members=members(1, 1), items=tuple(items)), staying(*items)

    def wanted(above: int) -> list[HandOver]:
        policy = PrimaryPolicy(hand_over_above_spread=above)
        return list(wanted_hand_overs(problem, desired, policy=policy))

    assert wanted(0) == wanted(4) == []
    found = wanted(3)
    assert len({each.item_id for each in found}) == 2
    assert {(each.from_member, each.to_member) for each in found} == {(A, B)}


def test_hand_overs_come_most_useful_first_and_few_at_a_time() -> None:
    """What relieves the fullest in favour of the emptiest comes before what gains less; the list has an end."""
    items = [item(f"ab{n:03}", A, B, primary=A) for n in range(90)]
    items += [item(f"bc{n:03}", B, C, primary=B) for n in range(30)]
    problem = Problem(members=members(1, 1, 1), items=tuple(items))

    found = wanted_hand_overs(problem, staying(*items), policy=LEVEL)

    assert len(found) == HAND_OVERS_LISTED_MAX
    # A has 90, B 30, C 0: a hand-over from A to B gains twice as much as one from B to C, until B has filled up.
    assert (found[0].from_member, found[0].to_member) == (A, B)
    assert {(each.from_member, each.to_member) for each in found} == {(A, B), (B, C)}


def test_hand_overs_need_a_replica_that_is_there() -> None:
    """A replica that the placement wants but that is yet to be made is handed nothing."""
    items = [item(f"i{n}", A, primary=A) for n in range(4)]
    problem = Problem(members=members(1, 1), items=tuple(items))

    assert not wanted_hand_overs(problem, {each.item_id: (A, B) for each in items}, policy=LEVEL)


def test_plan_names_a_primary_of_every_item_that_has_replicas() -> None:
    """What converging elects by is part of the plan, and is kept with it."""
    cluster = MemoryCluster()
    for name in "ab":
        cluster.put_member(name, name, 10)
    for number in range(6):
        cluster.put_item(f"i{number}", 2)
    cluster.put_item("off", 0)
    state = cluster.state()

    plan = plan_for(state, None, FlowSolver())

    assert isinstance(plan, Plan)
    assert Counter(plan.primaries.values()) == {A: 3, B: 3}
    assert "off" not in plan.primaries
    assert plan_for(state, plan, FlowSolver()) is plan
