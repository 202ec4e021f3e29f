"""The next step of each item, to the last comparison and operation."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.ops import Compare, Delete, Put
from broadsheet.allocator.placement.problem import Desired
from broadsheet.allocator.transition.converge import ConvergeStep, ReplicaCounts, converge
from broadsheet.allocator.transition.schedule import Targets
from tests.support.memory_cluster import CONSISTENT, MemoryCluster, ValueConsistency

A1, A2, B1, B2 = (MemberId(name[0], name) for name in ("a1", "a2", "b1", "b2"))
I = ItemId("i")  # noqa: E741 - the one item of most tests


def cluster_of(replication: int, *assigned: str, limit: int = 4) -> MemoryCluster:
    """Members a1, a2, b1, b2 and item i; assigned like `a1#0`, with `?` at the end if not yet consistent."""
    cluster = MemoryCluster()
    for member_id in (A1, A2, B1, B2):
        cluster.put_member(member_id.zone, member_id.suffix, limit)
    cluster.put_item(I, replication)
    for each in assigned:
        suffix, slot = each.removesuffix("?").split("#")
        value = b"" if each.endswith("?") else CONSISTENT
        cluster.put_assignment(I, suffix[0], suffix, int(slot), value)
    return cluster


def steps(cluster: MemoryCluster, *desired: MemberId) -> tuple[ConvergeStep, ...]:
    """Converge item i once."""
    return converge(
        cluster.state(),
        Targets(desired={I: desired}),
        consistency=ValueConsistency(),
        keys=cluster.keys,
    ).steps


def after(cluster: MemoryCluster, *desired: MemberId) -> list[str]:
    """Perform what converging does and return the assignments of item i, like `a1#0`."""
    for step in steps(cluster, *desired):
        assert cluster.etcd.perform(step.checkpoint)
    group = cluster.state().assignments.get(I, ())
    return [f"{a.member_id.suffix}#{a.slot}" for a in sorted(group, key=lambda a: a.slot)]


def key(cluster: MemoryCluster, member_id: MemberId, slot: int) -> bytes:
    """An assignment's key."""
    return cluster.keys.assignment(I, member_id, slot)


def unchanged(cluster: MemoryCluster, key: bytes) -> Compare:
    """The comparison that a key is as it is now."""
    return Compare.mod_revision(key, cluster.etcd.kvs[key].mod_revision)


def test_converge_new_item_puts_empty_values_on_members_leases() -> None:
    """Adds compare item, member and absence of the key, and ride on the member's lease."""
    cluster = cluster_of(2)
    item, a1, b1 = (
        cluster.keys.item(I),
        cluster.keys.member(A1),
        cluster.keys.member(B1),
    )

    (step,) = steps(cluster, A1, B1)

    first, second = key(cluster, A1, 0), key(cluster, B1, 1)
    assert step.checkpoint.compares == (
        unchanged(cluster, item),
        Compare.none_created_after(cluster.keys.assignments_of(I), cluster.etcd.revision),
        unchanged(cluster, a1),
        Compare.absent(first),
        unchanged(cluster, b1),
        Compare.absent(second),
    )
    assert step.checkpoint.operations == (
        Put(first, b"", lease=cluster.etcd.kvs[a1].lease),
        Put(second, b"", lease=cluster.etcd.kvs[b1].lease),
    )
    assert (step.checkpoint.subject, step.counts) == ("i", ReplicaCounts(added=2))


def test_converge_removal_compares_every_replica_it_relies_on() -> None:
    """A removal is safe because of those that stay, so all of them must still be as they were."""
    cluster = cluster_of(1, "a1#0", "b1#1")
    stays, goes = key(cluster, A1, 0), key(cluster, B1, 1)

    (step,) = steps(cluster, A1)

    assert step.checkpoint.compares == (
        unchanged(cluster, cluster.keys.item(I)),
        unchanged(cluster, stays),
        unchanged(cluster, goes),
    )
    assert step.checkpoint.operations == (Delete(goes),)
    assert step.counts == ReplicaCounts(removed=1)


