"""What a leaving member gives up: never what items need to span two zones while somebody stays in its zone."""

from __future__ import annotations

import pytest

from tests.support.memory_cluster import MemoryCluster, single_zone_items


def cluster_of(*members: tuple[str, str, int, bool], items: int) -> MemoryCluster:
    """Members (zone, suffix, limit, exiting), oldest first, and items of two replicas."""
    cluster = MemoryCluster()
    for zone, suffix, limit, exiting in members:
        cluster.put_member(zone, suffix, limit, exiting=exiting)
    for number in range(items):
        cluster.put_item(f"i{number}", 2)
    return cluster


@pytest.mark.parametrize(
    ("staying_in_b", "kept"),
    [((), 0), ((4,), 6), ((4, 4), 2), ((4, 4, 4), 0), ((100,), 0), ((0,), 0)],
)
def test_drain_keeps_what_the_zone_needs(staying_in_b: tuple[int, ...], kept: int) -> None:
    """Ten items need ten places in zone b: what those that stay there lack is kept; a zone nobody stays in is given up.

    Room is ample in zone a, so that nothing but the zone holds the drain back.
    """
    cluster = cluster_of(
        ("a", "one", 30, False),
        ("a", "two", 30, False),
        ("b", "leaves", 10, False),
        *(("b", f"stays{n}", limit, False) for n, limit in enumerate(staying_in_b)),
        items=10,
    )
    cluster.settle()

    cluster.put_member("b", "leaves", 10, exiting=True)
    cluster.settle()

    assert cluster.loads()["b#leaves"] == kept


def test_drain_of_two_members_keeps_together_what_their_zone_needs() -> None:
    """The older drains first; the younger keeps what it has, for the zone needs more than those that stay can take."""
    cluster = cluster_of(
        ("a", "one", 30, False),
        ("b", "first", 8, False),
        ("b", "second", 8, False),
        ("b", "stays", 5, False),
        items=10,
    )
    cluster.settle()
    held = cluster.loads()["b#second"]

    for leaving in ("first", "second"):
        cluster.put_member("b", leaving, 8, exiting=True)
    cluster.settle()

    loads = cluster.loads()
    assert (loads["b#first"], loads["b#second"], loads["b#stays"]) == (5 - held, held, 5)


def test_shedding_no_item_loses_its_zone_to_a_drain_and_a_newcomer_ends_it() -> None:
    """A drain that zones hold back leaves every item in two zones; once there is room in its zone it completes."""
    cluster = cluster_of(
        ("a", "one", 20, False),
        ("a", "two", 20, False),
        ("b", "old", 10, False),
        ("b", "stays", 4, False),
        items=10,
    )
    cluster.settle()
    cluster.put_member("b", "old", 10, exiting=True)
    cluster.settle()
    waiting = single_zone_items(cluster.state()), cluster.loads()["b#old"]
    cluster.put_member("b", "new", 10)
    cluster.settle()

    assert waiting == ([], 6)
    assert single_zone_items(cluster.state()) == []
    assert cluster.loads()["b#old"] == 0
