"""Key space of the consumer: specs of shards and processes, and statuses of replicas.

    {root}/items/{shard id}                        ShardSpec        -> ShardItem
    {root}/members/{zone}#{suffix}                 ConsumerSpec     -> ConsumerMember
    {root}/assign/{shard id}#{zone}#{suffix}#{n}   ReplicaStatus    (empty: IDLE)

A value that is malformed, breaks a rule, or disagrees with its key is refused with an error that names the field.

Source: gazette/core consumer/key_space.go (decoding), consumer/shard_state.go (ShardIsConsistent).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.runtime.formats import FormatLevel
from broadsheet.wire.journal_pb2 import LabelSelector, ProcessSpec
from broadsheet.wire.labels import FORK_OF, ID, LabelMatcher, values_of, weight_thousandths
from broadsheet.wire.shard_pb2 import ConsumerSpec, ReplicaStatus, ShardSpec
from broadsheet.wire.validation_shard import (
    validate_consumer_spec,
    validate_replica_status,
    validate_shard_spec,
)

MessageT = TypeVar("MessageT", bound=Message)

PRIMARY_SLOT = 0
"""The slot of a shard's primary; those above it are hot standbys."""


SPECS_DECODED_MAX = 1_024
"""Bound on specs that are kept decoded, because one takes ten times the memory of its encoding."""
STATUSES_DECODED_MAX = 4_096
"""Bound on different statuses that are kept decoded; many replicas have few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardItem:
    """A shard as the allocator sees it: its encoded spec, and decoded only what is read for all shards at once."""

    encoded: bytes = field(repr=False)
    """A ShardSpec that was validated."""
    hot_standbys: int
    """Standbys that the spec asks for."""
    disable: bool
    weight_thousandths: int | None
    """Declared weight of a replica relative to others; None if it is not declared."""
    hot_standbys_max: int
    """Bound on standbys that this process sets for every shard."""

    @classmethod
    def of(
        cls, spec: ShardSpec, *, hot_standbys_max: int, encoded: bytes | None = None
    ) -> ShardItem:
        """Return the item of a valid spec; `encoded` is its encoding, if there is one."""
        return cls(
            encoded=spec.SerializeToString() if encoded is None else encoded,
            # A fork has nothing to stand by for: its parent serves its keys until it is committed.
            hot_standbys=0 if values_of(spec.labels, FORK_OF) else spec.hot_standbys,
            disable=spec.disable,
            weight_thousandths=weight_thousandths(spec.labels),
            hot_standbys_max=hot_standbys_max,
        )

    @property
    def spec(self) -> ShardSpec:
        """The spec. Read-only, because others may get the same object; a loop over all shards should not need it."""
        return _decoded_spec(self.encoded)

    def desired_replication(self) -> int:
        """Return the number of replicas the shard wants: none if disabled, else a primary and its standbys."""
        if self.disable:
            return 0
        return 1 + min(self.hot_standbys, self.hot_standbys_max)

    @property
    def standbys_refused(self) -> str:
        """Reason, as text, for fewer standbys than the spec asks for; empty if there are no fewer."""
        wanted, most = self.hot_standbys, self.hot_standbys_max
        if self.disable or wanted <= most:
            return ""
        return f"hot_standbys: {wanted} are wanted, capped to {most} by --max-hot-standbys of the members"


@lru_cache(maxsize=SPECS_DECODED_MAX)
def _decoded_spec(encoded: bytes) -> ShardSpec:
    return ShardSpec.FromString(encoded)


@lru_cache(maxsize=STATUSES_DECODED_MAX)
def _decoded_status(encoded: bytes) -> ReplicaStatus:
    """Return a valid status. Replicas with equal ones share it."""
    status = ReplicaStatus.FromString(encoded)
    validate_replica_status(status)
    return status


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A process as the allocator sees it."""

    spec: ConsumerSpec
    """Read-only."""
    is_outdated: bool = False
    """It cannot read the cluster's stored formats: a release without levels, which joined after they had risen."""

    def item_limit(self) -> int:
        """Return the maximum number of replicas of the process."""
        return 0 if self.is_outdated else self.spec.shard_limit

    def is_exiting(self) -> bool:
        """Return whether the process wants to leave."""
        return self.spec.exiting

    def is_cordoned(self) -> bool:
        """Return whether the process keeps its shards and receives no others."""
        return self.spec.cordoned


