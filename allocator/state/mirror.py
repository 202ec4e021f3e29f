"""The decoded contents of an etcd prefix, and how one event changes them.

Invariants:

* Every key below the root is either decoded in exactly one of the three maps, or listed in `rejected`, or both: a key
  whose value became invalid keeps its last valid value with its *true* revision, so that transactions that compare it
  still work, and is listed as rejected until it is valid again.
* The outcome depends only on the sequence of events, not on their batches: all processes that saw the same revisions
  have the same contents.

Source: gazette/core keyspace/key_space.go (Apply, per-event rules); true revisions of undecodable keys are ours.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from sortedcontainers import SortedDict

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.keys import AssignmentKey, ItemKey, Keys, MemberKey, ParsedKey
from broadsheet.allocator.model import (
    Assignment,
    Item,
    ItemId,
    ItemValue,
    Member,
    MemberId,
    MemberValue,
)
from broadsheet.allocator.ops import KeyValue
from broadsheet.runtime.errors import ValidationError


class Decoder(Protocol):
    """Decodes values for their owner; raises `KeyDecodeError` or `ValidationError` for invalid ones."""

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
    """Keys that changed: put, deleted, or both."""

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
        self._groups: dict[ItemId, list[AssignmentKey]] = {}
        """Keys of each item's assignments, by member and slot: a range of the sorted map costs ten times as much."""
        self._changed_items: set[ItemId] = set()
        self._changed_members: set[MemberId] = set()
        self._changed_assignments: set[AssignmentKey] = set()

    def take_changes(self) -> Changes:
        """Return the changes since the last call."""
        changes = Changes(
            items=frozenset(self._changed_items),
            members=frozenset(self._changed_members),
            assignments=frozenset(self._changed_assignments),
        )
        self._changed_items, self._changed_members = set(), set()
        self._changed_assignments = set()
        return changes

    def reload(self) -> Reload:
        """Begin a new mirror that replaces this one, from a read of everything."""
        return Reload(self, Mirror(self._keys, self._decoder))

    def put(self, kv: KeyValue) -> str | None:
        """Apply a key's current value. Return its defect, if it has one."""
        try:
            parsed = self._with_known_id(self._keys.parse(kv.key))
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

    def decode_members_again(self) -> None:
        """Decode every member's value again, for a decoder that now judges them by something else."""
        for member in list(self.members.values()):
            # A rejected value is decoded when it changes; its last valid one has nothing to be decoded from.
            if member.kv.key not in self.rejected:
                self._insert(MemberKey(member.member_id), member.kv)

    def delete(self, key: bytes) -> None:
        """Drop a key; an unknown key is ignored."""
        self.rejected.pop(key, None)
        parsed = self.parsed_or_none(key)
        if parsed is not None:
            self._note_change(parsed)
        match parsed:
            case AssignmentKey():
                if self.assignments.pop(parsed, None) is not None:
                    self._ungroup(parsed)
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
        return self._kv_or_none(key, self.parsed_or_none(key))

    def _kv_or_none(self, key: bytes, parsed: ParsedKey | None) -> KeyValue | None:
        if self.rejected and (rejected := self.rejected.get(key)) is not None:
            return rejected.kv
        entity = self.entity_or_none(parsed)
        return None if entity is None else entity.kv

    def known_keys(self) -> Iterator[bytes]:
        """Yield every existing key, in no particular order."""
        yield from self.rejected
        for entities in (self.items, self.members, self.assignments):
            for entity in entities.values():
                if entity.kv.key not in self.rejected:
                    yield entity.kv.key

    def problems(self) -> Mapping[bytes, str]:
        """Return the defect of each rejected key."""
        return {key: rejected.problem for key, rejected in self.rejected.items()}

    def assignments_of(self, item_id: ItemId) -> list[Assignment]:
        """Return the assignments of an item, by member and slot."""
        assignments = self.assignments
        return [assignments[key] for key in self._groups.get(item_id, ())]

    def _with_known_id(self, parsed: ParsedKey) -> ParsedKey:
        """Return the key with the object that the item's other keys have as its id, so that each id is kept once."""
        match parsed:
            case AssignmentKey(item_id, member_id, slot):
                known = self._known_id(item_id)
                return parsed if known is None else AssignmentKey(known, member_id, slot)
            case ItemKey(item_id):
                known = self._known_id(item_id)
                return parsed if known is None else ItemKey(known)
        return parsed

    def _known_id(self, item_id: ItemId) -> ItemId | None:
        item: Item | None = self.items.get(item_id)
        if item is not None:
            return item.item_id
        group = self._groups.get(item_id)
        return None if group is None else group[0].item_id

    def _note_change(self, parsed: ParsedKey) -> None:
        match parsed:
            case AssignmentKey():
                self._changed_assignments.add(parsed)
            case ItemKey(item_id):
                self._changed_items.add(item_id)
            case MemberKey(member_id):
                self._changed_members.add(member_id)
            case _:
                assert_never(parsed)

    def _set_assignment(self, key: AssignmentKey, assignment: Assignment) -> None:
        if key not in self.assignments:
            insort(self._groups.setdefault(key.item_id, []), key)
        self.assignments[key] = assignment

    def _ungroup(self, key: AssignmentKey) -> None:
        group = self._groups[key.item_id]
        group.remove(key)
        if not group:
            del self._groups[key.item_id]

    def copy(self, parsed: ParsedKey, entity: Item | Member | Assignment) -> None:
        """Copy a decoded entity that has not changed."""
        match parsed, entity:
            # By the entity's own ids, so that each is kept once.
            case AssignmentKey(), Assignment(item_id=item_id, member_id=member_id, slot=slot):
                self._set_assignment(AssignmentKey(item_id, member_id, slot), entity)
            case ItemKey(), Item(item_id=item_id):
                self.items[item_id] = entity
            case MemberKey(member_id), Member():
                self.members[member_id] = entity
            case _:
                raise AssertionError(f"key {parsed} has an entity of another kind")

    def _insert(self, parsed: ParsedKey, kv: KeyValue) -> None:
        match parsed:
            case AssignmentKey(item_id, member_id, slot):
                value = self._decoder.decode_assignment(item_id, member_id, slot, kv)
                self._set_assignment(
                    parsed,
                    Assignment(item_id=item_id, member_id=member_id, slot=slot, value=value, kv=kv),
                )
            case ItemKey(item_id):
                item = self._decoder.decode_item(item_id, kv)
                self.items[item_id] = Item(item_id=item_id, value=item, kv=kv)
            case MemberKey(member_id):
                member = self._decoder.decode_member(member_id, kv)
                self.members[member_id] = Member(member_id=member_id, value=member, kv=kv)
            case _:
                assert_never(parsed)
        self._note_change(parsed)

    def _keep_last_good(self, parsed: ParsedKey, kv: KeyValue) -> None:
        """Give the decoded entity of an invalid key its true revision, or drop it if the key was re-created."""
        entity = self.entity_or_none(parsed)
        if entity is None:
            return
        # A re-created key is another entity: the last valid value says nothing about it.
        if entity.kv.create_revision != kv.create_revision:
            # `delete` also drops the rejection, which must stay.
            rejected = self.rejected[kv.key]
            self.delete(kv.key)
            self.rejected[kv.key] = rejected
            return
        self._note_change(parsed)
        match entity:
            case Item():
                self.items[entity.item_id] = replace(entity, kv=kv)
            case Member():
                self.members[entity.member_id] = replace(entity, kv=kv)
            case Assignment():
                identity = AssignmentKey(entity.item_id, entity.member_id, entity.slot)
                self.assignments[identity] = replace(entity, kv=kv)
            case _:
                assert_never(entity)

    def parsed_or_none(self, key: bytes) -> ParsedKey | None:
        """Return a parsed key; None if it is not a key of this root."""
        try:
            return self._keys.parse(key)
        except KeyDecodeError:
            return None

    def entity_or_none(self, parsed: ParsedKey | None) -> Item | Member | Assignment | None:
        """Return the decoded entity of a key."""
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


