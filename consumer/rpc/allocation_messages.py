"""Conversion between the allocator's types and the messages of the allocation service."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.model import Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.transition.capacity import Blocked, WaitReason as Reason
from broadsheet.allocator.whatif.dry_run import ReplicaChange, ReplicaChangeKind
from broadsheet.allocator.whatif.explain import Explanation
from broadsheet.allocator.whatif.leader_snapshot import Hypothesis
from broadsheet.allocator.whatif.preview import PlanPreview
from broadsheet.consumer.registry.key_space import ShardItem, is_visible, spec_of
from broadsheet.consumer.registry.move_messages import shard_moves
from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.security.auth import Claims
from broadsheet.wire.allocation_pb2 import (
    AllocationStatus as Status,
    ChangeKind,
    ExplainedReplica,
    ExplainResponse,
    ListMovesRequest,
    ListMovesResponse,
    MemberChange,
    NewMembers,
    PlannedChange,
    PlanRequest,
    PlanResponse,
    WaitingChange,
    WaitReason,
)
from broadsheet.wire.alphabet import validate_token
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec
from broadsheet.wire.validation_terms import ZONE_BYTES

NEW_MEMBERS_MAX = 10_000
"""Maximum hypothetical members of one request."""
_KINDS = {
    ReplicaChangeKind.ADD: ChangeKind.CHANGE_KIND_ADD,
    ReplicaChangeKind.REMOVE: ChangeKind.CHANGE_KIND_REMOVE,
    ReplicaChangeKind.PROMOTE: ChangeKind.CHANGE_KIND_PROMOTE,
    ReplicaChangeKind.HAND_OVER: ChangeKind.CHANGE_KIND_HAND_OVER,
}
_REASONS = {reason: WaitReason.Value(f"WAIT_REASON_{reason.name}") for reason in Reason}


@dataclass(frozen=True, slots=True)
class SupposedMember:
    """The value of a hypothetical member."""

    limit: int
    is_outdated: bool = False

    def item_limit(self) -> int:
        """Return the maximum number of its replicas."""
        return self.limit

    def is_exiting(self) -> bool:
        """Return False, because it would stay."""
        return False

    def is_cordoned(self) -> bool:
        """Return False, because it would take new replicas."""
        return False


def parse_member(text: str, field: str) -> MemberId:
    """Return the member that `zone#suffix` names.

    Raises:
        ValidationError: the text is not of that form.
    """
    zone, separator, suffix = text.partition("#")
    if not separator or not zone or not suffix:
        raise ValidationError(field, f"expected zone#suffix, got {text!r}")
    return MemberId(zone, suffix)


def hypothesis_of(
    request: PlanRequest,
    *,
    keys: Keys,
    members: Mapping[MemberId, Member],
    items: Mapping[ItemId, Item],
    hot_standbys_max: int,
) -> Hypothesis:
    """Return the hypothesis of a request.

    Args:
        request: Its changes are valid.
        keys: The key syntax of the root.
        members: The existing members.
        items: The existing items.
        hot_standbys_max: Bound on every shard's standbys.

    Raises:
        ValidationError: a field is wrong; the error names it.
    """
    drained = [parse_member(text, f"drain[{n}]") for n, text in enumerate(request.drain)]
    for number, member_id in enumerate(drained):
        if member_id not in members:
            raise ValidationError(
                f"drain[{number}]", f"expected a member of the cluster, got {member_id}"
            )
    return Hypothesis(
        drained=frozenset(drained),
        joined=tuple(_joined(request.add, members, keys)),
        changed=tuple(_changed(request.changes, items, keys, hot_standbys_max)),
        deleted=frozenset(ItemId(change.delete) for change in request.changes if change.delete),
    )


def _changed(
    changes: Iterable[ApplyRequest.Change],
    items: Mapping[ItemId, Item],
    keys: Keys,
    hot_standbys_max: int,
) -> Iterator[Item]:
    for change in changes:
        if not change.HasField("upsert"):
            continue
        item_id = ItemId(change.upsert.id)
        known = items.get(item_id)
        kv = known.kv if known is not None else _no_key(keys.item(item_id))
        value = ShardItem.of(change.upsert, hot_standbys_max=hot_standbys_max)
        yield Item(item_id=item_id, value=value, kv=kv)


def _joined(
    groups: Sequence[NewMembers], members: Mapping[MemberId, Member], keys: Keys
) -> Iterator[Member]:
    if sum(group.count for group in groups) > NEW_MEMBERS_MAX:
        raise ValidationError("add", f"expected at most {NEW_MEMBERS_MAX} members in all")
    number = 0
    for index, group in enumerate(groups):
        validate_token(group.zone, f"add[{index}].zone", bytes_range=ZONE_BYTES)
        if group.count == 0:
            raise ValidationError(f"add[{index}].count", "expected at least 1, got 0")
        # Without a limit, the new members are assumed to be like those of their zone.
        limit = group.limit or _usual_limit(group.zone, members, index)
        for _ in range(group.count):
            number += 1
            member_id = MemberId(group.zone, f"supposed-{number:05}")
            yield Member(
                member_id=member_id,
                value=SupposedMember(limit),
                kv=_no_key(keys.member(member_id)),
            )


def _usual_limit(zone: str, members: Mapping[MemberId, Member], index: int) -> int:
    """Return the mean limit of the zone's members, or of all members if the zone has none."""
    staying = [member for member in members.values() if not member.value.is_exiting()]
    alike = [member for member in staying if member.member_id.zone == zone] or staying
    if not alike:
        raise ValidationError(f"add[{index}].limit", "expected a limit: there is no member like it")
    return max(1, round(sum(member.value.item_limit() for member in alike) / len(alike)))