class ShardDecoder:
    """Decodes the values of a consumer's key space."""

    def __init__(
        self,
        *,
        hot_standbys_max: int,
        format_level: Callable[[], int] = lambda: FormatLevel.FIRST,
    ) -> None:
        """Create a decoder.

        Args:
            hot_standbys_max: Bound on the standbys of every shard, from 0.
            format_level: Returns the level of the cluster's stored formats.
        """
        self._hot_standbys_max = hot_standbys_max
        self._format_level = format_level

    def decode_item(self, item_id: ItemId, kv: KeyValue) -> ShardItem:
        """Decode the spec of a shard.

        Raises:
            KeyDecodeError: it is no ShardSpec, or names another shard than its key.
            ValidationError: it breaks a rule.
        """
        spec = _parse(ShardSpec(), kv)
        validate_shard_spec(spec)
        if spec.id != item_id:
            raise KeyDecodeError(kv.key, f"id: expected {item_id!r} as in the key, got {spec.id!r}")
        return ShardItem.of(spec, hot_standbys_max=self._hot_standbys_max, encoded=kv.value)

    def decode_member(self, member_id: MemberId, kv: KeyValue) -> ConsumerMember:
        """Decode the spec of a process.

        Raises:
            KeyDecodeError: it is no ConsumerSpec, or names another process than its key.
            ValidationError: it breaks a rule.
        """
        spec = _parse(ConsumerSpec(), kv)
        validate_consumer_spec(spec)
        named = member_id_of(spec.process_spec.id)
        if named != member_id:
            raise KeyDecodeError(
                kv.key, f"process_spec.id: expected {member_id} as in the key, got {named}"
            )
        return ConsumerMember(spec=spec, is_outdated=level_of(spec) < self._format_level())

    def decode_assignment(
        self,
        item_id: ItemId,
        member_id: MemberId,
        slot: int,
        kv: KeyValue,
    ) -> ReplicaStatus:
        """Decode the status of a replica; an empty value is IDLE.

        Raises:
            KeyDecodeError: it is no ReplicaStatus.
            ValidationError: its code is unknown, or its errors do not go with its code.
        """
        del item_id, member_id, slot  # the value does not repeat its key
        with _naming(kv, ReplicaStatus):
            return _decoded_status(kv.value)


class ReplicaConsistency:
    """Tells the allocator whether a replica counts, so that another may be taken away in reliance on it, and with which
    status a former primary begins.
    """

    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        """Report whether a replica is as ready as it can be.

        A failed replica counts only beside a failed primary: swapping one failure for another harms nothing, and a
        shard that fails everywhere must not keep a member from leaving.
        """
        del item  # a replica's own status says it
        code = status_of(assignment).code
        if code == ReplicaStatus.FAILED:
            return any(other.slot == PRIMARY_SLOT and is_failed(other) for other in all_assignments)
        return code in (ReplicaStatus.STANDBY, ReplicaStatus.PRIMARY)

    def standby_value(self, primary: Assignment) -> bytes:
        """Return IDLE: a former primary plays its log again, and counts once it has caught up.

        Gazette's members only raise a status, so that a former primary's would stay PRIMARY, and would count at once.
        """
        del primary
        return b""


def is_failed(assignment: Assignment) -> bool:
    """Report whether a replica's status is FAILED."""
    return status_of(assignment).code == ReplicaStatus.FAILED


class ShardKeySpace(Protocol):
    """The consumer's view of the local etcd mirror, which `broadsheet.allocator.key_space.KeySpace` provides."""

    @property
    def items(self) -> Mapping[ItemId, Item]:
        """Shards by id, in order."""
        ...

    @property
    def members(self) -> Mapping[MemberId, Member]:
        """Processes by identity, in order."""
        ...

    def assignments_of(self, item_id: ItemId) -> Sequence[Assignment]:
        """Return the replicas of a shard, by (member, slot)."""
        ...


def shard_of(item: Item) -> ShardItem:
    """Return the shard, whose spec may not be decoded."""
    assert isinstance(item.value, ShardItem), "a consumer's key space holds shards"
    return item.value


def spec_of(item: Item) -> ShardSpec:
    """Return the shard's spec. Read-only; see `ShardItem.spec`."""
    return shard_of(item).spec


def level_of(spec: ConsumerSpec) -> int:
    """Return the highest level of stored formats that a process reads."""
    return spec.format_level or FormatLevel.FIRST


def level_of_member_value(encoded: bytes) -> int:
    """Return the same of a member as etcd holds it; the first level if it cannot be decoded."""
    try:
        return level_of(ConsumerSpec.FromString(encoded))
    except DecodeError:
        return FormatLevel.FIRST


def process_of(member: Member) -> ConsumerSpec:
    """Return the process's spec."""
    assert isinstance(member.value, ConsumerMember), "a consumer's key space holds processes"
    return member.value.spec


def status_of(assignment: Assignment) -> ReplicaStatus:
    """Return the status that a replica reported."""
    assert isinstance(assignment.value, ReplicaStatus), "a consumer's key space holds statuses"
    return assignment.value


def member_id_of(process_id: ProcessSpec.ID) -> MemberId:
    """Return the engine's identity of a process."""
    return MemberId(process_id.zone, process_id.suffix)


def process_id_of(member_id: MemberId | None) -> ProcessSpec.ID:
    """Return the wire's identity of a process; an empty identity means none."""
    if member_id is None:
        return ProcessSpec.ID()
    return ProcessSpec.ID(zone=member_id.zone, suffix=member_id.suffix)


def is_visible(spec: ShardSpec, selector: LabelSelector) -> bool:
    """Report whether a selector, of a request or of a caller's claims, matches the shard."""
    return is_selected(spec, LabelMatcher(selector))


def is_selected(spec: ShardSpec, selection: LabelMatcher) -> bool:
    """Report the same of a selector that is prepared, for many shards."""
    return selection.picks(spec.labels, meta={ID: spec.id})


def _parse(message: MessageT, kv: KeyValue) -> MessageT:
    with _naming(kv, type(message)):
        message.ParseFromString(kv.value)
    return message


@contextmanager
def _naming(kv: KeyValue, expected: type[Message]) -> Iterator[None]:
    """Turn an error of decoding into one that names the key."""
    try:
        yield
    except DecodeError as error:
        raise KeyDecodeError(
            kv.key, f"expected a {expected.DESCRIPTOR.full_name}: {error}"
        ) from error
