"""Each reason why a shard's change waits is named in a scenario built for it."""

from __future__ import annotations

from dataclasses import replace

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.policy import AllocationPolicy, PrimaryPolicy, TransitionPolicy
from broadsheet.allocator.transition.capacity import WaitReason
from broadsheet.allocator.transition.membership_settling import Settling
from broadsheet.allocator.whatif.explain import Explanation, explain
from broadsheet.allocator.whatif.leader_snapshot import LeaderSnapshot
from tests.support.leader_snapshots import leader_snapshot_of
from tests.support.memory_cluster import AT_ONCE, MemoryCluster

A1, A2, B1, B2 = (MemberId(name[0], name) for name in ("a1", "a2", "b1", "b2"))


def _cluster(*members: MemberId, limit: int = 10) -> MemoryCluster:
    cluster = MemoryCluster()
    for member_id in members or (A1, A2, B1, B2):
        cluster.put_member(member_id.zone, member_id.suffix, limit)
    return cluster


def _put(
    cluster: MemoryCluster, item_id: str, *members: MemberId, replication: int | None = None
) -> None:
    cluster.put_item(item_id, len(members) if replication is None else replication)
    for slot, member_id in enumerate(members):
        cluster.put_assignment(item_id, member_id.zone, member_id.suffix, slot)


def _with_plan(leader: LeaderSnapshot, **desired: tuple[MemberId, ...]) -> LeaderSnapshot:
    wanted = {ItemId(item_id): members for item_id, members in desired.items()}
    return replace(leader, plan=Plan(leader.state().demand(), wanted))


def _explained(leader: LeaderSnapshot, item_id: str = "i") -> Explanation:
    explanation = explain(leader, ItemId(item_id))
    assert explanation is not None
    return explanation


def _reasons(explanation: Explanation) -> set[WaitReason]:
    return {each.reason for each in explanation.blocked}


def test_item_at_rest_waits_for_nothing() -> None:
    """All is as it should be: each replica says that it stays."""
    cluster = _cluster(A1, B1)
    _put(cluster, "i", A1, B1)

    explanation = _explained(leader_snapshot_of(cluster))

    assert not explanation.blocked
    assert [each.desired for each in explanation.replicas] == [True, True]
    assert explanation.risk == "balance"


def _why(explanation: Explanation) -> dict[MemberId, str]:
    return {each.member_id: each.why for each in explanation.replicas}


def test_replica_that_stays_says_what_keeps_it_from_each_other_member() -> None:
    """Of three others one holds its standby, one is full, and one stands in the standby's zone."""
    cluster = _cluster(A1, B1, B2)
    cluster.put_member("a", "a2", 1)
    _put(cluster, "h", A2)
    _put(cluster, "i", A1, B1)

    why = _why(_explained(_with_plan(leader_snapshot_of(cluster), h=(A2,), i=(A1, B1))))

    assert why[A1] == (
        "it is primary; it stays; other members: 1 with another replica of it, 1 at the limit, "
        "1 where it would span fewer zones"
    )


def test_replica_that_goes_says_what_is_better_elsewhere() -> None:
    """Both replicas are in one zone, and there is another; or all are wanted no more."""
    cluster = _cluster(A1, A2, B1)
    _put(cluster, "i", A1, A2)
    cluster.put_item("none", 0)
    cluster.put_assignment("none", "a", "a1", 0)

    (going,) = [
        w for m, w in _why(_explained(leader_snapshot_of(cluster))).items() if "it goes" in w
    ]

    assert going == (
        "it goes; 2 of 2 wanted replicas are planned, none of them here: "
        "instead of b#b1 this would be a member where it would span fewer zones"
    )
    assert (
        _why(_explained(leader_snapshot_of(cluster), "none"))[A1]
        == "it is primary; it goes: no replica is wanted"
    )


def test_unknown_item_has_no_explanation() -> None:
    """There is nothing to say about what is not there."""
    assert explain(leader_snapshot_of(_cluster()), ItemId("nothing")) is None


def test_no_member_is_named() -> None:
    """Three replicas are wanted, two members are there."""
    cluster = _cluster(A1, B1)
    _put(cluster, "i", A1, B1, replication=3)

    assert WaitReason.NO_MEMBER in _reasons(_explained(leader_snapshot_of(cluster)))


def test_no_member_is_named_where_the_others_leave() -> None:
    """Two replicas are wanted, and of two members one wishes to leave: it has room, but gets nothing any more."""
    cluster = _cluster(A1)
    cluster.put_member("b", "b1", 10, exiting=True)
    cluster.put_item("i", 2)

    (blocked,) = _explained(leader_snapshot_of(cluster)).blocked

    assert blocked.reason is WaitReason.NO_MEMBER
    assert (
        blocked.detail
        == "1 of 2 replicas have a place; members: 1 with another replica of it, 1 leaving"
    )


