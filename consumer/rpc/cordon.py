"""Listing and cordoning of a cluster's members: a cordoned member keeps its replicas and gets no others.

The mark is a field of the member's own key, under the member's lease, so it ends with the process. Any member can write
it, because each write compares the revision that it was made from; the leader handles it like a change of limits.

Source: `kubectl cordon` (the term and its meaning).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import structlog

from broadsheet.allocator.errors import TxnConflictError
from broadsheet.allocator.leader.leadership import Leadership
from broadsheet.allocator.model import ItemId, Member, MemberId
from broadsheet.allocator.ops import Compare, Put
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT
from broadsheet.consumer.registry.key_space import level_of, process_of
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.rpc.allocation_messages import parse_member
from broadsheet.consumer.rpc.operations import DrainWatch
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.formats import FormatLevel
from broadsheet.runtime.installed_version import installed_version
from broadsheet.wire.allocation_pb2 import (
    ClusterMember,
    CordonMembersRequest,
    CordonMembersResponse,
    ListMembersResponse,
)
from broadsheet.wire.progress_pb2 import Progress
from broadsheet.wire.shard_pb2 import ConsumerSpec

CORDONED_AT_ONCE_MAX = 64
"""Maximum members per request: each is a comparison and a write of one transaction, which has at most 128 of each."""
ATTEMPTS = 5
"""Attempts to write: a member's key changes rarely, when it leaves and when a plan drains it."""
CATCH_UP_SECONDS_MAX = 5.0
"""Longest wait until the mirror shows the writes of others."""

_log = structlog.get_logger()


AssignmentKey = tuple[ItemId, MemberId, int]


class Cordon:
    """The listing and cordoning behind one member's allocation service."""

    def __init__(self, membership: LocalMember, leadership: Leadership, drains: DrainWatch) -> None:
        """Create the service's helper.

        Args:
            membership: Of this process: etcd, which holds the members' keys, and its mirror.
            leadership: Names the leader.
            drains: Tells how far members that leave are.
        """
        self._etcd = membership.etcd
        self._key_space = membership.key_space
        self._formats = membership.formats
        self._leadership = leadership
        self.drains = drains

    async def members(self) -> ListMembersResponse:
        """Return every member and what it holds, as the mirror shows it."""
        key_space = self._key_space
        members = list(key_space.members.values())
        revision, leader = key_space.header.revision, self._leadership.leader_id
        assignments = list(key_space.assignments)
        drains = self.drains.progress()
        # On a thread, because counting very many replicas takes long enough to delay keep-alives.
        replicas, primaries = await asyncio.to_thread(_count, assignments)
        response = ListMembersResponse(
            revision=revision,
            members=[
                _shown(member, replicas, primaries, leader, drains.get(member.member_id))
                for member in members
            ],
            version=installed_version(),
            format_level=FormatLevel.FIRST if self._formats is None else self._formats.level,
        )
        response.time.GetCurrentTime()
        return response

    async def mark(self, request: CordonMembersRequest, *, actor: str) -> CordonMembersResponse:
        """Cordon or uncordon all members of the request, or none.

        Args:
            request: The members, and whether to cordon or uncordon them.
            actor: The caller, for the log.

        Raises:
            ValidationError: a field is wrong, or a member does not exist; the error names it.
            TxnConflictError: others wrote to the members' keys again and again.
            EtcdUnavailableError: whether it was done is unknown; doing it again is safe.
        """
        asked = _asked(request)
        keys: tuple[bytes, ...] = ()
        for _ in range(ATTEMPTS):
            # What the mirror still lacks after that, the comparison finds.
            await self._key_space.catch_up(timeout_seconds=CATCH_UP_SECONDS_MAX)
            writes = list(_writes(asked, self._key_space.members, cordoned=request.cordoned))
            # All members are in the requested state already.
            if not writes:
                return CordonMembersResponse()
            keys = tuple(put.key for _, _, put in writes)
            result = await self._etcd.txn(
                tuple(compare for _, compare, _ in writes), tuple(put for _, _, put in writes)
            )
            if result.succeeded:
                changed = [str(member_id) for member_id, _, _ in writes]
                revision = result.header.revision
                event = "member.cordoned" if request.cordoned else "member.uncordoned"
                _log.info(event, members=changed, actor=actor, revision=revision)
                return CordonMembersResponse(revision=revision, changed=changed)
        raise TxnConflictError(keys)


def _asked(request: CordonMembersRequest) -> Sequence[MemberId]:
    count = len(request.members)
    if not 1 <= count <= CORDONED_AT_ONCE_MAX:
        raise ValidationError("members", f"expected from 1 to {CORDONED_AT_ONCE_MAX}, got {count}")
    asked = [parse_member(text, f"members[{n}]") for n, text in enumerate(request.members)]
    for number, member_id in enumerate(asked):
        if member_id in asked[:number]:
            raise ValidationError(f"members[{number}]", f"expected {member_id} only once")
    return asked


def _writes(
    asked: Sequence[MemberId], members: Mapping[MemberId, Member], *, cordoned: bool
) -> Iterable[tuple[MemberId, Compare, Put]]:
    """Yield the writes for the members that are not in the requested state yet."""
    for number, member_id in enumerate(asked):
        member = members.get(member_id)
        if member is None:
            raise ValidationError(
                f"members[{number}]", f"expected a member of the cluster, got {member_id}"
            )
        if member.value.is_cordoned() is cordoned:
            continue
        # A full copy, so that fields of later versions, unknown to this one, are kept.
        spec = ConsumerSpec()
        spec.CopyFrom(process_of(member))
        spec.cordoned = cordoned
        key = member.kv.key
        yield (
            member_id,
            Compare.mod_revision(key, member.kv.mod_revision),
            Put(key, spec.SerializeToString(deterministic=True), ignore_lease=True),
        )


def _count(assignments: Iterable[AssignmentKey]) -> tuple[Counter[MemberId], Counter[MemberId]]:
    """Return each member's replicas and primaries."""
    replicas: Counter[MemberId] = Counter()
    primaries: Counter[MemberId] = Counter()
    for _, member_id, slot in assignments:
        replicas[member_id] += 1
        primaries[member_id] += slot == PRIMARY_SLOT
    return replicas, primaries


def _shown(
    member: Member,
    replicas: Mapping[MemberId, int],
    primaries: Mapping[MemberId, int],
    leader: MemberId | None,
    drain: Progress | None,
) -> ClusterMember:
    member_id, value = member.member_id, member.value
    return ClusterMember(
        id=str(member_id),
        endpoint=process_of(member).process_spec.endpoint,
        shard_limit=value.item_limit(),
        replicas=replicas.get(member_id, 0),
        primaries=primaries.get(member_id, 0),
        exiting=value.is_exiting(),
        cordoned=value.is_cordoned(),
        leads=member_id == leader,
        drain=drain,
        admin_endpoint=process_of(member).admin_endpoint,
        format_level=level_of(process_of(member)),
    )
