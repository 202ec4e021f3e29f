"""The syntax of keys in the key space: building and parsing.

    {root}/items/{id}                            an item
    {root}/members/{zone}#{suffix}               a member
    {root}/assign/{id}#{zone}#{suffix}#{slot}    an assignment

Keys that only this project's members know lie outside the root, where mirrors of the root never see them:
`AuxiliaryKeys`.

    /broadsheet.v1{root}/leader                            who leads; on the leader's lease
    /broadsheet.v1{root}/leader/epoch                      how often leadership was taken; stays
    /broadsheet.v1{root}/leader/candidates/{zone}#{suffix} a member that may lead; on its lease
    /broadsheet.v1{root}/formats                           the level of stored formats; stays
    /broadsheet.v1{root}/plan, plan/{chunk}                the leader's remaining work
    /broadsheet.v1{root}/loads/{zone}#{suffix}             a member's measured loads; on its lease
    /broadsheet.v1{root}/moves/{time}-{writer}-{number}    one transaction's moves of assignments

`#` sorts below every byte that an id, a zone or a suffix may contain, so the byte order of keys is the order of their
tuples, and the assignments of one item are one contiguous range.

Source: gazette/core allocator/alloc_key_space.go (key syntax).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.runtime.errors import ValidationError

SEPARATOR = "#"
AUXILIARY_ROOT = "/broadsheet.v1"


def check_root(root: str) -> str:
    """Return `root` if it is an absolute, clean path.

    Raises:
        ValidationError: it is not; the message says what is expected.
    """
    if (
        not root.startswith("/")
        or root == "/"
        or posixpath.normpath(root) != root
        or root.startswith("//")
    ):
        raise ValidationError(
            "root", f"expected an absolute clean path such as /broadsheet/app, got {root!r}"
        )
    return root


def _checked(part: str, what: str) -> str:
    if not part or min(part.encode()) <= ord(SEPARATOR):
        raise AssertionError(f"{what} {part!r} is empty or holds a byte at or below '#'")
    return part


@lru_cache
def _prefixes(root: str) -> tuple[bytes, bytes, bytes]:
    """Return the prefixes of items, members and assignments, which every parsed or built key needs."""
    return f"{root}/items/".encode(), f"{root}/members/".encode(), f"{root}/assign/".encode()


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds the keys of one root."""

    root: str

    def __post_init__(self) -> None:
        check_root(self.root)

    @property
    def watched_prefix(self) -> bytes:
        """Prefix of everything under the root, with the slash that excludes `/rootX`."""
        return f"{self.root}/".encode()

    @property
    def items_prefix(self) -> bytes:
        """Prefix of every item."""
        return _prefixes(self.root)[0]

    @property
    def members_prefix(self) -> bytes:
        """Prefix of every member."""
        return _prefixes(self.root)[1]

    @property
    def assignments_prefix(self) -> bytes:
        """Prefix of every assignment."""
        return _prefixes(self.root)[2]

    def item(self, item_id: ItemId) -> bytes:
        """Return the key of an item."""
        return self.items_prefix + _checked(item_id, "item id").encode()

    def member(self, member_id: MemberId) -> bytes:
        """Return the key of a member."""
        return self.members_prefix + _member_part(member_id)

    def assignment(self, item_id: ItemId, member_id: MemberId, slot: int) -> bytes:
        """Return the key of an assignment; slot 0 is the primary."""
        assert slot >= 0, "slots count from 0"
        return (
            self.assignments_of(item_id) + _member_part(member_id) + f"{SEPARATOR}{slot}".encode()
        )

    def assignments_of(self, item_id: ItemId) -> bytes:
        """Return the prefix of the assignments of one item."""
        return self.assignments_prefix + f"{_checked(item_id, 'item id')}{SEPARATOR}".encode()

    def parse(self, key: bytes) -> ParsedKey:
        """Parse a key under the root.

        Raises:
            KeyDecodeError: the key has another prefix, another number of parts, or a slot that is no number.
        """
        items, members, assignments = _prefixes(self.root)
        if key.startswith(assignments):
            return _parse_assignment(key, key[len(assignments) :])
        if key.startswith(items):
            return _parse_item(key, key[len(items) :])
        if key.startswith(members):
            return _parse_member(key, key[len(members) :])
        raise KeyDecodeError(key, f"expected items/, members/ or assign/ below {self.root}")