def test_converge_live_primary_hands_over_before_it_goes() -> None:
    """The plan has the item elsewhere: the standby there takes slot 0 and the primary its slot; then it is removed.

    A primary that was removed at once left nobody behind whose slot 0 could be given back, had its successor failed.
    """
    cluster = cluster_of(1, "a1#0", "b1#1")
    primary, standby = key(cluster, A1, 0), key(cluster, B1, 1)
    old, new = (cluster.etcd.kvs[each].lease for each in (primary, standby))

    (step,) = steps(cluster, B1)

    assert step.checkpoint.operations == (
        Delete(primary),
        Put(key(cluster, A1, 1), CONSISTENT, lease=old),
        Delete(standby),
        Put(key(cluster, B1, 0), CONSISTENT, lease=new),
    )
    assert unchanged(cluster, primary) in step.checkpoint.compares
    assert unchanged(cluster, standby) in step.checkpoint.compares
    assert unchanged(cluster, cluster.keys.member(B1)) in step.checkpoint.compares
    assert step.counts == ReplicaCounts(promoted=1, packed=1, handed_over=1)
    assert after(cluster, B1) == ["b1#0", "a1#1"]
    assert after(cluster, B1) == ["b1#0"]


def test_converge_primary_goes_last_of_what_is_not_wanted() -> None:
    """Neither replica should be there, and one may go: the standby, so that the primary moves once and not twice."""
    cluster = cluster_of(1, "a1#0", "b1#1", "b2#2?")

    assert after(cluster, B2) == ["a1#0", "b2#1"]


def test_converge_primary_that_is_still_behind_hands_over_to_one_that_is_not() -> None:
    """Another should have its place, and waits until it could serve: that the primary cannot either is no reason."""
    cluster = cluster_of(1, "a1#0?", "b1#1?")
    newcomer = key(cluster, B1, 1)

    assert after(cluster, B1) == ["a1#0", "b1#1"]
    cluster.etcd.put(newcomer, CONSISTENT, lease=cluster.etcd.kvs[newcomer].lease)
    assert after(cluster, B1) == ["b1#0", "a1#1"]


def test_converge_add_on_a_late_view_is_refused() -> None:
    """Another replica came into being after the view: with both there would be two primaries, and one too many."""
    cluster = cluster_of(1)
    (late,) = steps(cluster, A1)

    cluster.put_assignment(I, "b", "b1", 0)

    assert not cluster.etcd.perform(late.checkpoint)
    assert after(cluster, B1) == ["b1#0"]


def test_converge_add_whose_sibling_is_gone_or_made_anew_is_refused() -> None:
    """The view shows a primary. Without it slot 1 is not what a new replica should have, and a new one may be another.

    That the sibling says something new of itself refuses nothing: standbys do so all the time.
    """
    cluster = cluster_of(2, "a1#0")
    (late,) = steps(cluster, A1, B1)
    primary = key(cluster, A1, 0)
    lease = cluster.etcd.kvs[primary].lease
    cluster.etcd.put(primary, b"anything", lease=lease)
    kvs = dict(cluster.etcd.kvs)

    cluster.etcd.delete(primary)
    assert not cluster.etcd.perform(late.checkpoint)
    cluster.etcd.put(primary, CONSISTENT, lease=lease)
    assert not cluster.etcd.perform(late.checkpoint)

    cluster.etcd.kvs = kvs
    assert cluster.etcd.perform(late.checkpoint)


def test_converge_promotion_on_a_late_view_does_not_pass_over_one_that_caught_up() -> None:
    """The primary is lost, no standby has caught up, and one does after the view: it becomes primary."""
    cluster = cluster_of(2, "a2#2?", "b1#1?")
    (late,) = converge(
        cluster.state(),
        Targets(desired={I: (A2, B1)}, primaries={I: A2}),
        consistency=ValueConsistency(),
        keys=cluster.keys,
    ).steps
    assert key(cluster, A2, 0) in [o.key for o in late.checkpoint.operations if isinstance(o, Put)]

    ready = key(cluster, B1, 1)
    cluster.etcd.put(ready, CONSISTENT, lease=cluster.etcd.kvs[ready].lease)

    assert not cluster.etcd.perform(late.checkpoint)
    assert after(cluster, A2, B1) == ["b1#0", "a2#1"]


