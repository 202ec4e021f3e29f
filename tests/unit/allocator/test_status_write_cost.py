"""What one status write costs a leader: counted in objects looked at, not in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.decision import Decision, DecisionBasis, decide
from broadsheet.allocator.metrics import AllocatorMetrics
from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.placement.problem import Desired, Problem
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.allocator.state.derived_state import DerivedState
from broadsheet.allocator.state.failed_replicas import FailedSince
from broadsheet.allocator.state.mirror import Mirror
from broadsheet.allocator.transition.capacity import WaitReason
from tests.support.plain_values import PlainDecoder

KEYS = Keys("/r")
MEMBERS = tuple(MemberId("zone", f"m{number}") for number in range(4))
K = TypeVar("K")
V = TypeVar("V")


@dataclass
class Count:
    """Objects looked at."""

    looks: int = 0


class CountingMapping(Mapping[K, V]):
    """Counts what is read of a mapping."""

    def __init__(self, inner: Mapping[K, V], count: Count) -> None:
        self._inner = inner
        self._count = count

    def __getitem__(self, key: K) -> V:
        self._count.looks += 1
        return self._inner[key]

    def __iter__(self) -> Iterator[K]:
        for key in self._inner:
            self._count.looks += 1
            yield key

    def __len__(self) -> int:
        return len(self._inner)


class CountingContents:
    """A mirror whose reads are counted."""

    def __init__(self, mirror: Mirror, count: Count) -> None:
        self.items: Mapping[ItemId, Item] = CountingMapping(mirror.items, count)
        self.members: Mapping[MemberId, Member] = CountingMapping(mirror.members, count)
        self.assignments: Mapping[tuple[ItemId, MemberId, int], Assignment] = CountingMapping(
            mirror.assignments, count
        )


@dataclass
class CountingConsistency:
    """A replica is consistent when its value says so; counts the questions."""

    count: Count

    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        """Return whether the value is the word."""
        self.count.looks += 1
        return assignment.kv.value == b"consistent"

    def standby_value(self, primary: Assignment) -> bytes:
        """Return the value unchanged."""
        return primary.kv.value


class InPlace:
    """A solver that leaves everything where it is."""

    def solve(self, problem: Problem) -> Desired:
        """Return what is."""
        return {item.item_id: item.current for item in problem.items}


@dataclass
class Leader:
    """A mirror, its derived state, and a plan in force."""

    items: int
    count: Count = field(default_factory=Count)
    plan: Plan | None = None

    def __post_init__(self) -> None:
        """Fill the mirror, and decide once."""
        self.mirror = Mirror(KEYS, PlainDecoder())
        self.revision = 1
        for member_id in MEMBERS:
            self.put(KEYS.member(member_id), b"limit=100000")
        for number in range(self.items):
            item_id = ItemId(f"item-{number:05}")
            self.put(KEYS.item(item_id), b"R=1")
            self.put(KEYS.assignment(item_id, MEMBERS[number % 4], 0), b"consistent")
        self.mirror.take_changes()
        self.consistency = CountingConsistency(self.count)
        self.derived = DerivedState(
            CountingContents(self.mirror, self.count),
            local_id=MEMBERS[0],
            failed=FailedSince(
                lambda assignment: assignment.kv.value == b"failed",
                self.consistency,
                after_seconds=60.0,
            ),
        )
        self.derived.observe_failures(0.0)
        self.look(whole=True)

    def put(self, key: bytes, value: bytes) -> None:
        """Show a key to the mirror."""
        self.revision += 1
        known = self.mirror.kv_or_none(key)
        self.mirror.put(
            KeyValue(
                key=key,
                value=value,
                create_revision=known.create_revision if known else self.revision,
                mod_revision=self.revision,
                version=1,
                lease=7,
            )
        )

    def look(self, *, whole: bool = False) -> Decision:
        """Decide on what is open, as the loop does."""
        opened = self.derived.take_open()
        snapshot = (
            self.derived.whole(revision=self.revision)
            if whole
            else self.derived.partial(opened, revision=self.revision)
        )
        decision = decide(
            DecisionBasis(
                snapshot=snapshot,
                plan=self.plan,
                solver=InPlace(),
                policy=AllocationPolicy(),
                consistency=self.consistency,
                keys=KEYS,
            )
        )
        assert isinstance(decision, Decision)
        self.plan = decision.plan
        self.derived.open(decision.open)
        return decision

    def status_write(self, value: bytes) -> tuple[int, int]:
        """Return how many objects a status write has the leader look at, and how many items it decides on."""
        self.count.looks = 0
        self.put(KEYS.assignment(ItemId("item-00007"), MEMBERS[3], 0), value)
        self.derived.apply(self.mirror.take_changes())
        self.derived.observe_failures(1.0)
        decision = self.look()
        return self.count.looks, len(decision.state.items)


def test_status_write_looks_at_as_much_among_ten_thousand_items_as_among_ten() -> None:
    """One replica reports: a handful of objects are looked at, however many items there are, and one is decided on."""
    few, many = Leader(items=10), Leader(items=10_000)

    costs = [leader.status_write(b"consistent, again") for leader in (few, many)]

    assert costs[0] == costs[1]
    looks, decided = costs[1]
    assert decided == 1
    assert looks <= 10


def test_settled_cluster_leaves_nothing_open() -> None:
    """After a look at everything there is nothing to look at; a step that waits keeps its item open."""
    leader = Leader(items=100)
    assert not leader.derived.open_items

    leader.status_write(b"consistent")

    assert not leader.derived.open_items


@pytest.mark.parametrize(
    ("replication", "exiting"), [(5, None), (1, MEMBERS[3])], ids=["too-few-members", "nobody-else"]
)
def test_item_that_waits_for_another_plan_is_not_looked_at_until_there_is_one(
    replication: int, exiting: MemberId | None
) -> None:
    """More replicas are wanted than members are there, or a member that leaves keeps what nobody else can take: what
    the plan itself does not provide for no status write brings about.
    """
    leader = Leader(items=100)
    for number in range(100):
        leader.put(KEYS.item(ItemId(f"item-{number:05}")), b"R=%d" % replication)
    if exiting is not None:
        leader.put(KEYS.member(exiting), b"limit=100000,exiting")
    leader.derived.apply(leader.mirror.take_changes())
    decision = leader.look(whole=True)
    assert any(each.reason is WaitReason.NO_MEMBER for each in decision.convergence.blocked)

    _, decided = leader.status_write(b"consistent, again")

    assert decided == 1
    assert not decision.is_crowded


def test_additions_without_a_place_are_still_shown_after_a_look_at_less() -> None:
    """Ten items lack places for four replicas each; a status write has the leader look at one. All ten still do."""
    leader, metrics = Leader(items=10), AllocatorMetrics()
    for number in range(10):
        leader.put(KEYS.item(ItemId(f"item-{number:05}")), b"R=5")
    leader.derived.apply(leader.mirror.take_changes())
    shown: list[float | None] = []
    for whole in (True, False):
        leader.put(KEYS.assignment(ItemId("item-00007"), MEMBERS[3], 0), b"consistent, again")
        leader.derived.apply(leader.mirror.take_changes())
        decision = leader.look(whole=whole)
        metrics.on_decided(decision.state, decision.convergence, items=10)
        shown.append(metrics.registry.get_sample_value("gazette_allocator_adds_blocked"))

    assert shown == [10.0, 10.0]