@dataclass(frozen=True, slots=True)
class AuxiliaryKeys:
    """Builds the keys that belong to a root but lie outside it."""

    root: str

    def __post_init__(self) -> None:
        check_root(self.root)

    @property
    def prefix(self) -> bytes:
        """Prefix of all of them."""
        return f"{AUXILIARY_ROOT}{self.root}/".encode()

    @property
    def leader(self) -> bytes:
        """The leader and its heartbeat. Also the prefix of every key of an election."""
        return self.prefix + b"leader"

    @property
    def epoch(self) -> bytes:
        """The number of the current leadership: its revision fences every write of the leader."""
        return self.leader + b"/epoch"

    @property
    def candidates_prefix(self) -> bytes:
        """Prefix of every candidate."""
        return self.leader + b"/candidates/"

    @property
    def formats(self) -> bytes:
        """The level of the cluster's stored formats, which only rises."""
        return self.prefix + b"formats"

    @property
    def plan_prefix(self) -> bytes:
        """Prefix of the parts of the stored plan."""
        return self.plan() + b"/"

    @property
    def loads_prefix(self) -> bytes:
        """Prefix of every member's measured loads."""
        return self.prefix + b"loads/"

    @property
    def moves_prefix(self) -> bytes:
        """Prefix of every entry of the move log."""
        return self.prefix + b"moves/"

    def candidate(self, member_id: MemberId) -> bytes:
        """Return the key by which a member takes part in elections."""
        return self.candidates_prefix + _member_part(member_id)

    def plan(self, chunk: int | None = None) -> bytes:
        """Return the key of the stored plan's head, or of one of its chunks, which count from 0."""
        head = self.prefix + b"plan"
        return head if chunk is None else head + f"/{chunk:06}".encode()

    def load(self, member_id: MemberId) -> bytes:
        """Return the key of a member's measured loads."""
        return self.loads_prefix + _member_part(member_id)

    def death(self, item_id: ItemId) -> bytes:
        """Return the key of the record of an item's primaries that crashed early."""
        return self.prefix + b"deaths/" + item_id.encode()


def member_id_below(prefix: bytes, key: bytes) -> MemberId:
    """Return the member that an auxiliary key belongs to.

    Args:
        prefix: `AuxiliaryKeys.candidates_prefix` or `.loads_prefix`.
        key: A key with that prefix.

    Raises:
        KeyDecodeError: the part after the prefix is not a member.
    """
    zone, suffix = _parts(key, key[len(prefix) :], 2, "{zone}#{suffix}")
    return MemberId(zone, suffix)


@lru_cache(maxsize=4096)
def _member_part(member_id: MemberId) -> bytes:
    zone, suffix = _checked(member_id.zone, "zone"), _checked(member_id.suffix, "suffix")
    return f"{zone}{SEPARATOR}{suffix}".encode()


class ItemKey(NamedTuple):
    """An item's key, parsed."""

    item_id: ItemId


class MemberKey(NamedTuple):
    """A member's key, parsed."""

    member_id: MemberId


class AssignmentKey(NamedTuple):
    """An assignment's key, parsed. A tuple like the others, because each change in etcd is looked up by it."""

    item_id: ItemId
    member_id: MemberId
    slot: int


ParsedKey = ItemKey | MemberKey | AssignmentKey


def _parts(key: bytes, rest: bytes, count: int, syntax: str) -> list[str]:
    try:
        parts = rest.decode().split(SEPARATOR)
    except UnicodeDecodeError:
        raise KeyDecodeError(key, "expected UTF-8") from None
    if len(parts) != count or not all(parts):
        raise KeyDecodeError(key, f"expected {syntax}")
    return parts


def _parse_item(key: bytes, rest: bytes) -> ItemKey:
    return ItemKey(ItemId(_parts(key, rest, 1, "items/{id}")[0]))


def _parse_member(key: bytes, rest: bytes) -> MemberKey:
    zone, suffix = _parts(key, rest, 2, "members/{zone}#{suffix}")
    return MemberKey(_member_id(zone, suffix))


def _parse_assignment(key: bytes, rest: bytes) -> AssignmentKey:
    item_id, zone, suffix, slot = _parts(key, rest, 4, "assign/{id}#{zone}#{suffix}#{slot}")
    # Each slot has one spelling: `00` next to `0` would be two keys of one assignment.
    if not (slot.isascii() and slot.isdigit() and slot == str(int(slot))):
        raise KeyDecodeError(key, f"expected a slot number, got {slot!r}")
    return AssignmentKey(ItemId(item_id), _member_id(zone, suffix), int(slot))


@lru_cache(maxsize=4096)
def _member_id(zone: str, suffix: str) -> MemberId:
    """Return the same object for a member over all of its keys, because identity is compared first."""
    return MemberId(zone, suffix)
