"""A proposal says what a change would do, without doing it; what is then done is what it said."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

import pytest

from broadsheet.allocator.model import Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.placement.plan import PlanRefused
from broadsheet.allocator.policy import AllocationPolicy, PrimaryPolicy, TransitionPolicy
from broadsheet.allocator.transition.capacity import WaitReason
from broadsheet.allocator.whatif.dry_run import DryRunAbandonedError, ReplicaChangeKind
from broadsheet.allocator.whatif.leader_snapshot import Hypothesis
from broadsheet.allocator.whatif.preview import PlanPreview, preview_plan
from tests.support.leader_snapshots import leader_snapshot_of
from tests.support.memory_cluster import AT_ONCE, JsonItem, JsonMember, MemoryCluster

A1, A2, B1, B2 = (MemberId(name[0], name) for name in ("a1", "a2", "b1", "b2"))


def _settled(items: int = 12) -> MemoryCluster:
    cluster = MemoryCluster()
    for member_id in (A1, A2, B1, B2):
        cluster.put_member(member_id.zone, member_id.suffix, 20)
    for number in range(items):
        cluster.put_item(f"i{number:02}", 2)
    cluster.settle()
    return cluster


def _proposed(
    cluster: MemoryCluster, hypothesis: Hypothesis, policy: AllocationPolicy | None = None
) -> PlanPreview:
    proposal = preview_plan(leader_snapshot_of(cluster, policy=policy), hypothesis)
    assert not isinstance(proposal, PlanRefused)
    return proposal


def _no_key(key: bytes) -> KeyValue:
    return KeyValue(key=key, value=b"", create_revision=0, mod_revision=0, version=0, lease=0)


def test_settled_cluster_has_nothing_to_do() -> None:
    """Without a change nothing would happen, and nothing waits."""
    proposal = _proposed(_settled(), Hypothesis())

    assert not proposal.dry_run.changes
    assert not proposal.dry_run.waits


def test_drain_says_every_move_and_the_cluster_then_does_exactly_that() -> None:
    """What is proposed for a drain is compared, replica by replica, with what the drain does."""
    cluster = _settled()
    revision = cluster.etcd.revision

    proposal = _proposed(cluster, Hypothesis(drained=frozenset({A1})))

    assert cluster.etcd.revision == revision, "planning writes nothing"
    cluster.put_member("a", "a1", 20, exiting=True)
    cluster.settle()
    after = {(a.item_id, a.member_id) for g in cluster.state().assignments.values() for a in g}
    final = proposal.dry_run.final
    assert {(a.item_id, a.member_id) for g in final.assignments.values() for a in g} == after
    assert cluster.state().loads.total[A1] == 0
    moved = Counter(each.kind for each in proposal.dry_run.changes)
    assert moved[ReplicaChangeKind.ADD] == moved[ReplicaChangeKind.REMOVE] == 6


def test_drain_adds_before_it_removes() -> None:
    """For each shard the new replica comes rounds before the old one goes."""
    proposal = _proposed(_settled(), Hypothesis(drained=frozenset({A1})))

    rounds: dict[tuple[str, ReplicaChangeKind], int] = {
        (each.item_id, each.kind): each.round for each in proposal.dry_run.changes
    }
    items = {item_id for item_id, _ in rounds}
    assert items
    assert all(
        rounds[i, ReplicaChangeKind.ADD] < rounds[i, ReplicaChangeKind.REMOVE] for i in items
    )


def test_hypothetical_member_takes_its_share_but_cannot_be_applied() -> None:
    """`--add` shows what balance would move to a member that is not there."""
    cluster = _settled()
    joined = Member(
        member_id=MemberId("b", "b3"), value=JsonMember(20), kv=_no_key(b"/cluster/members/b#b3")
    )

    proposal = _proposed(cluster, Hypothesis(joined=(joined,)))

    (load,) = [each for each in proposal.loads if each.member_id == joined.member_id]
    assert (load.replicas_before, load.replicas_after) == (0, 4)
    assert not proposal.can_be_applied


def test_new_and_deleted_shards_are_planned() -> None:
    """A spec that is added is placed; one that is deleted loses its replicas."""
    cluster = _settled()
    new = Item(item_id=ItemId("new"), value=JsonItem(2), kv=_no_key(b"/cluster/items/new"))

    proposal = _proposed(cluster, Hypothesis(changed=(new,), deleted=frozenset({ItemId("i00")})))

    happened = Counter((each.item_id, each.kind) for each in proposal.dry_run.changes)
    assert happened[ItemId("new"), ReplicaChangeKind.ADD] == 2
    assert happened[ItemId("i00"), ReplicaChangeKind.REMOVE] == 2


def test_budget_spreads_a_drain_over_rounds_and_says_what_waits() -> None:
    """With one move at a time, six moves take six turns, and five of them wait at first."""
    policy = AllocationPolicy(transition=TransitionPolicy(moves_max=1, settle_seconds=0.0))

    proposal = _proposed(_settled(), Hypothesis(drained=frozenset({A1})), policy)

    added = Counter(e.round for e in proposal.dry_run.changes if e.kind is ReplicaChangeKind.ADD)
    assert set(added.values()) == {1}
    assert len(added) == 6
    assert len(proposal.dry_run.waits) >= 5
    assert not proposal.dry_run.stuck


def test_dry_run_of_a_throttled_drain_costs_what_is_drained_and_not_all_there_is() -> None:
    """Six replicas move, one at a time, in a dozen rounds: with twenty times as many items at rest, the calls made are
    less than five times as many, for all but the first and the last look are at what moves.
    """
    policy = AllocationPolicy(transition=TransitionPolicy(moves_max=1, settle_seconds=0.0))
    calls = {items: _calls_of_a_drain(items, policy) for items in (12, 240)}

    assert calls[240] < 5 * calls[12]


def _calls_of_a_drain(items: int, policy: AllocationPolicy) -> int:
    """Return how many functions are called to preview the drain of a member with six replicas, among more items."""
    cluster = _settled(12)
    for member_id in (A2, B1, B2):
        cluster.put_member(member_id.zone, member_id.suffix, 2 * items)
    for number in range(12, items):
        cluster.put_item(f"i{number:03}", 2)
        cluster.put_assignment(f"i{number:03}", "a", "a2", 0)
        cluster.put_assignment(f"i{number:03}", "b", ("b1", "b2")[number % 2], 1)
    leader = leader_snapshot_of(cluster, policy=policy)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        proposal = preview_plan(leader, Hypothesis(drained=frozenset({A1})))
    finally:
        sys.setprofile(None)
    assert not isinstance(proposal, PlanRefused)
    happened = Counter(each.kind for each in proposal.dry_run.changes)
    assert happened[ReplicaChangeKind.ADD] == 6
    return calls


def test_hand_overs_are_simulated_once_all_else_is_done() -> None:
    """All primaries stand on one member, and a drain is asked for: primaries are handed over after it, until level."""
    cluster = MemoryCluster()
    for member_id in (A1, A2, B1):
        cluster.put_member(member_id.zone, member_id.suffix, 20)
    for number in range(8):
        cluster.put_item(f"i{number}", 2)
        cluster.put_assignment(f"i{number}", "a", "a1", 0)
        cluster.put_assignment(f"i{number}", "b", "b1", 1)
    policy = AllocationPolicy(transition=AT_ONCE, primaries=PrimaryPolicy(hand_over_above_spread=2))

    proposal = _proposed(cluster, Hypothesis(drained=frozenset({A2})), policy)

    happened = proposal.dry_run.changes
    handed_over = [each for each in happened if each.kind is ReplicaChangeKind.HAND_OVER]
    assert len(handed_over) == 4
    assert {(each.from_member, each.member_id) for each in handed_over} == {(A1, B1)}
    assert len({each.round for each in handed_over}) == 4, "one at a time is the default"
    loads = {each.member_id: each for each in proposal.loads}
    assert (loads[A1].primaries_before, loads[A1].primaries_after) == (8, 4)
    assert not proposal.dry_run.stuck


def test_dry_run_that_nobody_waits_for_ends() -> None:
    """Whoever asked went away: the thread is not kept busy."""
    answers = iter((True, False))

    with pytest.raises(DryRunAbandonedError):
        preview_plan(
            leader_snapshot_of(_settled()),
            Hypothesis(drained=frozenset({A1})),
            is_wanted=lambda: next(answers),
        )


def test_what_will_never_fit_is_stuck() -> None:
    """More replicas are wanted than members: that is told as waiting for ever."""
    cluster = _settled(items=2)
    cluster.put_item("wide", 5)

    proposal = _proposed(cluster, Hypothesis())

    assert {each.item_id for each in proposal.dry_run.stuck} == {ItemId("wide")}


def test_same_question_gives_the_same_plan() -> None:
    """An id stands for one plan: asked twice, it is the same; for another drain it is another."""
    cluster = _settled()

    first, second, other = (
        _proposed(cluster, Hypothesis(drained=frozenset({member_id}))).id
        for member_id in (A1, A1, A2)
    )

    assert first == second
    assert other != first


def test_plan_names_the_moves_that_settling_delays() -> None:
    """A member has joined: nothing moves to it yet, and the plan says what will, and how long that may take at most."""
    cluster = _settled()
    cluster.put_member("a", "a9", 100)

    dry_run = _proposed(cluster, Hypothesis(), AllocationPolicy()).dry_run

    assert not dry_run.changes
    assert {each.reason for each in dry_run.waits} == {WaitReason.SETTLING}
    assert {each.member_id for each in dry_run.waits} == {MemberId("a", "a9")}
    assert dry_run.waits[0].detail.endswith("600 s more at most")
