"""Who goes first, how many go at a time, and what is said of those that wait."""

from __future__ import annotations

from dataclasses import replace

from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.allocator.ops import Put
from broadsheet.allocator.placement.primaries import HandOver
from broadsheet.allocator.placement.problem import Desired
from broadsheet.allocator.policy import TransitionPolicy
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, Capacity, WaitReason
from broadsheet.allocator.transition.converge import Convergence, ReplicaCounts, converge
from broadsheet.allocator.transition.item_step import PendingItem, charge, decide_item
from broadsheet.allocator.transition.membership_settling import Settling
from broadsheet.allocator.transition.replicas import ItemReplicas
from broadsheet.allocator.transition.schedule import Targets
from tests.support.memory_cluster import CONSISTENT, MemoryCluster, ValueConsistency

A1, A2, B1, B2 = (MemberId(name[0], name) for name in ("a1", "a2", "b1", "b2"))
I = ItemId("i")  # noqa: E741 - the one item of most tests


def cluster_of(*members: MemberId, limit: int = 8) -> MemoryCluster:
    """Members of one limit, no items."""
    cluster = MemoryCluster()
    for member_id in members or (A1, A2, B1, B2):
        cluster.put_member(member_id.zone, member_id.suffix, limit)
    return cluster


def put(cluster: MemoryCluster, item_id: str, replication: int, *assigned: str) -> ItemId:
    """An item, assigned like `a1#0`, with `?` at the end if not yet consistent."""
    cluster.put_item(item_id, replication)
    for each in assigned:
        suffix, slot = each.removesuffix("?").split("#")
        value = b"" if each.endswith("?") else CONSISTENT
        cluster.put_assignment(item_id, suffix[0], suffix, int(slot), value)
    return ItemId(item_id)


def once(
    cluster: MemoryCluster,
    desired: Desired,
    *,
    policy: TransitionPolicy | None = None,
    primaries: dict[ItemId, MemberId] | None = None,
    hand_overs: tuple[HandOver, ...] = (),
    hand_overs_allowed: int = 0,
    drains_waiting: frozenset[MemberId] = frozenset(),
) -> Convergence:
    """Decide once."""
    return converge(
        cluster.state(),
        Targets(
            desired=desired,
            policy=policy or TransitionPolicy(),
            primaries=primaries or {},
            hand_overs=hand_overs,
            hand_overs_allowed=hand_overs_allowed,
            drains_waiting=drains_waiting,
        ),
        consistency=ValueConsistency(),
        keys=cluster.keys,
    )


def subjects(convergence: Convergence) -> list[str]:
    """What steps are about, in their order."""
    return [step.checkpoint.subject for step in convergence.steps]


def why(convergence: Convergence) -> set[tuple[WaitReason, BlockedChange | None, MemberId | None]]:
    """What waits, without words."""
    return {(b.reason, b.change, b.member_id) for b in convergence.blocked}


def test_schedule_goes_by_risk_and_not_by_name() -> None:
    """Uncovered, under-replicated, single zone, draining, balance: whatever the items are called."""
    cluster = cluster_of()
    cluster.put_member("b", "b2", 8, exiting=True)
    desired = {
        put(cluster, "e-uncovered", 2): (A1, B1),
        put(cluster, "d-short", 2, "a1#0"): (A1, B1),
        put(cluster, "c-one-zone", 2, "a1#0", "a2#1"): (A1, B1),
        put(cluster, "b-draining", 2, "a1#0", "b2#1"): (A1, B1),
        put(cluster, "a-balance", 2, "a1#0", "b1#1"): (A2, B1),
    }

    found = subjects(once(cluster, desired))

    assert found == ["e-uncovered", "d-short", "c-one-zone", "b-draining", "a-balance"]


def test_schedule_scarce_room_goes_to_the_riskiest_item() -> None:
    """One place is left, two items want it: the one that has lost a replica gets it, though its name comes last."""
    cluster = cluster_of(A1, A2, limit=8)
    cluster.put_member("b", "b1", 1)
    desired = {
        put(cluster, "a", 1, "a1#0"): (B1,),
        put(cluster, "z", 2, "a1#0"): (A1, B1),
    }

    convergence = once(cluster, desired)

    assert subjects(convergence) == ["z"]
    assert (WaitReason.LIMIT, BlockedChange.ADD, B1) in why(convergence)
    assert convergence.adds_blocked == 1