def test_failed_replica_that_stays_is_not_said_to_have_no_other_member() -> None:
    """There is one with room, and the plan holds loads even: that is the cause."""
    cluster = _cluster(A1, A2)
    _put(cluster, "i", A1)
    _put(cluster, "j", A2)
    cluster.avoided = frozenset({(ItemId("i"), A1)})

    (blocked,) = _explained(_with_plan(leader_snapshot_of(cluster), i=(A1,), j=(A2,))).blocked

    assert (blocked.reason, blocked.member_id) == (WaitReason.NO_MEMBER, A1)
    assert blocked.detail == (
        "it has failed for too long, and the plan keeps it; "
        "other members: 1 where loads would be less even"
    )


def test_replica_that_goes_without_another_place_says_what_keeps_it_from_staying() -> None:
    """Its member was given a lower limit, and nobody else is there: none is planned, and none may stay."""
    cluster = _cluster(A1)
    _put(cluster, "h", A1)
    _put(cluster, "i", A1)
    cluster.put_member("a", "a1", 1)

    explanation = _explained(_with_plan(leader_snapshot_of(cluster), h=(A1,), i=()))

    assert _why(explanation)[A1].endswith(
        "0 of 1 wanted replicas are planned, none of them here: "
        "for one more this would be a member at the limit"
    )


def test_no_member_is_named_for_a_failed_replica_that_nobody_else_can_take() -> None:
    """It would be better placed elsewhere, and there is no elsewhere."""
    cluster = _cluster(A1, B1)
    _put(cluster, "i", A1, B1)
    cluster.avoided = frozenset({(ItemId("i"), B1)})

    explanation = _explained(leader_snapshot_of(cluster))

    assert {(b.reason, b.member_id) for b in explanation.blocked} == {(WaitReason.NO_MEMBER, B1)}


def test_limit_is_named_where_not_even_the_plan_has_room() -> None:
    """Two members stay, and the second is full of another item: it has no place to plan with."""
    cluster = _cluster(A1)
    cluster.put_member("b", "b1", 1)
    _put(cluster, "h", A1, B1)
    cluster.put_item("i", 2)

    (blocked,) = _explained(leader_snapshot_of(cluster)).blocked

    assert blocked.reason is WaitReason.LIMIT
    assert blocked.detail == (
        "1 of 2 replicas have a place; members: 1 with another replica of it, 1 at the limit"
    )


def test_zone_that_is_given_up_is_not_said_to_lack_room() -> None:
    """The only member of the other zone has room for ten, and leaves."""
    cluster = _cluster(A1, A2)
    cluster.put_member("b", "b1", 10, exiting=True)
    _put(cluster, "i", A1, A2)

    (blocked,) = _explained(leader_snapshot_of(cluster)).blocked

    assert blocked.reason is WaitReason.ZONE
    assert blocked.detail == "it is planned in one zone; members of other zones: 1 leaving"


def test_disabled_is_named() -> None:
    """The item wants nothing, so nothing is planned."""
    cluster = _cluster(A1, B1)
    cluster.put_item("i", 0)

    assert _reasons(_explained(leader_snapshot_of(cluster))) == {WaitReason.DISABLED}


def test_limit_is_named_with_the_member_and_its_numbers() -> None:
    """The planned member is full of something that stays for now."""
    cluster = _cluster(limit=1)
    _put(cluster, "i", A1)
    _put(cluster, "other", B1)

    leader = _with_plan(leader_snapshot_of(cluster), i=(B1,), other=(B2,))
    (blocked,) = [b for b in _explained(leader).blocked if b.reason is WaitReason.LIMIT]

    assert blocked.member_id == B1
    assert "1" in blocked.detail


def test_zone_is_named() -> None:
    """The replica in the second zone stays while the others stand in one; and a plan within one zone says why."""
    cluster = _cluster()
    for number in range(3):
        _put(cluster, f"filler-{number}", B1)
    _put(cluster, "i", A1, A2, B1, replication=2)
    cluster.put_assignment("i", "b", "b2", 3, b"")
    _put(cluster, "j", A1, A2)

    waits = _explained(_with_plan(leader_snapshot_of(cluster), i=(A1, B2)))
    confined = _explained(_with_plan(leader_snapshot_of(cluster), j=(A1, A2)), "j")

    assert (WaitReason.ZONE, B1) in {(b.reason, b.member_id) for b in waits.blocked}
    assert _reasons(confined) == {WaitReason.ZONE}


def test_standby_not_caught_up_is_named() -> None:
    """The old replica stays as long as the new one is behind."""
    cluster = _cluster()
    _put(cluster, "i", A1, B1, replication=2)
    cluster.put_assignment("i", "b", "b2", 2, b"")

    explanation = _explained(_with_plan(leader_snapshot_of(cluster), i=(A1, B2)))

    assert _reasons(explanation) == {WaitReason.STANDBY_NOT_CAUGHT_UP}


