"""Which exiting members may give capacity back, and how much.

Draining must not push the members that stay over their limits: only capacity that the cluster does not need may leave,
and never so many members that an item could no longer have all of its replicas. Nor may a zone give up what items need
to span two: while members of it stay, what they cannot take remains on the one that leaves, until another one joins.
A zone that nobody stays in is given up: that is what its members' owner wants.

Source: gazette/core allocator/alloc_state.go (the shed-capacity pass of its observer). That zones are kept, and that a
drain may wait, is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from allocator.core.model import Member, MemberId


def leadership_order(members: Iterable[Member]) -> list[Member]:
    """Return members oldest first; those created in one transaction by key.

    The first leads, and the first of the exiting ones drains first.
    """
    return sorted(members, key=lambda member: (member.kv.create_revision, member.member_id))


def shed_capacity(
    members: Sequence[Member],
    *,
    item_slots: int,
    replication_max: int,
    items_of_two: int = 0,
    drains_waiting: Collection[MemberId] = (),
) -> Mapping[MemberId, int]:
    """Grant exiting members the right to give slots back, oldest first.

    Args:
        members: Every member, exiting or not.
        item_slots: Desired replicas summed over all items.
        replication_max: The largest replication of any item, in replicas.
        items_of_two: Items that want two replicas or more, and should span two zones.
        drains_waiting: Exiting members that are to give up nothing yet.

    Returns:
        Slots shed, for each member that sheds any; each in [1, the member's limit].
    """
    excess = max(0, sum(member.value.item_limit() for member in members) - item_slots)
    quota = max(0, len(members) - replication_max)
    zones = _Zones(members, items_of_two)
    leaving = [
        member
        for member in leadership_order(members)
        if member.value.is_exiting() and member.member_id not in drains_waiting
    ]
    shed_by_member: dict[MemberId, int] = {}
    for member in leaving[:quota]:
        shed = min(excess, zones.spare(member))
        if shed > 0:
            zones.shed(member, shed)
            excess -= shed
            shed_by_member[member.member_id] = shed
    return shed_by_member


class _Zones:
    """How much of each member's limit can serve for one replica an item, by zone."""

    def __init__(self, members: Iterable[Member], items: int) -> None:
        self._items = items
        self._useful: dict[str, int] = {}
        self._kept: set[str] = set()
        """Zones that somebody stays in."""
        for member in members:
            zone, limit = member.member_id.zone, member.value.item_limit()
            self._useful[zone] = self._useful.get(zone, 0) + min(limit, items)
            if limit > 0 and not member.value.is_exiting():
                self._kept.add(zone)

    def spare(self, member: Member) -> int:
        """Return how much a member could give up without any item being confined to one zone for it."""
        zone, limit = member.member_id.zone, member.value.item_limit()
        others = [other for other in self._useful if other != zone and self._useful[other]]
        if zone not in self._kept or not others:
            return limit
        useful = min(limit, self._items)
        total = sum(self._useful.values())
        # Of each item that could stand in another zone altogether, one replica must find room outside of it.
        needed = max(self._items - (total - self._useful[other] - useful) for other in others)
        return limit - min(useful, max(0, needed))

    def shed(self, member: Member, slots: int) -> None:
        """Take note of what a member gives up."""
        limit = member.value.item_limit()
        lost = min(limit, self._items) - min(limit - slots, self._items)
        self._useful[member.member_id.zone] -= lost
