"""Who serves a shard: the replicas of one item as a route.

Source: gazette/core broker/protocol/route_extensions.go (order, primary, endpoints).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allocator.model import Assignment, Member, MemberId
from consumer.key_space import PRIMARY_SLOT, process_id_of, process_of
from consumer.protocol.journal_pb2 import Route


def replicas_of(assignments: Sequence[Assignment]) -> tuple[Assignment, ...]:
    """Return one assignment a member, in member order.

    Two of one member are illegal, but another writer may leave them behind; the lowest slot is what the member acts on.
    """
    chosen: dict[MemberId, Assignment] = {}
    for assignment in assignments:
        known = chosen.get(assignment.member_id)
        if known is None or assignment.slot < known.slot:
            chosen[assignment.member_id] = assignment
    return tuple(chosen[member_id] for member_id in sorted(chosen))


def primary_of(assignments: Sequence[Assignment]) -> MemberId | None:
    """Return the member in slot 0, or None."""
    return next((a.member_id for a in assignments if a.slot == PRIMARY_SLOT), None)


def build_route(replicas: Sequence[Assignment], members: Mapping[MemberId, Member]) -> Route:
    """Return the route of a shard.

    Args:
        replicas: One a member, in member order (`replicas_of`).
        members: Live processes. One that is gone has an empty endpoint.
    """
    primary = primary_of(replicas)
    return Route(
        members=[process_id_of(replica.member_id) for replica in replicas],
        primary=next((index for index, r in enumerate(replicas) if r.member_id == primary), -1),
        endpoints=[_endpoint(members.get(replica.member_id)) for replica in replicas],
    )


def _endpoint(member: Member | None) -> str:
    return "" if member is None else process_of(member).process_spec.endpoint
