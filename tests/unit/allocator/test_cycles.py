"""Items on full members that wait for each other: told apart from those that wait for something that will come."""

from __future__ import annotations

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import Desired
from broadsheet.allocator.transition.capacity import WaitReason
from broadsheet.allocator.transition.converge import Convergence, converge
from broadsheet.allocator.transition.schedule import Targets
from tests.support.memory_cluster import MemoryCluster, ValueConsistency, single_zone_items
from tests.support.safety_checks import Overcommits


def ring(size: int, *, limit: int = 1) -> tuple[MemoryCluster, dict[ItemId, tuple[MemberId, ...]]]:
    """As many members as items, all full; each item should be on its neighbour's member."""
    cluster = MemoryCluster()
    members = [MemberId("z", f"m{n}") for n in range(size)]
    for member_id in members:
        cluster.put_member("z", member_id.suffix, limit)
    desired: dict[ItemId, tuple[MemberId, ...]] = {}
    for n, member_id in enumerate(members):
        for each in range(limit):
            item_id = f"i{n}-{each}"
            cluster.put_item(item_id, 1)
            cluster.put_assignment(item_id, "z", member_id.suffix, 0)
            desired[ItemId(item_id)] = (members[(n + (each == 0)) % size],)
    return cluster, desired


def once(cluster: MemoryCluster, desired: Desired) -> Convergence:
    """Decide once, and do it."""
    before = cluster.state()
    convergence = converge(
        before, Targets(desired=desired), consistency=ValueConsistency(), keys=cluster.keys
    )
    for step in convergence.steps:
        assert cluster.etcd.perform(step.checkpoint)
    cluster.overcommits.check(before, cluster.state())
    return convergence


def carry_out(cluster: MemoryCluster, desired: Desired) -> int:
    """Converge to rest; return the number of rounds."""
    for rounds in range(100):
        if not once(cluster, desired).steps and not cluster.mark_consistent():
            return rounds
    raise AssertionError("no rest")


def test_swap_of_four_full_members_settles_across_zones() -> None:
    """Two items, each within a zone, on four members of limit 1: they trade a place, with one replica over a limit."""
    cluster = MemoryCluster()
    for item_id, zone in (("i", "a"), ("j", "b")):
        cluster.put_item(item_id, 2)
        for slot, suffix in enumerate(("one", "two")):
            cluster.put_member(zone, suffix, 1)
            cluster.put_assignment(item_id, zone, suffix, slot)

    cluster.settle()

    assert single_zone_items(cluster.state()) == []
    assert (cluster.overcommits.count, cluster.counts.added) == (1, 2)
    assert set(cluster.loads().values()) == {1}


def test_circle_of_any_length_is_broken_by_one_replica() -> None:
    """Five members pass on what they hold; only one of them ever holds one more than it should."""
    cluster, desired = ring(5, limit=3)

    carry_out(cluster, desired)

    placed = {item_id: group[0].member_id for item_id, group in cluster.state().assignments.items()}
    assert placed == {item_id: members[0] for item_id, members in desired.items()}
    assert cluster.overcommits.count == 1


def test_circles_are_broken_one_at_a_time() -> None:
    """Two circles that share nothing: the second waits until the first is through."""
    cluster, desired = ring(2)
    other, more = ring(3)
    for key, kv in other.etcd.kvs.items():
        parts = key.replace(b"#m", b"#n").replace(b"/i", b"/j").replace(b"/jtems", b"/items")
        cluster.etcd.put(parts, kv.value)
    desired |= {
        ItemId(item_id.replace("i", "j")): tuple(
            MemberId("z", m.suffix.replace("m", "n")) for m in members
        )
        for item_id, members in more.items()
    }

    first = once(cluster, desired)
    waiting = once(cluster, desired)
    carry_out(cluster, desired)

    assert len(first.steps) == 1
    assert waiting.steps == ()
    assert cluster.overcommits.count == 2
    assert set(cluster.loads().values()) == {1}


def test_full_members_are_left_alone_while_patience_will_do() -> None:
    """The member that is waited for will have room once a replica has caught up elsewhere: that is no circle."""
    cluster, desired = ring(3)
    cluster.put_member("z", "free", 1)
    leaves = next(iter(desired))
    desired[leaves] = (MemberId("z", "free"),)

    first = once(cluster, desired)
    waiting = once(cluster, desired)

    assert [step.checkpoint.subject for step in first.steps] == [leaves]
    assert waiting.steps == ()
    carry_out(cluster, desired)
    assert cluster.overcommits == Overcommits()


def test_chain_that_ends_at_a_full_member_is_no_circle() -> None:
    """The last member in the row will not give anything up: nobody is put over a limit for nothing."""
    cluster, desired = ring(3)
    last = list(desired)[-1]
    desired[last] = (MemberId("z", "m2"),)

    convergence = once(cluster, desired)

    assert convergence.steps == ()
    assert {b.reason for b in convergence.blocked} == {
        WaitReason.LIMIT,
        WaitReason.STANDBY_NOT_CAUGHT_UP,
    }


def test_circle_through_a_replica_that_may_not_go_is_not_broken() -> None:
    """An item that lacks a consistent replica would not free its place for another one: no use in beginning."""
    cluster, desired = ring(2)
    first = next(iter(desired))
    cluster.put_item(first, 2)
    desired[first] = (*desired[first],)

    assert once(cluster, desired).steps == ()


def test_circle_is_not_broken_while_another_member_is_above_its_limit_and_coming_back() -> None:
    """One at a time holds across passes: what is over its limit now must be seen to come back first."""
    cluster, desired = ring(2)
    cluster.put_member("z", "crowded", 1)
    cluster.put_member("z", "spare", 1)
    for n in range(2):
        cluster.put_item(f"c{n}", 1)
        cluster.put_assignment(f"c{n}", "z", "crowded", 0)
        desired[ItemId(f"c{n}")] = (MemberId("z", "crowded" if n else "spare"),)

    convergence = once(cluster, desired)

    assert [step.checkpoint.subject for step in convergence.steps] == ["c0"]
    carry_out(cluster, desired)
    assert set(cluster.loads().values()) == {1}


def test_circle_is_not_broken_on_a_part_of_what_is_pending() -> None:
    """Whoever does not see all items that are on their way cannot know that nothing else will make room."""
    cluster, desired = ring(2)

    convergence = converge(
        cluster.state(),
        Targets(desired=desired, sees_all_pending=False),
        consistency=ValueConsistency(),
        keys=cluster.keys,
    )

    assert convergence.steps == ()
    assert convergence.adds_blocked == 2