def test_schedule_moves_are_limited_in_all_and_by_member_and_count_those_in_flight() -> None:
    """A move that has begun takes a turn until its new replica has caught up."""
    cluster = cluster_of()
    moving = put(cluster, "moving", 1, "a1#0", "b1#1?")
    desired: dict[ItemId, tuple[MemberId, ...]] = {moving: (B1,)}
    for number in range(4):
        target = B1 if number < 2 else B2
        desired[put(cluster, f"n{number}", 1, "a1#0")] = (target,)

    in_all = once(cluster, desired, policy=TransitionPolicy(moves_max=3))
    by_member = once(cluster, desired, policy=TransitionPolicy(moves_per_member_max=1))
    cluster.mark_consistent()
    later = once(cluster, desired, policy=TransitionPolicy(moves_max=3))

    assert subjects(in_all) == ["n0", "n1"]
    assert subjects(by_member) == ["n2"]
    assert (WaitReason.MOVE_BUDGET, BlockedChange.ADD, B1) in why(by_member)
    assert set(subjects(later)) == {"moving", "n0", "n1", "n2"}


def test_schedule_budget_never_holds_back_what_replaces_a_loss() -> None:
    """The budget is used up; items that lost a replica, or all, or keep one that has failed for long, get theirs."""
    cluster = cluster_of()
    desired = {
        put(cluster, "moving", 1, "a1#0", "b1#1?"): (B1,),
        put(cluster, "failed", 2, "a1#0", "b1#1?"): (A1, B2),
        put(cluster, "new", 2): (A1, B1),
        put(cluster, "short", 2, "a1#0"): (A1, B1),
        put(cluster, "waits", 1, "a1#0"): (A2,),
    }
    cluster.avoided = frozenset({(ItemId("failed"), B1)})

    convergence = once(
        cluster, desired, policy=TransitionPolicy(moves_max=1, moves_per_member_max=1)
    )

    assert subjects(convergence) == ["new", "failed", "short"]


def test_schedule_second_zone_comes_first_when_one_turn_is_left() -> None:
    """Of two additions the budget allows one: the one that takes the item out of its only zone."""
    cluster = cluster_of()
    item = put(cluster, I, 2, "a1#0", "a2#1")
    cluster.put_member("a", "a0", 8)

    convergence = once(
        cluster, {item: (MemberId("a", "a0"), B1)}, policy=TransitionPolicy(moves_max=1)
    )

    (step,) = convergence.steps
    assert cluster.keys.assignment(I, B1, 1) in [put.key for put in step.checkpoint.operations]


def test_schedule_election_follows_the_plan_unless_that_one_is_behind_or_leaves() -> None:
    """Planned first among consistent replicas that stay; else whoever can serve."""
    cluster = cluster_of()
    item = put(cluster, I, 3, "a1#1", "a2#2", "b1#3")
    desired = {item: (A1, A2, B1)}

    def elected() -> bytes:
        (step,) = once(cluster, desired, primaries={item: B1}).steps
        return next(op.key for op in step.checkpoint.operations if op.key.endswith(b"#0"))

    assert elected() == cluster.keys.assignment(I, B1, 0)
    cluster.put_assignment("i", "b", "b1", 3, b"")
    assert elected() == cluster.keys.assignment(I, A1, 0)
    cluster.put_assignment("i", "b", "b1", 3)
    cluster.put_member("b", "b1", 8, exiting=True)
    assert elected() == cluster.keys.assignment(I, A1, 0)


def test_schedule_nothing_is_added_to_a_member_that_leaves_while_there_is_another() -> None:
    """The plan is older than the wish to leave: it is not carried out there, unless nothing else serves the item."""
    cluster = cluster_of()
    desired = {put(cluster, "held", 2, "a1#0"): (A1, B1), put(cluster, "new", 2): (A2, B1)}
    cluster.put_member("b", "b1", 8, exiting=True)

    convergence = once(cluster, desired)

    added = [op.key for step in convergence.steps for op in step.checkpoint.operations]
    assert added == [cluster.keys.assignment(ItemId("new"), A2, 0)]
    assert (WaitReason.NO_MEMBER, BlockedChange.ADD, B1) in why(convergence)
    cluster.settling = Settling(
        policy=TransitionPolicy(settle_seconds=0.0, drain_patience_seconds=60.0)
    )
    assert subjects(once(cluster, {ItemId("held"): (A1,), ItemId("new"): (B1,)})) == ["new"]


