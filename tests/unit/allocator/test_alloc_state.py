"""What a snapshot says: leader, shedding, loads, demand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import Problem, ProblemItem, ProblemMember
from broadsheet.allocator.placement.shares import Totals, load_windows
from tests.support.memory_cluster import MemoryCluster

ONE, TWO, THREE, FOUR = (MemberId("a", name) for name in ("one", "two", "three", "four"))


def cluster_of(*members: tuple[str, int, bool], items: dict[str, int]) -> MemoryCluster:
    """Members (suffix, limit, exiting) of zone a, oldest first, and items by replication."""
    cluster = MemoryCluster()
    for suffix, limit, exiting in members:
        cluster.put_member("a", suffix, limit, exiting=exiting)
    for item_id, replication in items.items():
        cluster.put_item(item_id, replication)
    return cluster


def test_state_leader_is_the_oldest_member_not_the_least() -> None:
    """Leadership goes by create revision; an update of the member does not change it."""
    cluster = cluster_of(("two", 1, False), ("one", 1, False), items={})
    cluster.put_member("a", "two", 9)

    state = cluster.state()

    assert state.leader is not None
    assert state.leader.member_id == TWO
    assert [cluster.state(m).is_leader for m in (ONE, TWO)] == [False, True]


def test_state_leader_of_members_created_together_is_the_least_key() -> None:
    """Two members of one transaction tie on create revision: everyone must break the tie alike."""
    cluster = cluster_of(("two", 1, False), ("one", 1, False), items={})
    kvs = cluster.etcd.kvs
    cluster.etcd.load(replace(kv, create_revision=7) for kv in kvs.values())

    leader = cluster.state().leader

    assert leader is not None
    assert leader.member_id == ONE


def test_state_without_members_has_no_leader_and_no_one_exits() -> None:
    """An empty root is a state like any other."""
    state = MemoryCluster().state()

    assert state.leader is None
    assert not state.is_leader
    assert not state.should_exit
    assert state.zones == ()


def test_state_should_exit_only_when_exiting_and_empty() -> None:
    """A dead assignment (no item) does not hold a member back; a live one does."""
    cluster = cluster_of(("one", 4, True), ("two", 4, False), items={"i": 1})
    cluster.put_assignment("gone", "a", "one", 0)
    assert cluster.state(ONE).should_exit
    assert not cluster.state(TWO).should_exit

    cluster.put_assignment("i", "a", "one", 0)

    assert not cluster.state(ONE).should_exit
    assert [a.item_id for a in cluster.state(ONE).local_items] == ["i"]


def test_state_loads_count_dead_assignments_and_not_those_of_members_that_are_gone() -> None:
    """A member runs replicas of a deleted item until they are gone, so they take room; no primary is theirs."""
    cluster = cluster_of(("one", 4, False), ("two", 4, False), items={"i": 2, "j": 1})
    cluster.put_assignment("i", "a", "one", 0)
    cluster.put_assignment("i", "a", "two", 1)
    cluster.put_assignment("j", "a", "gone", 0)
    cluster.put_assignment("dead", "a", "one", 0)

    loads = cluster.state().loads

    assert loads.total == {ONE: 2, TWO: 1}
    assert loads.primary == {ONE: 1, TWO: 0}


@pytest.mark.parametrize(
    ("exiting", "items", "kept"),
    [
        ({"one", "two"}, {"i": 1, "j": 1}, (0, 0)),
        ({"one", "two", "three"}, {"i": 4, "j": 1}, (1, 1, 1)),
        ({"one", "two"}, {f"i{n}": 1 for n in range(10)}, (0, 2)),
        ({"one"}, {f"i{n}": 1 for n in range(16)}, (4,)),
        ({"one"}, {"wide": 4, "i": 1, "j": 1, "k": 1, "l": 1}, (1,)),
        (set(), {"i": 1}, ()),
    ],
    ids=[
        "all at once",
        "too few would stay",
        "room for two short",
        "overloaded",
        "a wide one",
        "nobody",
    ],
)
def test_exiting_members_keep_only_what_nobody_else_can_take(
    exiting: set[str], items: dict[str, int], kept: tuple[int, ...]
) -> None:
    """Each replica leaves if another member can take it, the oldest member's first, whatever other items want."""
    suffixes = ("one", "two", "three", "four")
    cluster = cluster_of(*((s, 4, False) for s in suffixes), items={})
    for item_id, replication in items.items():
        cluster.put_item(item_id, replication)
    cluster.settle()

    for suffix in suffixes:
        if suffix in exiting:
            cluster.put_member("a", suffix, 4, exiting=True)
    cluster.settle()

    state = cluster.state()
    leaving = [m for m in (ONE, TWO, THREE, FOUR) if m.suffix in exiting]
    assert tuple(state.loads.total[m] for m in leaving) == kept
    assert sum(state.loads.total.values()) == state.item_slots
    assert state.member_slots == 4 * (4 - len(exiting))


def test_state_zone_of_a_drained_member_stays_a_zone() -> None:
    """A fully shed member still counts its zone; a member that never takes anything does not."""
    cluster = cluster_of(("one", 4, False), items={})
    cluster.put_member("b", "leaving", 4, exiting=True)
    cluster.put_member("c", "spectator", 0)

    assert cluster.state().zones == ("a", "b")


def test_state_demand_changes_with_members_and_items_only() -> None:
    """A plan survives assignments and statuses; it is made again for limits, exits, items and long failures."""
    cluster = cluster_of(("one", 4, False), ("two", 4, False), items={"i": 1})
    before = cluster.state().demand()

    cluster.put_assignment("i", "a", "one", 0)
    cluster.put_member("a", "one", 4)
    assert cluster.state().demand() == before

    cluster.put_member("a", "one", 5)
    assert cluster.state().demand() != before
    cluster.put_member("a", "one", 4, exiting=True)
    assert cluster.state().demand() != before
    cluster.put_member("a", "one", 4)
    cluster.avoided = frozenset({(ItemId("i"), ONE)})
    assert cluster.state().demand() != before
    cluster.avoided = frozenset()
    cluster.put_item("j", 0)
    assert cluster.state().demand() != before


def test_fair_share_is_proportional_to_limits_and_rounded_up() -> None:
    """Six replicas over limits 2, 2 and 4: at most two, two and three; members without room have no share."""
    problem = Problem(
        members=tuple(
            ProblemMember(member_id=MemberId("a", name), limit=limit, exiting=False)
            for name, limit in (("p", 2), ("q", 2), ("r", 4), ("s", 0))
        ),
        items=tuple(
            ProblemItem(item_id=ItemId(f"i{r}"), replication=r, current=(), primary=None)
            for r in (1, 2, 3)
        ),
    )

    windows = load_windows(problem.members, Totals.of(problem), problem.objective)
    assert {m.suffix: window.ceiling for m, window in windows.items()} == {
        "p": 2,
        "q": 2,
        "r": 3,
    }
