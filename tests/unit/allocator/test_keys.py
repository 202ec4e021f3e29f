"""Keys of the key space: both ways, and everything that is no key."""

from __future__ import annotations

import pytest

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.keys import (
    AssignmentKey,
    AuxiliaryKeys,
    ItemKey,
    Keys,
    MemberKey,
    member_id_below,
)
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.runtime.errors import ValidationError

KEYS = Keys("/root")


def test_keys_built_and_parsed_are_the_same_things() -> None:
    """Each kind of key parses back into what it was built from: etcd is the only memory there is."""
    member = MemberId("zone-a", "member-1")

    assert KEYS.parse(KEYS.item(ItemId("my/shard"))) == ItemKey(ItemId("my/shard"))
    assert KEYS.parse(KEYS.member(member)) == MemberKey(member)
    assert KEYS.parse(KEYS.assignment(ItemId("my/shard"), member, 12)) == AssignmentKey(
        ItemId("my/shard"), member, 12
    )


def test_keys_have_the_documented_syntax() -> None:
    """The literal keys are shared with Gazette's own processes, so their bytes are pinned."""
    member = MemberId("us-east", "foo")

    assert KEYS.item(ItemId("item-1")) == b"/root/items/item-1"
    assert KEYS.member(member) == b"/root/members/us-east#foo"
    assert KEYS.assignment(ItemId("item-1"), member, 0) == b"/root/assign/item-1#us-east#foo#0"


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (b"/root/items/a#b", "items/{id}"),
        (b"/root/items/", "items/{id}"),
        (b"/root/members/zone", "members/{zone}#{suffix}"),
        (b"/root/assign/a#b#c", "assign/{id}"),
        (b"/root/assign/a#b#c#x", "slot number"),
        (b"/root/assign/a#b#c#-1", "slot number"),
        ("/root/assign/a#b#c#²".encode(), "slot number"),
        (b"/root/other/a", "below /root"),
        (b"/rootX/items/a", "below /root"),
        (b"/root/items/\xff", "UTF-8"),
    ],
)
def test_parse_malformed_key_says_what_was_expected(key: bytes, problem: str) -> None:
    """A foreign key is named together with the syntax it breaks, so that a log line is enough to find its writer."""
    with pytest.raises(KeyDecodeError, match=problem.replace("{", r"\{").replace("}", r"\}")):
        KEYS.parse(key)


@pytest.mark.parametrize("root", ["", "/", "root", "/root/", "/a//b", "/a/../b", "//a"])
def test_root_that_is_no_clean_path_is_refused(root: str) -> None:
    """A root with a stray slash would silently be another root."""
    with pytest.raises(ValidationError, match="root"):
        Keys(root)


@pytest.mark.parametrize("item_id", ["", "a#b", "a b", "a\x00"])
def test_item_key_with_a_low_byte_is_a_programming_error(item_id: str) -> None:
    """A byte at or below '#' would break the order on which range reads rely."""
    with pytest.raises(AssertionError):
        KEYS.item(ItemId(item_id))


def test_assignments_of_one_item_are_one_range() -> None:
    """Items whose ids start alike do not mix: the range of `a` ends before `a-b` begins."""
    member = MemberId("z", "member")
    begin = KEYS.assignments_of(ItemId("a"))
    end = prefix_range_end(begin)

    assert begin <= KEYS.assignment(ItemId("a"), member, 0) < end
    assert not begin <= KEYS.assignment(ItemId("a-b"), member, 0) < end
    assert not begin <= KEYS.assignment(ItemId("a/b"), member, 0) < end


def test_prefix_range_end_carries_over_high_bytes() -> None:
    """0xff cannot be incremented, so the carry goes to the byte before it."""
    assert prefix_range_end(b"a\xff\xff") == b"b"
    assert prefix_range_end(b"ab") == b"ac"
    assert prefix_range_end(b"\xff") == b"\x00"


def test_auxiliary_keys_lie_outside_the_root_and_tell_members() -> None:
    """A mirror of the root never sees them; elections have a prefix of their own, without plans and loads."""
    aux = AuxiliaryKeys("/cluster")
    member = MemberId("zone-a", "member-1")

    assert aux.leader == b"/broadsheet.v1/cluster/leader"
    election = (aux.leader, aux.epoch, aux.candidate(member))
    others = (aux.plan(), aux.plan(3), aux.load(member))
    assert all(key.startswith(aux.leader) for key in election)
    assert not any(key.startswith(aux.leader) for key in others)
    assert len({*election, *others}) == 6
    assert not any(key.startswith(Keys("/cluster").watched_prefix) for key in (*election, *others))
    assert member_id_below(aux.candidates_prefix, aux.candidate(member)) == member
    assert member_id_below(aux.loads_prefix, aux.load(member)) == member
    with pytest.raises(KeyDecodeError, match="zone"):
        member_id_below(aux.loads_prefix, aux.loads_prefix + b"neither")
