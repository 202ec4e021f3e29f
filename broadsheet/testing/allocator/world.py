"""The cluster as stored in etcd, followed revision by revision, independent of the mirrors under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from broadsheet.allocator.etcd.api import KeyPut
from broadsheet.allocator.keys import (
    AssignmentKey,
    AuxiliaryKeys,
    ItemKey,
    Keys,
    MemberKey,
    ParsedKey,
)
from broadsheet.allocator.leader.election import EpochRecord, decoded_or_none
from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, AllocState, FixedContents
from broadsheet.testing.allocator.kernel.store import StoreCommit, key_of
from broadsheet.testing.allocator.values import (
    CONSISTENT,
    SimulatedDecoder,
    SimulatedItem,
    SimulatedMemberValue,
)

OPERATOR = "operator"
"""Author of changes from outside the cluster."""
_DECODER = SimulatedDecoder()


@dataclass(frozen=True, slots=True)
class SimulatedReplica:
    """An assignment in etcd."""

    member_id: MemberId
    slot: int
    kv: KeyValue

    @property
    def is_consistent(self) -> bool:
        """True if the replica counts as consistent."""
        return self.kv.value == CONSISTENT


Replicas = Mapping[bytes, SimulatedReplica]
"""Of one item, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChange:
    """One revision, as a change of the cluster."""

    commit: StoreCommit
    before: Mapping[ItemId, Replicas]
    """Of each item whose assignments it touched."""
    after: Mapping[ItemId, Replicas]
    is_allocation: bool
    """Whether it created, moved or deleted assignments on purpose: a leader's write, and not the end of a lease."""

    def added(self, item_id: ItemId) -> list[MemberId]:
        """Return members that newly hold the item."""
        had = {replica.member_id for replica in self.before[item_id].values()}
        return [r.member_id for r in self.after[item_id].values() if r.member_id not in had]


@dataclass(slots=True)
class StoredCluster:
    """Everything below the root, as of the newest revision."""

    keys: Keys
    revision: int = 1
    epoch: EpochRecord | None = None
    """The leadership in force."""
    epochs_grow: bool = True
    """Whether every leadership had a larger number than the one before."""
    items: dict[ItemId, SimulatedItem] = field(default_factory=dict)
    members: dict[MemberId, SimulatedMemberValue] = field(default_factory=dict)
    replicas: dict[ItemId, dict[bytes, SimulatedReplica]] = field(default_factory=dict)
    kvs: dict[bytes, KeyValue] = field(default_factory=dict)

    def apply(self, commit: StoreCommit) -> ClusterChange | None:
        """Apply a revision, and return its changes; None if nothing below the root changed."""
        self._follow_epoch(commit)
        prefix = self.keys.watched_prefix
        events = [event for event in commit.events if key_of(event).startswith(prefix)]
        if not events:
            return None
        self.revision = commit.revision
        parsed = [self.keys.parse(key_of(event)) for event in events]
        touched = dict.fromkeys(p.item_id for p in parsed if isinstance(p, AssignmentKey))
        before = {item_id: dict(self.replicas.get(item_id, {})) for item_id in touched}
        for event, parsed_key in zip(events, parsed, strict=True):
            if isinstance(event, KeyPut):
                self.kvs[event.kv.key] = event.kv
                self._put(parsed_key, event.kv)
            else:
                self.kvs.pop(event.key, None)
                self._delete(parsed_key, event.key)
        after = {item_id: dict(self.replicas.get(item_id, {})) for item_id in touched}
        moved = any(before[item_id].keys() != after[item_id].keys() for item_id in touched)
        return ClusterChange(
            commit=commit,
            before=before,
            after=after,
            is_allocation=moved and not commit.ended_lease and commit.author != OPERATOR,
        )

    def load(self, member_id: MemberId) -> int:
        """Return how many replicas a member holds, including those of deleted items."""
        return self.loads()[member_id]

    def loads(self) -> Counter[MemberId]:
        """Return how many replicas each member holds, including those of deleted items."""
        return Counter(
            replica.member_id
            for replicas in self.replicas.values()
            for replica in replicas.values()
        )

    def state(self) -> AllocState:
        """Return the state that the allocator derives from it."""
        members = [
            Member(member_id=m, value=value, kv=self.kvs[self.keys.member(m)])
            for m, value in self.members.items()
        ]
        items = [
            Item(item_id=i, value=value, kv=self.kvs[self.keys.item(i)])
            for i, value in self.items.items()
        ]
        assignments = [
            Assignment(item_id=i, member_id=r.member_id, slot=r.slot, value=r.kv.value, kv=r.kv)
            for i, replicas in self.replicas.items()
            for r in replicas.values()
        ]
        return AllocState.observe(
            FixedContents.of(members, items, assignments),
            revision=self.revision,
            local_id=min(self.members, default=MemberId("", "")),
        )

    def primary_of(self, item_id: ItemId) -> MemberId | None:
        """Return the member at slot 0."""
        replicas = self.replicas.get(item_id, {}).values()
        return next((r.member_id for r in replicas if r.slot == PRIMARY_SLOT), None)

    def _follow_epoch(self, commit: StoreCommit) -> None:
        for event in commit.events:
            if isinstance(event, KeyPut) and event.kv.key == AuxiliaryKeys(self.keys.root).epoch:
                before, self.epoch = self.epoch, decoded_or_none(event.kv.value, EpochRecord)
                # Only recorded here; an invariant reports it with the revision.
                self.epochs_grow &= self.epoch is not None and self.epoch.epoch > (
                    before.epoch if before else 0
                )

    def _put(self, key: ParsedKey, kv: KeyValue) -> None:
        match key:
            case ItemKey(item_id):
                self.items[item_id] = _DECODER.decode_item(item_id, kv)
            case MemberKey(member_id):
                self.members[member_id] = _DECODER.decode_member(member_id, kv)
            case AssignmentKey(item_id, member_id, slot):
                self.replicas.setdefault(item_id, {})[kv.key] = SimulatedReplica(
                    member_id, slot, kv
                )

    def _delete(self, key: ParsedKey, raw: bytes) -> None:
        match key:
            case ItemKey(item_id):
                self.items.pop(item_id, None)
            case MemberKey(member_id):
                self.members.pop(member_id, None)
            case AssignmentKey(item_id, _, _):
                replicas = self.replicas.get(item_id, {})
                replicas.pop(raw, None)
                if not replicas:
                    self.replicas.pop(item_id, None)
