"""What a cordon keeps from a member, what stays on it, and what is said of it."""

from __future__ import annotations

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.whatif.explain import explain
from tests.support.leader_snapshots import leader_snapshot_of
from tests.support.memory_cluster import MemoryCluster

ONE, TWO, THREE = (MemberId("a", name) for name in ("one", "two", "three"))


def _cluster(*, items: int = 12) -> MemoryCluster:
    """Three members, and items with a standby each, at rest."""
    cluster = MemoryCluster()
    for member_id in (ONE, TWO, THREE):
        cluster.put_member(member_id.zone, member_id.suffix, 40)
    for number in range(items):
        cluster.put_item(f"i{number:02}", 2)
    cluster.settle()
    return cluster


def _placed(cluster: MemoryCluster) -> dict[ItemId, set[tuple[MemberId, int]]]:
    return {
        item_id: {(each.member_id, each.slot) for each in group}
        for item_id, group in cluster.state().assignments.items()
    }


def test_cordoned_member_keeps_what_it_holds_and_gets_nothing_new() -> None:
    """A cordon moves nothing, neither replicas nor primaries; of 12 items that come, it gets none."""
    cluster = _cluster()
    before = _placed(cluster)

    cluster.put_member("a", "one", 40, cordoned=True)
    cluster.settle()

    assert _placed(cluster) == before
    for number in range(12, 24):
        cluster.put_item(f"i{number:02}", 2)
    cluster.settle()
    totals = cluster.state().loads.total
    assert (totals[ONE], totals[TWO], totals[THREE]) == (8, 20, 20)


def test_members_that_come_while_old_ones_are_cordoned_get_what_is_new() -> None:
    """The beginning of a rollout: old members are cordoned, so that no item is placed twice."""
    cluster = _cluster()
    for member_id in (ONE, TWO, THREE):
        cluster.put_member(member_id.zone, member_id.suffix, 40, cordoned=True)
    cluster.settle()

    for suffix in ("four", "five"):
        cluster.put_member("a", suffix, 40)
    for number in range(12, 16):
        cluster.put_item(f"i{number:02}", 2)
    cluster.settle()

    placed = _placed(cluster)
    for number in range(12, 16):
        holders = {member_id.suffix for member_id, _ in placed[ItemId(f"i{number:02}")]}
        assert holders == {"four", "five"}


def test_balance_comes_back_once_the_cordon_ends() -> None:
    """An uncordoned member is given its fair share again."""
    cluster = _cluster()
    cluster.put_member("a", "one", 40, cordoned=True)
    for number in range(12, 24):
        cluster.put_item(f"i{number:02}", 2)
    cluster.settle()

    cluster.put_member("a", "one", 40)
    cluster.settle()

    totals = cluster.state().loads.total
    assert (totals[ONE], totals[TWO], totals[THREE]) == (16, 16, 16)


def test_standby_on_a_cordoned_member_takes_over_from_a_dead_primary() -> None:
    """A cordon keeps new replicas away; it must not keep an item from being served by one that is there."""
    cluster = MemoryCluster()
    for member_id in (ONE, TWO):
        cluster.put_member(member_id.zone, member_id.suffix, 40)
    cluster.put_item("i", 2)
    cluster.settle()
    (primary,) = [m for m, slot in _placed(cluster)[ItemId("i")] if slot == 0]
    other = ONE if primary == TWO else TWO
    cluster.put_member("a", other.suffix, 40, cordoned=True)
    cluster.settle()

    cluster.kill_member("a", primary.suffix)
    cluster.settle()

    assert _placed(cluster)[ItemId("i")] == {(other, 0)}


def test_drain_does_not_go_to_a_cordoned_member() -> None:
    """What a leaving member holds goes to those that take it, in whatever number."""
    cluster = _cluster()
    cluster.put_member("a", "three", 40, cordoned=True)
    cluster.put_member("a", "four", 40)
    cluster.settle()
    held = {i for i, placed in _placed(cluster).items() if THREE in {m for m, _ in placed}}

    cluster.put_member("a", "one", 40, exiting=True)
    cluster.settle()

    after = {i for i, placed in _placed(cluster).items() if THREE in {m for m, _ in placed}}
    assert cluster.state().loads.total[ONE] == 0
    assert after <= held


def test_explanation_names_the_cordon_for_a_replica_that_has_no_place() -> None:
    """An operator who wonders why a standby is missing is told which member is cordoned, and how many would take it."""
    cluster = MemoryCluster()
    for member_id in (ONE, TWO):
        cluster.put_member(member_id.zone, member_id.suffix, 40)
    cluster.put_member("a", "two", 40, cordoned=True)
    cluster.put_item("i", 2)
    cluster.settle()

    explanation = explain(leader_snapshot_of(cluster), ItemId("i"))

    assert explanation is not None
    assert "a#two is cordoned: it keeps its replicas, and gets no others" in explanation.notes
    (replica,) = explanation.replicas
    assert replica.why == "it is primary; it stays; other members: 1 cordoned"
    assert "1 of 2 replicas have a place" in explanation.blocked[0].detail
