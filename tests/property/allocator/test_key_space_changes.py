"""What a key space says of its last step: whoever looks only there must miss nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, strategies as st

from broadsheet.allocator.keys import AssignmentKey, ItemKey, Keys, MemberKey, ParsedKey
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.state.mirror import Changes, Mirror
from tests.support.plain_values import PlainDecoder

KEYS = Keys("/r")
MEMBER = MemberId("zone", "member")
NAMES = (
    KEYS.item(ItemId("one")),
    KEYS.item(ItemId("two")),
    KEYS.member(MEMBER),
    KEYS.assignment(ItemId("one"), MEMBER, 0),
    KEYS.assignment(ItemId("two"), MEMBER, 1),
    b"/r/neither",
)
VALUES = (b"R=1", b"R=2", b"limit=3", b"limit=4,exiting", b"bad")


@dataclass(frozen=True)
class Event:
    """One change in etcd; without a value, a deletion."""

    key: bytes
    value: bytes | None


events = st.builds(Event, st.sampled_from(NAMES), st.none() | st.sampled_from(VALUES))


def contents(mirror: Mirror) -> dict[ParsedKey, object]:
    """Everything decoded, by key."""
    return {
        **{ItemKey(key): item for key, item in mirror.items.items()},
        **{MemberKey(key): member for key, member in mirror.members.items()},
        **{AssignmentKey(*key): each for key, each in mirror.assignments.items()},
    }


def named(changes: Changes) -> set[ParsedKey]:
    """Every key that changes name."""
    items = {ItemKey(item_id) for item_id in changes.items}
    return items | {MemberKey(member_id) for member_id in changes.members} | changes.assignments


@given(st.lists(st.lists(events, max_size=4), max_size=8))
def test_changes_name_all_that_differs_and_nothing_untouched(steps: list[list[Event]]) -> None:
    """Values good, bad and deleted, in steps of several events: what differs is named, and only what an event named."""
    mirror = Mirror(KEYS, PlainDecoder())
    created: dict[bytes, int] = {}
    revision = 1
    for step in steps:
        before = contents(mirror)
        for event in step:
            revision += 1
            if event.value is None:
                created.pop(event.key, None)
                mirror.delete(event.key)
                continue
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
        after = contents(mirror)
        changes = named(mirror.take_changes())

        assert {key for key in before | after if before.get(key) != after.get(key)} <= changes
        assert changes <= {KEYS.parse(event.key) for event in step if event.key != b"/r/neither"}
        assert not named(mirror.take_changes())