def _no_key(key: bytes) -> KeyValue:
    return KeyValue(key=key, value=b"", create_revision=0, mod_revision=0, version=0, lease=0)


def plan_response(proposal: PlanPreview, *, leader: MemberId) -> PlanResponse:
    """Encode a plan's preview."""
    dry_run = proposal.dry_run
    stuck = {_identity(each) for each in dry_run.stuck}
    waits = {_identity(each): each for each in (*dry_run.waits, *dry_run.stuck)}
    return PlanResponse(
        plan_id=proposal.id,
        revision=proposal.revision,
        changes=map(_planned_change, dry_run.changes),
        waits=[_waiting(each, for_ever=identity in stuck) for identity, each in waits.items()],
        members=[
            MemberChange(
                member=str(load.member_id),
                limit=load.limit,
                replicas_before=load.replicas_before,
                primaries_before=load.primaries_before,
                replicas_after=load.replicas_after,
                primaries_after=load.primaries_after,
            )
            for load in proposal.loads
        ],
        can_be_applied=proposal.can_be_applied,
        gap=proposal.plan.gap,
        leader=str(leader),
    )


def explain_response(explanation: Explanation) -> ExplainResponse:
    """Encode an explanation."""
    planned = explanation.planned_primary
    return ExplainResponse(
        status=Status.ALLOCATION_STATUS_OK,
        revision=explanation.revision,
        replication=explanation.replication,
        replicas=[
            ExplainedReplica(
                member=str(each.member_id),
                slot=each.slot,
                consistent=each.consistent,
                desired=each.desired,
                why=each.why,
                behind_bytes=each.lag.behind_bytes,
                behind_seconds=each.lag.seconds if math.isfinite(each.lag.seconds) else -1.0,
            )
            for each in sorted(explanation.replicas, key=lambda replica: replica.slot)
        ],
        desired=map(str, explanation.desired),
        planned_primary=str(planned) if planned is not None else "",
        risk=explanation.risk,
        waits=[_waiting(each, for_ever=False) for each in explanation.blocked],
        notes=explanation.notes,
    )


def _planned_change(happening: ReplicaChange) -> PlannedChange:
    former = happening.from_member
    return PlannedChange(
        round=happening.round,
        kind=_KINDS[happening.kind],
        shard=happening.item_id,
        member=str(happening.member_id),
        from_member=str(former) if former is not None else "",
        cold=happening.cold,
    )


def _waiting(blocked: Blocked, *, for_ever: bool) -> WaitingChange:
    return WaitingChange(
        shard=blocked.item_id,
        reason=_REASONS[blocked.reason],
        member=str(blocked.member_id) if blocked.member_id is not None else "",
        detail=blocked.detail,
        for_ever=for_ever,
    )


def _identity(blocked: Blocked) -> tuple[ItemId, Reason, MemberId | None]:
    return (blocked.item_id, blocked.reason, blocked.member_id)


PAGE_ENTRIES = 256
PAGE_ENTRIES_MAX = 1024
"""Maximum transactions in one response: with some hundred moves each it is below a client's limit."""


def _milliseconds(since: Timestamp) -> int:
    try:
        return since.ToMilliseconds()
    except ValueError as error:
        raise ValidationError("since", f"expected a time: {error}") from error


class MoveListing:
    """The listing of moves from the move log in etcd; any member can serve it."""

    def __init__(self, move_log: MoveLog, key_space: KeySpace) -> None:
        """Create a listing.

        Args:
            move_log: The log of moves.
            key_space: Holds the specs by which a caller's view is restricted.
        """
        self._move_log = move_log
        self._key_space = key_space

    async def page(self, request: ListMovesRequest, claims: Claims) -> ListMovesResponse:
        """Return a page of the moves that the request and the caller's claims select.

        Raises:
            ValidationError: the page's token is not one of ours, or its time is invalid.
            BoundExceededError: the page is too large.
        """
        if request.page_size > PAGE_ENTRIES_MAX:
            raise BoundExceededError(
                f"page_size: expected at most {PAGE_ENTRIES_MAX}, got {request.page_size}"
            )
        if request.page_token and not self._move_log.is_key(request.page_token):
            raise ValidationError("page_token", "expected the next_page_token of an answer before")
        size = request.page_size or PAGE_ENTRIES
        since = _milliseconds(request.since) if request.HasField("since") else 0
        entries = await self._move_log.entries(after=request.page_token, since_milliseconds=since)
        page = entries[:size]
        moves = [
            move
            for kv in page
            for move in shard_moves(kv)
            if request.shard in ("", move.shard)
            and request.member in ("", move.member)
            and self._may_see(move.shard, claims)
        ]
        token = page[-1].key if len(entries) > size else b""
        return ListMovesResponse(moves=moves, next_page_token=token)

    def _may_see(self, shard_id: str, claims: Claims) -> bool:
        """Tell whether the caller's claims cover a shard; a deleted shard can be judged only by its id."""
        if not shard_id:
            return True  # A decision about members, which is of no shard.
        item = self._key_space.items.get(ItemId(shard_id))
        spec = ShardSpec(id=shard_id) if item is None else spec_of(item)
        return is_visible(spec, claims.selector)
