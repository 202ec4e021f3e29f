"""The derived state against a look at everything: what is kept change by change is what one would count."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, strategies as st

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.state.alloc_state import AllocState
from broadsheet.allocator.state.derived_state import DerivedState
from broadsheet.allocator.state.failed_replicas import FailedSince
from broadsheet.allocator.state.mirror import Mirror
from tests.support.memory_cluster import ValueConsistency
from tests.support.plain_values import PlainDecoder

KEYS = Keys("/r")
ITEMS = tuple(ItemId(name) for name in ("one", "two", "three"))
MEMBERS = tuple(MemberId("zone", name) for name in ("p", "q", "r"))
NAMES = (
    *map(KEYS.item, ITEMS),
    *map(KEYS.member, MEMBERS),
    *(KEYS.assignment(i, m, slot) for i in ITEMS for m in MEMBERS for slot in (0, 1)),
)
SPECS = (
    b"R=0",
    b"R=1",
    b"R=3",
    b"limit=1",
    b"limit=4",
    b"limit=4,exiting",
    b"limit=4,cordoned",
    b"bad",
)


@dataclass(frozen=True)
class Event:
    """One change in etcd; without a value, a deletion."""

    key: bytes
    value: bytes | None


events = st.builds(Event, st.sampled_from(NAMES), st.none() | st.sampled_from(SPECS))


def never(_: Assignment) -> bool:
    """No replica fails here."""
    return False


@given(st.lists(st.lists(events, max_size=6), max_size=12))
def test_tracker_after_any_changes_equals_a_look_at_everything(steps: list[list[Event]]) -> None:
    """Items, members and replicas come, change and go in any order: sums, limits and groups are those of a fresh look.

    What a step opened is exactly what it touched, and a demand that differs is announced.
    """
    mirror = Mirror(KEYS, PlainDecoder())
    derived = new_derived_state(mirror)
    created: dict[bytes, int] = {}
    revision = 1
    for step in steps:
        before, version = scratch(mirror, revision), derived.plan_version
        for event in step:
            revision += 1
            put_or_delete(mirror, event, created, revision)
        changes = mirror.take_changes()
        derived.apply(changes)

        expected = scratch(mirror, revision)
        assert derived.whole(revision=revision).state() == expected
        assert derived.take_open() == changes.items | {k.item_id for k in changes.assignments}
        assert derived.plan_version != version or expected.demand() == before.demand()
        assert [derived.holds_items(m) for m in MEMBERS] == [
            any(a.member_id == m for i in expected.items for a in expected.assignments.get(i, ()))
            for m in MEMBERS
        ]
        assert derived.whole(revision=revision) == new_derived_state(mirror).whole(
            revision=revision
        )


def new_derived_state(mirror: Mirror) -> DerivedState:
    """Look at everything."""
    return DerivedState(
        mirror,
        local_id=MEMBERS[0],
        failed=FailedSince(never, ValueConsistency(), after_seconds=1.0),
    )


def scratch(mirror: Mirror, revision: int) -> AllocState:
    """Derive everything from everything."""
    return AllocState.observe(mirror, revision=revision, local_id=MEMBERS[0])


def put_or_delete(mirror: Mirror, event: Event, created: dict[bytes, int], revision: int) -> None:
    """Show an event to the mirror."""
    if event.value is None:
        created.pop(event.key, None)
        mirror.delete(event.key)
        return
    mirror.put(
        KeyValue(
            key=event.key,
            value=event.value,
            create_revision=created.setdefault(event.key, revision),
            mod_revision=revision,
            version=1,
            lease=0,
        )
    )
