"""However a cluster is renewed, hurt or throttled, every step of ours is safe, and left alone it comes to rest."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import event, given, settings, strategies as st

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.policy import TransitionPolicy
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT
from tests.support.memory_cluster import MemoryCluster, is_consistent

ZONES = ("a", "b", "c")
SUFFIXES = ("one", "two", "three", "four")
ITEMS = tuple(f"item-{number}" for number in range(8))
SETTLE_SECONDS, PATIENCE_SECONDS = 60.0, 120.0


@dataclass(frozen=True)
class Event:
    """Something that others do to the cluster between two of our rounds."""

    kind: str
    zone: str
    suffix: str
    item_id: str
    amount: int

    def befall(self, cluster: MemoryCluster) -> None:
        """Do it."""
        cluster.now_monotonic_seconds += 10.0
        key = cluster.keys.member(MemberId(self.zone, self.suffix))
        known = cluster.etcd.kvs.get(key)
        match self.kind:
            case "join" | "resize":
                cluster.put_member(self.zone, self.suffix, self.amount)
            case "exit" if known is not None:
                cluster.put_member(
                    self.zone, self.suffix, json.loads(known.value)["R"], exiting=True
                )
            case "cordon" if known is not None:
                was = json.loads(known.value)
                cluster.put_member(self.zone, self.suffix, was["R"], cordoned=not was["C"])
            case "replace" if known is not None:
                limit = json.loads(known.value)["R"]
                cluster.put_member(self.zone, self.suffix, limit, exiting=True)
                cluster.put_member(self.zone, f"{self.suffix}-next", limit)
            case "kill" if known is not None:
                cluster.kill_member(self.zone, self.suffix)
            case "fail":
                self._fail_standby(cluster)
            case "item":
                cluster.put_item(self.item_id, self.amount % 4)
            case "one catches up":
                cluster.mark_consistent(self.item_id.__eq__)
            case "all catch up":
                cluster.mark_consistent()
            case "time passes":
                cluster.now_monotonic_seconds += 20.0 * self.amount
            case "leave":
                cluster.leave_drained()
            case _:
                pass

    def _fail_standby(self, cluster: MemoryCluster) -> None:
        """A standby stays failed while its item is served by another replica: what the leader looks out for."""
        group = cluster.state().assignments.get(ItemId(self.item_id), ())
        if not any(a.slot == PRIMARY_SLOT and is_consistent(a) for a in group):
            return
        for assignment in group:
            if assignment.slot != PRIMARY_SLOT:
                cluster.etcd.put(assignment.kv.key, b"failed", lease=assignment.kv.lease)
                cluster.avoided |= {(assignment.item_id, assignment.member_id)}
                return


KINDS = (
    *("join",) * 3,
    *("item",) * 3,
    *("one catches up",) * 3,
    *("all catch up",) * 2,
    *("replace",) * 2,
    "exit",
    "cordon",
    "resize",
    "kill",
    "fail",
    "leave",
    "time passes",
    "nothing",
)

events = st.builds(
    Event,
    kind=st.sampled_from(KINDS),
    zone=st.sampled_from(ZONES),
    suffix=st.sampled_from(SUFFIXES),
    item_id=st.sampled_from(ITEMS),
    amount=st.integers(0, 8),
)
policies = st.builds(
    TransitionPolicy,
    moves_per_member_max=st.integers(0, 2),
    moves_max=st.integers(0, 3),
    settle_seconds=st.sampled_from([0.0, SETTLE_SECONDS]),
    drain_patience_seconds=st.sampled_from([0.0, PATIENCE_SECONDS]),
)


@settings(max_examples=150, deadline=None)
@given(
    policy=policies,
    limits=st.lists(st.integers(1, 5), min_size=3, max_size=9),
    replications=st.lists(st.integers(1, 3), min_size=1, max_size=len(ITEMS)),
    story=st.lists(events, min_size=1, max_size=35),
)
def test_transitions_through_any_story_are_safe_and_come_to_rest(
    policy: TransitionPolicy, limits: list[int], replications: list[int], story: list[Event]
) -> None:
    """Joins, exits, deaths, failures, slow replicas and budgets: each round is judged, and rest is a fixed point.

    Judged in `round`: consistent replicas and zones kept, one primary, no more moves than allowed, no more than one
    replica over a limit, nothing new on a member that leaves. `settle` bounds the rounds to rest.
    """
    cluster = MemoryCluster(policy=policy)
    for n, limit in enumerate(limits):
        cluster.put_member(ZONES[n % 3], SUFFIXES[n // 3], limit)
    for item_id, replication in zip(ITEMS, replications, strict=False):
        cluster.put_item(item_id, replication)
    cluster.settle(waiting=True)
    for each in story:
        each.befall(cluster)
        if cluster.state().members:
            cluster.round()
    if not cluster.state().members:
        return

    cluster.settle(waiting=True)

    state, last = cluster.state(), cluster.round()
    assert last.steps == (), "I6"
    assert not cluster.overcommits.members, "an overcommit was not undone"
    event(f"overcommits: {cluster.overcommits.count}")
    for item_id, item in state.items.items():
        held = {a.member_id for a in state.assignments.get(item_id, ())}
        waits = [b for b in last.blocked if b.item_id == item_id]
        if held != set(cluster.desired[item_id]):
            assert waits, f"{item_id} is not where it should be, and nothing says why"
        elif len(held) < item.value.desired_replication():
            assert waits, f"{item_id} is short, and nothing says why"


@settings(max_examples=100, deadline=None)
@given(
    limits=st.lists(st.integers(1, 3), min_size=4, max_size=8),
    data=st.data(),
)
def test_transitions_between_any_full_placements_get_there(
    limits: list[int], data: st.DataObject
) -> None:
    """Every member full, items dealt at random before and after: whatever the exchange, it is carried out.

    Items of one replica, so that every exchange is possible: each addition frees the place of the replica it replaces.
    """
    members = [(ZONES[n % 2], f"m{n}") for n in range(len(limits))]
    places = [member for member, limit in zip(members, limits, strict=True) for _ in range(limit)]
    before = data.draw(st.permutations(places))
    after = data.draw(st.permutations(places))
    cluster = MemoryCluster()
    for (zone, suffix), limit in zip(members, limits, strict=True):
        cluster.put_member(zone, suffix, limit)
    for number, (zone, suffix) in enumerate(before):
        cluster.put_item(f"i{number:02}", 1)
        cluster.put_assignment(f"i{number:02}", zone, suffix, 0)
    cluster.demand = cluster.state().demand()
    cluster.desired = {
        ItemId(f"i{number:02}"): (MemberId(*place),) for number, place in enumerate(after)
    }

    cluster.settle()

    assert cluster.placement() == {
        item_id: [str(m) for m in placed] for item_id, placed in cluster.desired.items()
    }
    assert not cluster.overcommits.members
    event(f"overcommits: {cluster.overcommits.count}")
