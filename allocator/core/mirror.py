"""The decoded contents of an etcd prefix, and how one event changes them.

Invariants:

* Every key below the root is either decoded in exactly one of the three maps, or listed in `rejected`, or both: a key
  whose value went bad keeps its last good value, next to its *true* revision, so that transactions that compare it
  still work, and is listed as rejected until it is good again.
* The outcome depends on the sequence of events alone, not on how they were batched: all processes that saw the same
  revisions hold the same contents.

Source: gazette/core keyspace/key_space.go (Apply, per-event rules); true revisions of undecodable keys are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from sortedcontainers import SortedDict

from allocator.core.keys import AssignmentKey, ItemKey, Keys, MemberKey, ParsedKey
from allocator.core.model import (
    Assignment,
    Item,
    ItemId,
    ItemValue,
    Member,
    MemberId,
    MemberValue,
)
from allocator.core.ops import KeyValue
from allocator.errors import KeyDecodeError, ValidationError


class Decoder(Protocol):
    """Turns values into what their owner means by them; raises `KeyDecodeError` or `ValidationError` for bad ones."""

    def decode_item(self, item_id: ItemId, kv: KeyValue) -> ItemValue:
        """Decode an item's value; it must agree with the id in its key."""
        ...

    def decode_member(self, member_id: MemberId, kv: KeyValue) -> MemberValue:
        """Decode a member's value; it must agree with the id in its key."""
        ...

    def decode_assignment(
        self, item_id: ItemId, member_id: MemberId, slot: int, kv: KeyValue
    ) -> object:
        """Decode an assignment's value. A new assignment has the empty value."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A key that cannot be decoded."""

    kv: KeyValue
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is no longer as it was: put, deleted, or both and back again."""

    items: frozenset[ItemId] = frozenset()
    members: frozenset[MemberId] = frozenset()
    assignments: frozenset[AssignmentKey] = frozenset()


class Mirror:
    """Items, members and assignments of one root."""

    def __init__(self, keys: Keys, decoder: Decoder) -> None:
        self._keys = keys
        self._decoder = decoder
        self.items: SortedDict[ItemId, Item] = SortedDict()
        self.members: SortedDict[MemberId, Member] = SortedDict()
        self.assignments: SortedDict[tuple[ItemId, MemberId, int], Assignment] = SortedDict()
        self.rejected: dict[bytes, Rejected] = {}
        self._changed: set[ParsedKey] = set()

    def take_changes(self) -> Changes:
        """Return what changed since this was last asked."""
        changed, self._changed = self._changed, set()
        return Changes(
            items=frozenset(key.item_id for key in changed if isinstance(key, ItemKey)),
            members=frozenset(key.member_id for key in changed if isinstance(key, MemberKey)),
            assignments=frozenset(key for key in changed if isinstance(key, AssignmentKey)),
        )

    def put(self, kv: KeyValue) -> str | None:
        """Take a key as it is now. Return what is wrong with it, if that is so."""
        try:
            parsed = self._keys.parse(kv.key)
        except KeyDecodeError as error:
            rejected = self.rejected.get(kv.key)
            if rejected is None or kv.mod_revision > rejected.kv.mod_revision:
                self.rejected[kv.key] = Rejected(kv=kv, problem=error.problem)
                return error.problem
            return None
        known = self._kv_or_none(kv.key, parsed)
        if known is not None and kv.mod_revision <= known.mod_revision:
            return None
        try:
            self._insert(parsed, kv)
        except (KeyDecodeError, ValidationError) as error:
            problem = error.problem if isinstance(error, KeyDecodeError) else str(error)
            self.rejected[kv.key] = Rejected(kv=kv, problem=problem)
            self._keep_last_good(parsed, kv)
            return problem
        if self.rejected:
            self.rejected.pop(kv.key, None)
        return None

    def delete(self, key: bytes) -> None:
        """Drop a key; nothing happens if it is unknown."""
        self.rejected.pop(key, None)
        parsed = self._parsed_or_none(key)
        if parsed is not None:
            self._changed.add(parsed)
        match parsed:
            case AssignmentKey():
                self.assignments.pop(parsed, None)
            case ItemKey(item_id):
                self.items.pop(item_id, None)
            case MemberKey(member_id):
                self.members.pop(member_id, None)
            case None:
                pass
            case unknown:
                assert_never(unknown)

    def kv_or_none(self, key: bytes) -> KeyValue | None:
        """Return a key as etcd has it, decodable or not."""
        return self._kv_or_none(key, self._parsed_or_none(key))

    def _kv_or_none(self, key: bytes, parsed: ParsedKey | None) -> KeyValue | None:
        if self.rejected and (rejected := self.rejected.get(key)) is not None:
            return rejected.kv
        entity = self._entity_or_none(parsed)
        return None if entity is None else entity.kv

    def known_keys(self) -> Iterator[bytes]:
        """Yield every key that is there, in no particular order."""
        yield from self.rejected
        for entities in (self.items, self.members, self.assignments):
            for entity in entities.values():
                if entity.kv.key not in self.rejected:
                    yield entity.kv.key

    def problems(self) -> Mapping[bytes, str]:
        """Return what is wrong with each rejected key."""
        return {key: rejected.problem for key, rejected in self.rejected.items()}

    def assignments_of(self, item_id: ItemId) -> list[Assignment]:
        """Return the assignments of an item, by member and slot."""
        found: list[Assignment] = []
        for key in self.assignments.irange(minimum=(item_id, _FIRST_MEMBER, 0)):
            if key[0] != item_id:
                break
            found.append(self.assignments[key])
        return found

    def _insert(self, parsed: ParsedKey, kv: KeyValue) -> None:
        match parsed:
            case AssignmentKey(item_id, member_id, slot):
                value = self._decoder.decode_assignment(item_id, member_id, slot, kv)
                self.assignments[parsed] = Assignment(
                    item_id=item_id, member_id=member_id, slot=slot, value=value, kv=kv
                )
            case ItemKey(item_id):
                item = self._decoder.decode_item(item_id, kv)
                self.items[item_id] = Item(item_id=item_id, value=item, kv=kv)
            case MemberKey(member_id):
                member = self._decoder.decode_member(member_id, kv)
                self.members[member_id] = Member(member_id=member_id, value=member, kv=kv)
            case _:
                assert_never(parsed)
        self._changed.add(parsed)

    def _keep_last_good(self, parsed: ParsedKey, kv: KeyValue) -> None:
        """Give the decoded entity of a key gone bad its true revision, or drop it if it is of a former life."""
        entity = self._entity_or_none(parsed)
        if entity is None:
            return
        if entity.kv.create_revision != kv.create_revision:
            rejected = self.rejected[kv.key]
            self.delete(kv.key)
            self.rejected[kv.key] = rejected
            return
        self._changed.add(parsed)
        match entity:
            case Item():
                self.items[entity.item_id] = replace(entity, kv=kv)
            case Member():
                self.members[entity.member_id] = replace(entity, kv=kv)
            case Assignment():
                identity = (entity.item_id, entity.member_id, entity.slot)
                self.assignments[identity] = replace(entity, kv=kv)
            case _:
                assert_never(entity)

    def _parsed_or_none(self, key: bytes) -> ParsedKey | None:
        try:
            return self._keys.parse(key)
        except KeyDecodeError:
            return None

    def _entity_or_none(self, parsed: ParsedKey | None) -> Item | Member | Assignment | None:
        found: Item | Member | Assignment | None
        match parsed:
            case AssignmentKey():
                found = self.assignments.get(parsed)
            case ItemKey(item_id):
                found = self.items.get(item_id)
            case MemberKey(member_id):
                found = self.members.get(member_id)
            case None:
                return None
            case _:
                assert_never(parsed)
        return found


_FIRST_MEMBER = MemberId("", "")
"""Sorts before every member."""
