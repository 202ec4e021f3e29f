"""What leaves a draining member, and what is said of the rest."""

from __future__ import annotations

import pytest

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.certificate import verify
from broadsheet.allocator.placement.plan import PlanRefused
from broadsheet.allocator.placement.problem import Problem, ProblemItem, ProblemMember
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, WaitReason
from broadsheet.allocator.whatif.causes import CauseFinder
from broadsheet.allocator.whatif.explain import explain
from broadsheet.allocator.whatif.leader_snapshot import Hypothesis
from broadsheet.allocator.whatif.preview import preview_plan
from tests.support.leader_snapshots import leader_snapshot_of
from tests.support.memory_cluster import MemoryCluster

ONE, TWO, THREE = (MemberId("a", name) for name in ("one", "two", "three"))
WIDE = ItemId("wide")


def _with_a_wide_item() -> MemoryCluster:
    """Three members of one zone; thirty items that need one of them, and one that needs all three."""
    cluster = MemoryCluster()
    for member_id in (ONE, TWO, THREE):
        cluster.put_member(member_id.zone, member_id.suffix, 40)
    for number in range(30):
        cluster.put_item(f"i{number:02}", 1)
    cluster.put_item(WIDE, 3)
    cluster.settle()
    return cluster


def test_wide_item_holds_back_its_own_replica_and_no_other() -> None:
    """One item that wants every member must not keep 10 others on a member that leaves: each decides for itself."""
    cluster = _with_a_wide_item()

    cluster.put_member("a", "one", 40, exiting=True)
    cluster.settle()

    state = cluster.state()
    held = [i for i, group in state.assignments.items() if ONE in {a.member_id for a in group}]
    assert held == [WIDE]
    assert (state.loads.total[TWO], state.loads.total[THREE]) == (16, 16)


def test_proposal_and_explanation_tell_which_item_holds_a_drain_back() -> None:
    """`plan --drain` names the wide item alone as what waits, and `explain` says of it what is the case."""
    cluster = _with_a_wide_item()

    proposal = preview_plan(leader_snapshot_of(cluster), Hypothesis(drained=frozenset({ONE})))

    assert not isinstance(proposal, PlanRefused)
    assert proposal.dry_run.final.loads.total[ONE] == 1
    stuck = proposal.dry_run.stuck
    assert [(each.item_id, each.member_id, each.reason) for each in stuck] == [
        (WIDE, ONE, WaitReason.NO_MEMBER)
    ]
    told = "the plan keeps it; other members: 2 with another replica of it"
    assert stuck[0].detail == told
    cluster.put_member("a", "one", 40, exiting=True)
    cluster.settle()
    explanation = explain(leader_snapshot_of(cluster), WIDE)
    assert explanation is not None
    assert [each.detail for each in explanation.blocked] == [told]
    why = {each.member_id: each.why for each in explanation.replicas}
    assert (
        why[ONE] == "its member is exiting; it stays; other members: 2 with another replica of it"
    )


def test_kept_replicas_say_what_stops_each_other_member() -> None:
    """Of three other members one is full, one holds the item's other replica, and one is in that replica's zone."""
    cluster = MemoryCluster()
    one, full, far = MemberId("b", "one"), MemberId("b", "full"), MemberId("a", "far")
    for member_id, limit in ((one, 9), (full, 2), (far, 20), (MemberId("a", "near"), 20)):
        cluster.put_member(member_id.zone, member_id.suffix, limit)
    for number in range(6):
        cluster.put_item(f"i{number}", 2)
    cluster.settle()

    proposal = preview_plan(leader_snapshot_of(cluster), Hypothesis(drained=frozenset({one})))

    assert not isinstance(proposal, PlanRefused)
    told = (
        "the plan keeps it; other members: 1 with another replica of it, 1 at the limit, "
        "1 where it would span fewer zones"
    )
    stuck = [(each.reason, each.member_id, each.detail) for each in proposal.dry_run.stuck]
    assert stuck == [(WaitReason.NO_MEMBER, one, told)] * 4


def test_causes_beyond_the_bound_are_left_to_explain() -> None:
    """A large cluster may hold back a drain for thousands of replicas: some are tried, the others say where to ask."""
    cluster = _with_a_wide_item()
    cluster.put_item("as-wide", 3)
    cluster.settle()
    cluster.put_member("a", "one", 40, exiting=True)
    state = cluster.state()
    kept = tuple(
        Blocked(
            item_id=ItemId(item_id),
            reason=WaitReason.NO_MEMBER,
            change=BlockedChange.REMOVE,
            member_id=ONE,
            detail="kept",
        )
        for item_id in ("as-wide", "wide")
    )
    planned = {i: tuple(a.member_id for a in group) for i, group in state.assignments.items()}
    finder = CauseFinder(state.problem(), planned, trials_max=1)

    for _ in range(2):
        assert [each.detail for each in finder.explained(kept)] == [
            "kept; other members: 2 with another replica of it",
            "kept; `explain` tells the cause",
        ]


def test_another_member_ends_a_drain_that_a_wide_item_held_back() -> None:
    """Once somebody joins who can take the last replica, nothing is left on the member that leaves."""
    cluster = _with_a_wide_item()
    cluster.put_member("a", "one", 40, exiting=True)
    cluster.settle()

    cluster.put_member("a", "four", 40)
    cluster.settle()

    assert cluster.state().loads.total[ONE] == 0


def test_scarce_room_empties_the_oldest_of_the_leaving_members() -> None:
    """Twelve items, two members that leave and room for nine: the older is emptied, the younger keeps what is left."""
    cluster = MemoryCluster()
    for member_id, limit in ((TWO, 6), (ONE, 6), (THREE, 9)):
        cluster.put_member(member_id.zone, member_id.suffix, limit)
    for number in range(12):
        cluster.put_item(f"i{number:02}", 1)
    cluster.settle()

    for suffix in ("two", "one"):
        cluster.put_member("a", suffix, 6, exiting=True)
    cluster.settle()

    total = cluster.state().loads.total
    assert (total[TWO], total[ONE], total[THREE]) == (0, 3, 9)


@pytest.mark.parametrize("drain_cost", [0, 1], ids=["waits", "drains"])
def test_verifier_refuses_a_replica_that_could_leave_a_draining_member(drain_cost: int) -> None:
    """A member that could take it has room: a drained one must not keep it, one whose drain waits may."""
    problem = Problem(
        members=(
            ProblemMember(member_id=ONE, limit=9, exiting=True, drain_cost=drain_cost),
            ProblemMember(member_id=TWO, limit=9, exiting=False),
        ),
        items=(ProblemItem(item_id=ItemId("i"), replication=1, current=(ONE,), primary=ONE),),
    )

    found = [str(each) for each in verify(problem, {ItemId("i"): (ONE,)})]

    assert any("is drained, a#two has room" in each for each in found) == bool(drain_cost)