def test_schedule_three_zones_are_kept_while_the_third_replacement_is_missing() -> None:
    """A third zone is protected as the second is: the item keeps what the plan gives it in the end."""
    cluster = cluster_of(A1, B1, B2)
    cluster.put_member("c", "c1", 8)
    cluster.put_member("c", "c2", 8)
    item = put(cluster, I, 3, "a1#0", "b1#1", "c1#2", "b2#3")
    # The fuller member is relieved first, if it may be.
    put(cluster, "other", 1, "c1#0")

    convergence = once(cluster, {item: (A1, B2, MemberId("c", "c2"))})

    (step,) = convergence.steps
    deleted = {op.key for op in step.checkpoint.operations if type(op).__name__ == "Delete"}
    assert cluster.keys.assignment(I, MemberId("c", "c1"), 2) not in deleted
    assert cluster.keys.assignment(I, B1, 1) in deleted
    assert (WaitReason.ZONE, BlockedChange.REMOVE, MemberId("c", "c1")) in why(convergence)


def test_blocked_tells_what_the_plan_itself_lacks() -> None:
    """Disabled, too few members, all full, no room in another zone, kept on members that leave: each by its name."""
    cluster = cluster_of(A1, A2, B1)
    put(cluster, "off", 0)
    put(cluster, "wide", 4, "a1#0", "a2#1", "b1#2")
    put(cluster, "full", 3, "a1#0", "b1#1")
    put(cluster, "flat", 2, "a1#0", "a2#1")
    put(cluster, "kept", 2, "a1#0", "b1#1")
    cluster.put_member("b", "b1", 8, exiting=True)
    desired = {
        ItemId("off"): (),
        ItemId("wide"): (A1, A2, B1),
        ItemId("full"): (A1, B1),
        ItemId("flat"): (A1, A2),
        ItemId("kept"): (A1, B1),
    }

    convergence = once(cluster, desired)
    patient = once(cluster, desired, drains_waiting=frozenset({B1}))

    found = {(b.item_id, b.reason) for b in convergence.blocked}
    assert found >= {
        ("off", WaitReason.DISABLED),
        ("wide", WaitReason.NO_MEMBER),
        ("full", WaitReason.LIMIT),
        ("flat", WaitReason.ZONE),
        ("kept", WaitReason.NO_MEMBER),
    }
    assert convergence.steps == ()
    assert ("kept", WaitReason.DRAIN_WAITS) in {(b.item_id, b.reason) for b in patient.blocked}


def test_blocked_removal_says_whether_a_zone_or_a_replica_is_missing() -> None:
    """The gate has two reasons to keep a replica, and each is told apart."""
    behind = cluster_of()
    put(behind, I, 2, "a1#0", "b1#1", "b2#2?")
    zone = cluster_of()
    put(zone, I, 2, "a1#0", "a2#1", "b1#2")
    put(zone, "other", 1, "b1#0")
    zone.put_member("b", "b2", 0)

    assert (WaitReason.STANDBY_NOT_CAUGHT_UP, BlockedChange.REMOVE, B1) in why(
        once(behind, {I: (A1, B2)})
    )
    assert (WaitReason.ZONE, BlockedChange.REMOVE, B1) in why(once(zone, {I: (A1, B2)}))


def hand_over(item_id: ItemId = I) -> HandOver:
    """From a1 to b1."""
    return HandOver(item_id, A1, B1)


def test_hand_over_exchanges_slots_in_one_transaction() -> None:
    """Old primary and standby trade slots; item, replicas and the new primary's member must be as they were seen."""
    cluster = cluster_of()
    put(cluster, I, 2, "a1#0", "b1#1")

    (step,) = once(cluster, {I: (A1, B1)}, hand_overs=(hand_over(),), hand_overs_allowed=1).steps
    compared = {compare.key for compare in step.checkpoint.compares}
    assert cluster.etcd.perform(step.checkpoint)

    assert cluster.placement() == {"i": [str(B1), str(A1)]}
    assert (step.counts.promoted, step.counts.packed, step.counts.handed_over) == (1, 1, 1)
    assert compared >= {
        cluster.keys.item(I),
        cluster.keys.member(B1),
        cluster.keys.assignment(I, A1, 0),
        cluster.keys.assignment(I, B1, 1),
    }
    assert once(cluster, {I: (A1, B1)}, hand_overs=(hand_over(),), hand_overs_allowed=1).steps == ()


