"""Which exiting members are drained, and which of them first.

Each replica decides for itself: one on a draining member leaves wherever another member can take it, without a loss of
coverage or of zones, and stays otherwise (`placement`). So one item that needs every member holds back its own replica
and no other. Of several draining members the oldest is emptied first where there is no room for all that they hold.

Source: gazette/core allocator/alloc_state.go (the shed-capacity pass of its observer, whose order is kept). That
replicas decide one by one, in place of a quota of members for the whole cluster, and that a drain may wait, is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from broadsheet.allocator.model import Member, MemberId


def leadership_order(members: Iterable[Member]) -> list[Member]:
    """Return members oldest first; those created in one transaction by key.

    The first leads, and the first of the exiting ones drains first.
    """
    return sorted(members, key=lambda member: (member.kv.create_revision, member.member_id))


def drain_costs(
    members: Iterable[Member], *, drains_waiting: Collection[MemberId] = ()
) -> Mapping[MemberId, int]:
    """Return what each replica on a draining member costs the placement: 1 on the youngest, more on each older one.

    Args:
        members: Every member, exiting or not.
        drains_waiting: Exiting members that are to give up nothing yet.
    """
    draining = [
        member.member_id
        for member in leadership_order(members)
        if member.value.is_exiting() and member.member_id not in drains_waiting
    ]
    return {member_id: cost for cost, member_id in enumerate(reversed(draining), start=1)}
