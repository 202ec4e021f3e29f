"""Builders of what a consumer's key space holds, for tests of pure code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broadsheet.allocator.etcd.api import Header as EtcdHeader
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.registry.key_space import ConsumerMember, ShardItem, process_id_of
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.labels import label_set
from broadsheet.wire.shard_pb2 import ConsumerSpec, ReplicaStatus, ShardSpec

KEYS = Keys("/test/root")
CLUSTER_ID = 0xC1
"""Of every header here."""


def etcd_header(revision: int = 10) -> EtcdHeader:
    """A header of the test's cluster."""
    return EtcdHeader(cluster_id=CLUSTER_ID, member_id=7, revision=revision, raft_term=3)


def member_id(name: str) -> MemberId:
    """`a` is member-a of zone `zone`."""
    return MemberId("zone", f"member-{name}")


def shard_spec(shard_id: str, *, sources: Sequence[str] = (), **labels: str) -> ShardSpec:
    """A valid spec."""
    spec = ShardSpec(
        id=shard_id,
        sources=[ShardSpec.Source(journal=journal) for journal in sources],
        labels=label_set(labels),
    )
    spec.max_txn_duration.seconds = 1
    return spec


def item(spec: ShardSpec, *, mod_revision: int = 5) -> Item:
    """A shard as the mirror holds it."""
    item_id = ItemId(spec.id)
    return Item(
        item_id=item_id,
        value=ShardItem.of(spec, hot_standbys_max=3),
        kv=_kv(KEYS.item(item_id), mod_revision=mod_revision, create_revision=mod_revision),
    )


def member(
    name: str, endpoint: str = "", *, exiting: bool = False, cordoned: bool = False
) -> Member:
    """A live process that listens on an endpoint, or on http://{name}:1."""
    identity = member_id(name)
    spec = ConsumerSpec(
        process_spec=ProcessSpec(
            id=process_id_of(identity), endpoint=endpoint or f"http://{name}:1"
        ),
        shard_limit=10,
        exiting=exiting,
        cordoned=cordoned,
    )
    return Member(
        member_id=identity, value=ConsumerMember(spec=spec), kv=_kv(KEYS.member(identity))
    )


def assignment(
    shard_id: str,
    name: str,
    slot: int,
    *,
    code: ReplicaStatus.Code.ValueType = ReplicaStatus.IDLE,
    create_revision: int = 6,
    mod_revision: int = 6,
) -> Assignment:
    """A replica of a shard on a member."""
    errors = ["it broke"] if code == ReplicaStatus.FAILED else []
    identity = member_id(name)
    return Assignment(
        item_id=ItemId(shard_id),
        member_id=identity,
        slot=slot,
        value=ReplicaStatus(code=code, errors=errors),
        kv=_kv(
            KEYS.assignment(ItemId(shard_id), identity, slot),
            create_revision=create_revision,
            mod_revision=mod_revision,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class KeySpaceValues:
    """A mirror's content at rest."""

    items: Mapping[ItemId, Item] = field(default_factory=dict)
    members: Mapping[MemberId, Member] = field(default_factory=dict)
    assignments: Sequence[Assignment] = ()

    def assignments_of(self, item_id: ItemId) -> Sequence[Assignment]:
        """The replicas of a shard, by (member, slot)."""
        found = [one for one in self.assignments if one.item_id == item_id]
        return sorted(found, key=lambda one: (one.member_id, one.slot))


def key_space(
    *, items: Sequence[Item] = (), members: Sequence[str] = (), replicas: Sequence[Assignment] = ()
) -> KeySpaceValues:
    """A mirror of these shards, processes and replicas."""
    return KeySpaceValues(
        items={one.item_id: one for one in sorted(items, key=lambda one: one.item_id)},
        members={member_id(name): member(name) for name in sorted(members)},
        assignments=replicas,
    )


def _kv(key: bytes, *, create_revision: int = 4, mod_revision: int = 4) -> KeyValue:
    return KeyValue(
        key=key,
        value=b"",
        create_revision=create_revision,
        mod_revision=mod_revision,
        version=1,
        lease=0,
    )