def test_hand_over_waits_for_its_turn_for_its_standby_and_for_the_item_to_rest() -> None:
    """Never to a standby that is behind or leaves, never beside another change, never more than are allowed."""
    cluster = cluster_of()
    names = [put(cluster, f"n{n}", 2, "a1#0", "b1#1") for n in range(3)]
    behind = put(cluster, "behind", 2, "a1#0", "b1#1?")
    moving = put(cluster, "moving", 2, "a1#0", "b1#1")
    desired = {**dict.fromkeys([*names, behind], (A1, B1)), moving: (A1, B1, B2)}
    wishes = tuple(hand_over(item_id) for item_id in (moving, behind, *names))

    convergence = once(cluster, desired, hand_overs=wishes, hand_overs_allowed=2)

    assert subjects(convergence) == ["moving", "n0", "n1"]
    found = {
        (b.item_id, b.reason) for b in convergence.blocked if b.change is BlockedChange.HAND_OVER
    }
    assert found == {
        ("moving", WaitReason.HAND_OVER_WAITS),
        ("behind", WaitReason.STANDBY_NOT_CAUGHT_UP),
        ("n2", WaitReason.HAND_OVER_WAITS),
    }
    cluster.put_member("b", "b1", 8, exiting=True)
    leaving = once(cluster, {names[0]: (A1, B1)}, hand_overs=wishes, hand_overs_allowed=2)
    assert leaving.steps == ()


def test_schedule_of_open_items_alone_is_that_of_the_whole() -> None:
    """A snapshot may hold only the items that have something to do: sums are the state's, not of what is there."""
    cluster = cluster_of(limit=3)
    desired: dict[ItemId, tuple[MemberId, ...]] = {}
    for number in range(3):
        desired[put(cluster, f"rests{number}", 1, "b1#0")] = (B1,)
    moves = put(cluster, "moves", 1, "a1#0")
    desired[moves] = (B1,)
    whole = cluster.state()
    part = replace(
        whole,
        items={moves: whole.items[moves]},
        assignments={moves: whole.assignments[moves]},
        is_whole=False,
    )

    results = [
        converge(state, Targets(desired=desired), consistency=ValueConsistency(), keys=cluster.keys)
        for state in (whole, part)
    ]

    assert results[0] == results[1]
    assert results[0].blocked == (
        Blocked(
            item_id=moves,
            reason=WaitReason.LIMIT,
            change=BlockedChange.ADD,
            member_id=B1,
            detail="holds 3 of 3",
        ),
        Blocked(
            item_id=moves,
            reason=WaitReason.STANDBY_NOT_CAUGHT_UP,
            change=BlockedChange.REMOVE,
            member_id=A1,
            detail="0 of 1 others are consistent",
        ),
    )


def test_leaving_member_that_nobody_replaces_hands_its_primaries_over() -> None:
    """Its replica stays, for nobody else can take it; its primary goes to the standby that has caught up and stays, at
    once and without a turn. Not while the drain waits, and not where the standby is behind or leaves, too.
    """
    cluster = cluster_of()
    cluster.put_member("a", "a1", 8, exiting=True)
    put(cluster, I, 2, "a1#0", "b1#1")
    waiting = once(cluster, {I: (A1, B1)}, drains_waiting=frozenset({A1}))

    convergence = once(cluster, {I: (A1, B1)})

    assert waiting.steps == ()
    assert convergence.counts.handed_over == 1
    assert cluster.etcd.perform(convergence.steps[0].checkpoint)
    assert cluster.placement() == {"i": [str(B1), str(A1)]}
    assert once(cluster, {I: (A1, B1)}).steps == ()

    behind = put(cluster, "behind", 2, "a1#0", "b1#1?")
    assert once(cluster, {behind: (A1, B1)}).steps == ()
    both = put(cluster, "both", 2, "a1#0", "b1#1")
    cluster.put_member("b", "b1", 8, exiting=True)
    assert once(cluster, {both: (A1, B1)}).steps == ()