def test_converge_failed_replica_does_not_take_over_from_a_failed_primary() -> None:
    """Beside a failed primary a failed standby counts as any other, but one that has caught up is promoted."""

    class AllFail(ValueConsistency):
        def is_consistent(
            self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
        ) -> bool:
            failed = [a.slot == 0 for a in all_assignments if a.kv.value == b"failed"]
            if assignment.kv.value == b"failed":
                return any(failed)
            return super().is_consistent(item, assignment, all_assignments)

    cluster = cluster_of(2)
    for member_id, slot, value in ((A1, 0, b"failed"), (A2, 1, b"failed"), (B1, 2, CONSISTENT)):
        cluster.put_assignment(I, member_id.zone, member_id.suffix, slot, value)

    (step,) = converge(
        cluster.state(),
        Targets(desired={I: (A2, B1)}, primaries={I: A2}),
        consistency=AllFail(),
        keys=cluster.keys,
    ).steps

    assert key(cluster, B1, 0) in [o.key for o in step.checkpoint.operations if isinstance(o, Put)]


def test_converge_dead_assignments_are_deleted_without_a_gate() -> None:
    """An item is gone: its assignments go if it is still gone, in checkpoints that fit a transaction."""
    cluster = cluster_of(2, "a1#0", "b1#1")
    cluster.delete_item(I)
    keys = [key(cluster, A1, 0), key(cluster, B1, 1)]

    (step,) = converge(
        cluster.state(), Targets(desired={}), consistency=ValueConsistency(), keys=cluster.keys
    ).steps

    assert step.checkpoint.compares == (
        Compare.absent(cluster.keys.item(I)),
        *(unchanged(cluster, each) for each in keys),
    )
    assert step.checkpoint.operations == tuple(Delete(each) for each in keys)
    assert step.counts == ReplicaCounts(removed=2)


def test_converge_adds_nothing_to_a_member_that_dead_replicas_fill() -> None:
    """An item is deleted and another takes its place: the member holds the old replica until its key is gone.

    Added at once, it would hold more than its limit for as long as the deletion is refused or on its way. That is no
    circle of full members either, for which a limit may be passed.
    """
    cluster = cluster_of(1, limit=1)
    cluster.put_assignment("gone", "a", "a1", 0)

    def converged() -> tuple[ConvergeStep, ...]:
        return converge(
            cluster.state(),
            Targets(desired={I: (A1,)}),
            consistency=ValueConsistency(),
            keys=cluster.keys,
        ).steps

    (deletion,) = converged()
    assert deletion.checkpoint.subject == "gone"
    assert cluster.etcd.perform(deletion.checkpoint)
    assert [step.checkpoint.subject for step in converged()] == [I]


def test_converge_item_newer_than_the_plan_is_left_alone() -> None:
    """An item the plan does not know has no desired members *yet*: that is no reason to remove its replicas."""
    cluster = cluster_of(0, "a1#0")

    convergence = converge(
        cluster.state(), Targets(desired={}), consistency=ValueConsistency(), keys=cluster.keys
    )

    assert convergence.steps == ()


def test_converge_settled_item_is_idle() -> None:
    """As desired, slots packed: no operation (I6)."""
    assert steps(cluster_of(2, "a1#0", "b1#1"), A1, B1) == ()


def test_converge_replacement_is_added_before_the_old_replica_goes() -> None:
    """A move of the primary through all its stages: add, catch up, hand over, then remove and pack at once."""
    cluster = cluster_of(2, "a1#0", "b1#1")
    desired = (A2, B1)

    assert after(cluster, *desired) == ["a1#0", "b1#1", "a2#2"]
    assert after(cluster, *desired) == ["a1#0", "b1#1", "a2#2"]
    cluster.mark_consistent()
    assert after(cluster, *desired) == ["b1#0", "a1#1", "a2#2"]
    assert after(cluster, *desired) == ["b1#0", "a2#1"]
    assert steps(cluster, *desired) == ()


def test_converge_inconsistent_replica_is_not_removed_while_too_few_are_consistent() -> None:
    """Gate: with fewer consistent replicas than wanted nothing live goes, not even one that lags."""
    cluster = cluster_of(2, "a1#0", "a2#1?", "b1#2?")

    assert after(cluster, A1, B1) == ["a1#0", "a2#1", "b1#2"]


def test_converge_blocked_removal_does_not_block_another() -> None:
    """Of two unwanted replicas the consistent one must stay, the lagging one may go."""
    cluster = cluster_of(1, "a1#0", "b1#1?", "b2#2?")

    assert after(cluster, A2) == ["a1#0", "a2#1"]