def test_move_budget_is_named() -> None:
    """One move is allowed, and another item is at it."""
    policy = AllocationPolicy(transition=TransitionPolicy(moves_max=1, settle_seconds=0.0))
    cluster = _cluster()
    _put(cluster, "i", A1, B1)
    _put(cluster, "busy", A1, B1, replication=2)
    cluster.put_assignment("busy", "b", "b2", 2, b"")

    leader = _with_plan(leader_snapshot_of(cluster, policy=policy), i=(A1, B2), busy=(A1, B2))

    assert WaitReason.MOVE_BUDGET in _reasons(_explained(leader))


def test_settling_is_named() -> None:
    """A member has just joined: what balance will move to it waits until membership has settled."""
    policy = AllocationPolicy(transition=TransitionPolicy(settle_seconds=60))
    cluster = _cluster(A1)
    for number in range(4):
        _put(cluster, f"i{number}", A1)
    settling = Settling(policy=policy.transition).observed(cluster.state().members, 0.0)
    settling = settling.observed(cluster.state().members, 100.0)
    cluster.put_member("a", "a2", 10)
    settling = settling.observed(cluster.state().members, 101.0)
    leader = leader_snapshot_of(cluster, policy=policy, settling=settling, now=101.0)

    explanations = [_explained(leader, f"i{number}") for number in range(4)]

    assert sum(WaitReason.SETTLING in _reasons(each) for each in explanations) == 2
    assert any("settled" in note for note in explanations[0].notes)


def test_settling_is_not_named_for_what_the_plan_levels_anyway() -> None:
    """A member leaves while membership is unsettled, and where its items go makes loads even: nothing is left for
    balance, although it might have sent each of them to another place.
    """
    policy = AllocationPolicy(transition=TransitionPolicy(settle_seconds=60))
    cluster = _cluster(A1, A2, MemberId("a", "a3"))
    for number in range(4):
        _put(cluster, f"i{number}", A1)
    settling = Settling(policy=policy.transition).observed(cluster.state().members, 0.0)
    cluster.put_member("a", "a1", 10, exiting=True)
    settling = settling.observed(cluster.state().members, 100.0)
    leader = leader_snapshot_of(cluster, policy=policy, settling=settling, now=100.0)
    others = (A2, MemberId("a", "a3"))

    for first, second in (others, reversed(others)):
        desired = {"i0": (first,), "i1": (first,), "i2": (second,), "i3": (second,)}
        planned = _with_plan(leader, **desired)
        for number in range(4):
            assert WaitReason.SETTLING not in _reasons(_explained(planned, f"i{number}"))


def test_drain_waits_is_named() -> None:
    """The member leaves, but its drain is to wait for a replacement."""
    policy = AllocationPolicy(
        transition=TransitionPolicy(drain_patience_seconds=60, settle_seconds=0.0)
    )
    cluster = _cluster()
    _put(cluster, "i", A1, B1)
    settling = Settling(policy=policy.transition).observed(cluster.state().members, 0.0)
    cluster.put_member("a", "a1", 10, exiting=True)
    settling = settling.observed(cluster.state().members, 1.0)

    explanation = _explained(leader_snapshot_of(cluster, policy=policy, settling=settling, now=1.0))

    assert WaitReason.DRAIN_WAITS in _reasons(explanation)
    (leaving,) = [each for each in explanation.replicas if each.member_id == A1]
    assert "waits for a member that replaces it" in leaving.why


def test_hand_over_waits_is_named() -> None:
    """All primaries are on one member; only so many may be handed over at a time, and it is not this one's turn."""
    policy = AllocationPolicy(transition=AT_ONCE, primaries=PrimaryPolicy(hand_over_above_spread=1))
    cluster = _cluster(A1, B1)
    for number in range(6):
        _put(cluster, f"i{number}", A1, B1)

    leader = leader_snapshot_of(cluster, policy=policy)
    explanations = [_explained(leader, f"i{number}") for number in range(6)]

    assert sum(WaitReason.HAND_OVER_WAITS in _reasons(each) for each in explanations) == 3


def test_quarantined_is_named() -> None:
    """Etcd refuses the item's step, because somebody else writes its keys."""
    cluster = _cluster()
    _put(cluster, "i", A1, replication=2)

    explanation = _explained(leader_snapshot_of(cluster, quarantined=frozenset({"i"})))

    assert WaitReason.QUARANTINED in _reasons(explanation)


def test_every_reason_has_a_scenario() -> None:
    """A reason that is added needs a scenario that names it."""
    here = globals()
    missing = [
        reason.name
        for reason in WaitReason
        if not any(name.startswith("test_") and reason.name.lower() in name for name in here)
    ]

    assert not missing