def test_item_is_decided_without_taking_what_it_needs() -> None:
    """The same question gets the same answer however often it is asked: capacity is taken when the step is charged, and
    only then is the member full for the next item.
    """
    cluster = cluster_of(A1, B1, limit=1)
    item_id = put(cluster, "i", 2)
    state = cluster.state()
    item = state.items[item_id]
    consistency = ValueConsistency()
    replicas = ItemReplicas.sort_out(state, item, desired=(A1, B1), consistency=consistency)
    pending = PendingItem(item=item, replicas=replicas, risk=replicas.risk(state))
    capacity = Capacity(state, TransitionPolicy())

    first, again = (decide_item(state, pending, capacity) for _ in range(2))

    assert first == again
    assert {(add.member_id, add.slot, add.is_move) for add in first.adds} == {
        (A1, 0, False),
        (B1, 1, False),
    }
    assert (capacity.total, capacity.primary) == ({A1: 0, B1: 0}, {A1: 0, B1: 0})
    charge(capacity, first)
    assert (capacity.total, capacity.primary) == ({A1: 1, B1: 1}, {A1: 1, B1: 0})
    refused = decide_item(state, pending, capacity)
    assert refused.is_idle
    assert [each.reason for each in refused.blocked] == [WaitReason.LIMIT, WaitReason.LIMIT]


def test_item_counts_its_own_moves_within_the_budget() -> None:
    """Two replicas should move, and one replaces a lost one: with one move allowed, the lost one is replaced and one is
    moved. Moves that are granted in one step count before that step is performed.
    """
    cluster = cluster_of()
    both = put(cluster, "both", 2, "a1#0", "a2#1")

    found = once(cluster, {both: (B1, B2)}, policy=TransitionPolicy(moves_max=1))

    assert [step.counts.added for step in found.steps] == [1]
    (waits,) = (each for each in found.blocked if each.reason is WaitReason.MOVE_BUDGET)
    assert waits.detail == "0 moves to it, 1 in all"

    short = put(cluster, "short", 3, "a1#0", "a2#1")
    found = once(cluster, {short: (B1, B2, A1)}, policy=TransitionPolicy(moves_max=1))
    assert [step.counts.added for step in found.steps] == [2], "one of them is no move"


def test_failed_primary_hands_over_to_a_ready_standby_where_the_plan_keeps_both() -> None:
    """A primary has failed for too long and there is no third member: the ready standby takes over, at once and without
    a turn, as long as nothing of the item is in motion. One that has not caught up does not.
    """
    cluster = cluster_of(A1, B1)
    i = put(cluster, "i", 2, "a1#0", "b1#1")
    cluster.put_assignment("i", "a", "a1", 0, b"failed")
    assert once(cluster, {i: (A1, B1)}).steps == ()
    cluster.avoided = frozenset({(i, A1)})

    (step,) = once(cluster, {i: (A1, B1)}).steps

    assert step.counts == ReplicaCounts(promoted=1, packed=1, handed_over=1)
    assert cluster.etcd.perform(step.checkpoint)
    group = cluster.state().assignments[i]
    assert {(a.member_id, a.slot) for a in group} == {(B1, 0), (A1, 1)}
    cluster.put_assignment("i", "b", "b1", 0, b"failed")
    cluster.put_assignment("i", "a", "a1", 1, b"")
    cluster.avoided = frozenset({(i, B1)})
    assert once(cluster, {i: (A1, B1)}).steps == ()


def test_failed_primary_does_not_wait_for_a_replica_that_finds_no_place() -> None:
    """A third replica is wanted and its member is full: the item waits for it, and must not stand still meanwhile."""
    cluster = cluster_of(A1, B1)
    cluster.put_member("b", "b2", 0)
    i = put(cluster, "i", 3, "a1#0", "b1#1")
    cluster.put_assignment("i", "a", "a1", 0, b"failed")
    cluster.avoided = frozenset({(i, A1)})

    (step,) = once(cluster, {i: (A1, B1, B2)}).steps

    assert step.counts.handed_over == 1


def test_primary_that_hands_over_is_given_the_value_of_a_standby() -> None:
    """What a primary said of itself is not true of the standby that it becomes, which would count as ready at once. The
    application knows what is, because values are its own.
    """
    cluster = cluster_of(A1, B1)
    i = put(cluster, "i", 2, "a1#0", "b1#1")

    class StartsOver(ValueConsistency):
        def standby_value(self, primary: Assignment) -> bytes:
            assert primary.slot == 0
            return b"starts over"

    (step,) = converge(
        cluster.state(),
        Targets(desired={i: (A1, B1)}, hand_overs=(HandOver(i, A1, B1),), hand_overs_allowed=1),
        consistency=StartsOver(),
        keys=cluster.keys,
    ).steps

    written = {put.key: put.value for put in step.checkpoint.operations if isinstance(put, Put)}
    assert written == {
        cluster.keys.assignment(i, A1, 1): b"starts over",
        cluster.keys.assignment(i, B1, 0): CONSISTENT,
    }
