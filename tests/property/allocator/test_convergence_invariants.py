"""Whatever happens to a cluster, every step of ours is safe, and left alone it settles."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from operator import eq

from hypothesis import given, settings, strategies as st

from broadsheet.allocator.model import ItemId, MemberId
from tests.support.memory_cluster import MemoryCluster, single_zone_items

ZONES = ("a", "b", "c")
SUFFIXES = ("one", "two", "three")
ITEMS = tuple(f"item-{number}" for number in range(6))


@dataclass(frozen=True)
class Happening:
    """Something that others do to the cluster between two of our rounds."""

    kind: str
    zone: str
    suffix: str
    item_id: str
    amount: int

    def befall(self, cluster: MemoryCluster) -> None:
        """Do it."""
        member_key = cluster.keys.member(MemberId(self.zone, self.suffix))
        match self.kind:
            case "member":
                cluster.put_member(self.zone, self.suffix, self.amount)
            case "exit" if member_key in cluster.etcd.kvs:
                limit = json.loads(cluster.etcd.kvs[member_key].value)["R"]
                cluster.put_member(self.zone, self.suffix, limit, exiting=True)
            case "kill" if member_key in cluster.etcd.kvs:
                cluster.kill_member(self.zone, self.suffix)
            case "lose member key":
                cluster.etcd.delete(member_key)
            case "item":
                cluster.put_item(self.item_id, self.amount % 4)
            case "delete item":
                cluster.delete_item(self.item_id)
            case "catch up":
                cluster.mark_consistent()
            case "stray assignment":
                cluster.put_assignment(
                    self.item_id, self.zone, self.suffix, self.amount % 3, b"consistent"
                )
            case _:
                pass


KINDS = (
    *("member",) * 4,
    *("item",) * 4,
    *("catch up",) * 3,
    "exit",
    "kill",
    "lose member key",
    "delete item",
    "stray assignment",
    "nothing",
)

happenings = st.builds(
    Happening,
    kind=st.sampled_from(KINDS),
    zone=st.sampled_from(ZONES),
    suffix=st.sampled_from(SUFFIXES),
    item_id=st.sampled_from(ITEMS),
    amount=st.integers(0, 8),
)


@settings(max_examples=120, deadline=None)
@given(
    story=st.lists(st.tuples(happenings, st.sampled_from([None, *ITEMS])), max_size=30),
)
def test_convergence_through_any_story_keeps_every_invariant(
    story: list[tuple[Happening, str | None]],
) -> None:
    """Members and items come and go, some steps are refused: I1, I2, I3 after each step; I5, I6 once left alone.

    The cluster checks I1 to I3 within `round`, and I5 within `settle`.
    """
    cluster = MemoryCluster()
    cluster.put_member("a", "leader", 2)
    for happening, refused_item in story:
        happening.befall(cluster)
        if cluster.state().members:
            cluster.round(refuse=partial(eq, refused_item))

    if not cluster.state().members:
        return
    cluster.settle()

    last = cluster.round()
    assert last.steps == (), "I6"
    state = cluster.state()
    for item_id, group in state.assignments.items():
        # A standby that cannot go yet may share its slot with the one that replaces it.
        slots = {a.slot for a in group}
        assert slots in (set(range(len(slots))), set(range(1, len(slots) + 1))), item_id
        staying = [a.slot for a in group if a.member_id in cluster.desired.get(item_id, ())]
        assert len(set(staying)) == len(staying), item_id
    if not last.adds_blocked and not last.removes_blocked:
        assert {
            item_id: tuple(sorted({a.member_id for a in state.assignments.get(item_id, ())}))
            for item_id in state.items
        } == cluster.desired


@settings(max_examples=60, deadline=None)
@given(
    replications=st.lists(st.integers(1, 3), min_size=1, max_size=8),
    members=st.sets(
        st.tuples(st.sampled_from(ZONES), st.sampled_from(SUFFIXES)), min_size=1, max_size=9
    ),
)
def test_convergence_with_room_spans_two_zones_wherever_there_are_two(
    replications: list[int], members: set[tuple[str, str]]
) -> None:
    """I4: with room everywhere, an item of two or more replicas stands in one zone only if there is but one."""
    cluster = MemoryCluster()
    for zone, suffix in sorted(members):
        cluster.put_member(zone, suffix, 24)
    for number, replication in enumerate(replications):
        cluster.put_item(f"item-{number}", replication)

    cluster.settle()

    state = cluster.state()
    if len(state.zones) > 1:
        assert single_zone_items(state) == []
    for item_id, item in state.items.items():
        wanted = min(item.value.desired_replication(), len(members))
        assert len(state.assignments[ItemId(item_id)]) == wanted