def test_converge_removal_that_would_lose_the_second_zone_waits() -> None:
    """Two consistent replicas remain either way, but only one choice keeps both zones; the other waits for its turn."""
    cluster = cluster_of(2, "a1#0", "a2#1", "b1#2", limit=1)

    # b2 is full: the second zone's replacement cannot come.
    cluster.put_item("other", 1)
    cluster.put_assignment("other", "b", "b2", 0)

    assert after(cluster, A1, B2) == ["a1#0", "b1#1"]


def test_converge_replica_of_a_lost_member_goes_once_another_is_consistent() -> None:
    """A memberless replica counts for nothing, but keeps its place until a live consistent one can take over."""
    cluster = cluster_of(1)
    cluster.put_assignment(I, "z", "gone", 0)

    assert after(cluster, A1) == ["gone#0", "a1#1"]
    assert after(cluster, A1) == ["gone#0", "a1#1"]
    cluster.mark_consistent()
    assert after(cluster, A1) == ["a1#0"]


def test_converge_lost_member_does_not_count_as_consistent() -> None:
    """Its last value says consistent; that must not let a live consistent replica go."""
    cluster = cluster_of(1, "a1#0")
    cluster.put_assignment(I, "z", "gone", 1)

    assert after(cluster, A2) == ["a1#0", "a2#1"]


def test_converge_promotion_prefers_consistent_then_staying_then_fewest_primaries() -> None:
    """A drained, primary-less member scores worst and not NaN; the healthy standby is promoted (issue: 0/0)."""
    cluster = cluster_of(3, "a1#1", "b1#2", "a2#3?")
    cluster.put_member("a", "a1", 0, exiting=True)

    assert after(cluster, A1, A2, B1)[0] == "b1#0"


def test_converge_promotion_balances_primaries() -> None:
    """Both standbys are consistent and stay: the one with fewer primaries gets another."""
    cluster = cluster_of(2, "a1#1", "b1#2")
    cluster.put_item("other", 1)
    cluster.put_assignment("other", "a", "a1", 0)

    assert after(cluster, A1, B1) == ["b1#0", "a1#1"]


def test_converge_primary_in_place_is_never_demoted() -> None:
    """Even an inconsistent primary stays: taking it away is the application's decision, not ours."""
    cluster = cluster_of(2, "a1#0?", "b1#1")

    assert steps(cluster, A1, B1) == ()


def test_converge_new_primaries_are_spread() -> None:
    """Four new items on the same two members get two primaries each, not four on the first in order."""
    cluster = cluster_of(0, limit=8)
    desired: Desired = {I: (), **{ItemId(f"n{n}"): (A1, B1) for n in range(4)}}
    for item_id in list(desired)[1:]:
        cluster.put_item(item_id, 2)

    convergence = converge(
        cluster.state(), Targets(desired=desired), consistency=ValueConsistency(), keys=cluster.keys
    )
    for step in convergence.steps:
        assert cluster.etcd.perform(step.checkpoint)

    assert cluster.state().loads.primary == {A1: 2, A2: 0, B1: 2, B2: 0}


def test_converge_full_member_gets_nothing_even_if_it_will_be_freed() -> None:
    """Room that a removal of the same round frees is given away in the next: the removal may yet be refused (I2)."""
    cluster = cluster_of(1, "a1#0", limit=1)
    cluster.put_item("j", 1)
    cluster.put_assignment("i", "b", "b1", 1)

    convergence = converge(
        cluster.state(),
        Targets(desired={I: (B1,), ItemId("j"): (A1,)}),
        consistency=ValueConsistency(),
        keys=cluster.keys,
    )

    assert [step.checkpoint.subject for step in convergence.steps] == ["i"]
    assert convergence.adds_blocked == 1


def test_converge_member_with_two_slots_keeps_the_lower() -> None:
    """A second assignment of the same member is illegal and worth nothing: it goes, gate or no gate."""
    cluster = cluster_of(2, "a1#0?", "a1#1", "b1#2?")

    assert after(cluster, A1, B1) == ["a1#0", "b1#2"]
    assert after(cluster, A1, B1) == ["a1#0", "b1#1"]


