"""Which exiting members may give capacity back, and how much.

Draining must not push the members that stay over their limits: only capacity that the cluster does not need may leave,
and never so many members that an item could no longer have all of its replicas.

Source: gazette/core allocator/alloc_state.go (the shed-capacity pass of its observer).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from allocator.core.model import Member, MemberId


def leadership_order(members: Iterable[Member]) -> list[Member]:
    """Return members oldest first; those created in one transaction by key.

    The first leads, and the first of the exiting ones drains first.
    """
    return sorted(members, key=lambda member: (member.kv.create_revision, member.member_id))


def shed_capacity(
    members: Sequence[Member], *, item_slots: int, replication_max: int
) -> Mapping[MemberId, int]:
    """Grant exiting members the right to give slots back, oldest first.

    Args:
        members: Every member, exiting or not.
        item_slots: Desired replicas summed over all items.
        replication_max: The largest replication of any item, in replicas.

    Returns:
        Slots shed, for each member that sheds any; each in [1, the member's limit].
    """
    excess = max(0, sum(member.value.item_limit() for member in members) - item_slots)
    quota = max(0, len(members) - replication_max)
    exiting = [member for member in leadership_order(members) if member.value.is_exiting()]
    shed_by_member: dict[MemberId, int] = {}
    for member in exiting[:quota]:
        shed = min(member.value.item_limit(), excess)
        excess -= shed
        if shed:
            shed_by_member[member.member_id] = shed
    return shed_by_member
