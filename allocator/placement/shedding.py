"""Choice and order of the exiting members that are drained.

Each replica is decided separately: one on a draining member leaves if another member can take it without a loss of
coverage or of zones, and stays otherwise (`placement`). So one item that needs every member holds back its own replica
and no other. If there is no room for the replicas of all draining members, the oldest member is emptied first.

Source: gazette/core allocator/alloc_state.go (the shed-capacity pass of its observer, whose order is kept). Ours:
replicas are decided one by one, in place of a quota of members for the whole cluster, and a drain may wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from broadsheet.allocator.model import Member, MemberId


def leadership_order(members: Iterable[Member]) -> list[Member]:
    """Return members oldest first; those created in one transaction are ordered by key.

    The first leads, and the first of the exiting ones drains first.
    """
    return sorted(members, key=lambda member: (member.kv.create_revision, member.member_id))


def drain_costs(
    members: Iterable[Member], *, drains_waiting: Collection[MemberId] = ()
) -> Mapping[MemberId, int]:
    """Return the cost of a replica on each draining member: 1 on the youngest, more on each older one.

    Args:
        members: Every member, exiting or not.
        drains_waiting: Exiting members that keep their replicas for now.
    """
    draining = [
        member.member_id
        for member in leadership_order(members)
        if member.value.is_exiting() and member.member_id not in drains_waiting
    ]
    return {member_id: cost for cost, member_id in enumerate(reversed(draining), start=1)}