def test_converge_two_primaries_are_told_apart_at_once() -> None:
    """Another writer made a second slot 0: one keeps it, the other becomes a standby in the next step (I1)."""
    cluster = cluster_of(3, "a1#0", "b1#0")

    assert after(cluster, A1, A2, B1) == ["a1#0", "b1#1", "a2#2"]


def test_converge_gap_in_slots_is_filled_by_what_is_beyond() -> None:
    """Slots 0, 2, 5 become 0, 2, 1 when nothing else is to do: one key is rewritten, not two."""
    cluster = cluster_of(3, "a1#0", "b1#2", "b2#5")

    (step,) = steps(cluster, A1, B1, B2)

    assert step.counts == ReplicaCounts(packed=1)
    assert after(cluster, A1, B1, B2) == ["a1#0", "b2#1", "b1#2"]


def test_converge_newcomer_takes_the_slot_of_the_standby_that_goes() -> None:
    """Three moves of a standby: each is an addition and a removal, and no key is rewritten."""
    cluster = cluster_of(3, "a1#0", "a2#1", "b1#2")

    assert after(cluster, A1, A2, B2) == ["a1#0", "a2#1", "b1#2", "b2#2"]
    cluster.mark_consistent()
    (step,) = steps(cluster, A1, A2, B2)

    assert step.counts == ReplicaCounts(removed=1)
    assert after(cluster, A1, A2, B2) == ["a1#0", "a2#1", "b2#2"]
    assert steps(cluster, A1, A2, B2) == ()


def test_converge_newcomer_does_not_take_the_slot_of_a_primary_that_goes() -> None:
    """Slot 0 is one replica's alone: the newcomer has a slot of its own, and gets 0 when the primary goes."""
    cluster = cluster_of(2, "a1#0", "b1#1")

    assert after(cluster, A2, B1) == ["a1#0", "b1#1", "a2#2"]
    cluster.mark_consistent()
    (step,) = steps(cluster, A2, B1)

    assert step.counts == ReplicaCounts(promoted=1, packed=1, handed_over=1)


def test_converge_gap_below_a_shared_slot_is_filled_by_the_one_that_stays() -> None:
    """Slot 1 was lost with its member; of the two at slot 2 one goes soon, and is not renumbered."""
    cluster = cluster_of(3, "a1#0", "b1#2", "b2#2?")

    (step,) = steps(cluster, A1, B2)

    assert step.counts == ReplicaCounts(packed=1)
    assert after(cluster, A1, B2) == ["a1#0", "b2#1", "b1#2"]


def test_converge_slot_that_two_hold_is_told_apart_once_both_stay() -> None:
    """The plan changed its mind, and the standby that was to go stays: the one that is behind gets another slot."""
    cluster = cluster_of(4, "a1#0", "a2#1", "b1#2?", "b2#2")

    assert after(cluster, A1, A2, B1, B2) == ["a1#0", "a2#1", "b2#2", "b1#3"]
    assert steps(cluster, A1, A2, B1, B2) == ()


def test_converge_newcomer_leaves_its_slot_to_a_standby_that_cannot_go() -> None:
    """Three replicas are wanted and two have a place: the third stays where it should not be, newcomer or not."""
    cluster = cluster_of(3, "a1#0", "b1#1")

    assert after(cluster, A1, A2) == ["a1#0", "b1#1", "a2#2"]
    cluster.mark_consistent()
    assert steps(cluster, A1, A2) == ()


def test_converge_slot_that_two_hold_is_told_apart_once_the_standby_cannot_go() -> None:
    """The newcomer took its slot, and then a third replica was lost for which there is no other place."""
    cluster = cluster_of(3, "a1#0", "b1#1", "a2#1")

    assert after(cluster, A1, A2) == ["a1#0", "a2#1", "b1#2"]
    assert steps(cluster, A1, A2) == ()


def test_converge_long_failed_standby_goes_when_its_replacement_comes() -> None:
    """Primary healthy, standby failed for too long: it does not hold its place against the gate for ever."""
    cluster = cluster_of(2, "a1#0", "b1#1?")
    cluster.avoided = frozenset({(I, B1)})

    assert after(cluster, A1, B2) == ["a1#0", "b2#1"]


def test_converge_disabled_item_loses_all_replicas_at_once() -> None:
    """Replication 0 removes everything, consistent or not."""
    assert after(cluster_of(0, "a1#0", "b1#1?")) == []