class Reload:
    """Rebuilds a mirror from a read of everything, key by key, while the old one stays unchanged.

    So it can be built in parts, between which other tasks use the old mirror. Unchanged entities are copied, not
    decoded again, and the result equals the old mirror after all differences were applied to it.
    """

    def __init__(self, before: Mirror, mirror: Mirror) -> None:
        self._before = before
        self._mirror = mirror
        self._present: set[bytes] = set()

    def take(self, kv: KeyValue) -> str | None:
        """Add a key of the read. Return its defect, if that is new."""
        before, mirror = self._before, self._mirror
        self._present.add(kv.key)
        parsed = before.parsed_or_none(kv.key)
        known = before.kv_or_none(kv.key)
        entity = before.entity_or_none(parsed)
        if parsed is not None and entity is not None:
            # Copied also if it changed: if its new value is invalid, the last valid one stays.
            mirror.copy(parsed, entity)
        if known is not None and kv.mod_revision <= known.mod_revision:
            if (rejected := before.rejected.get(kv.key)) is not None:
                mirror.rejected[kv.key] = rejected
            return None
        return mirror.put(kv)

    def finish(self) -> Mirror:
        """Return the mirror, once every key of the read was added."""
        for key in self._before.known_keys():
            if key not in self._present:
                self._mirror.delete(key)
        return self._mirror
