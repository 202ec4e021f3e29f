"""A placement that is changed step by step, and what each step may be.

A replica may go from one member to another if the target has room, does not hold the item, is not closed (unless it
holds the item already), is not drained, has not failed it for too long, and if its item then spans no fewer zones.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from allocator.core.placement.capacity import capacity_of
from allocator.core.placement.problem import Desired, Problem
from allocator.model import ItemId, MemberId

_NEW, _STANDBY, _PRIMARY = range(3)
"""What is put elsewhere first: a replica that is to be made anyway, a standby, the primary."""


class Board:
    """Members and items by position in the problem, loads by member."""

    def __init__(self, problem: Problem, desired: Desired) -> None:
        members, items = problem.members, problem.items
        position = {member.member_id: i for i, member in enumerate(members)}
        self._member_ids = [member.member_id for member in members]
        self._item_ids = [item.item_id for item in items]
        self._zones = [member.member_id.zone for member in members]
        self._closed = [member.closed for member in members]
        self._drained = [member.drain_cost > 0 for member in members]
        self._current = [frozenset(position[m] for m in item.current) for item in items]
        self._primary = [position.get(item.primary) if item.primary else None for item in items]
        self._avoided = [frozenset(position[m] for m in item.avoided) for item in items]
        self.item_loads = [item.load for item in items]
        self.capacities = [capacity_of(member) for member in members]
        self.limits = [member.limit for member in members]
        self.counts = [0] * len(members)
        self.new_counts = [0] * len(members)
        """Replicas that are to be made anyway: where there are none, no step is free."""
        self.loads = [0] * len(members)
        self.placed: list[set[int]] = [set() for _ in items]
        self._held: list[dict[int, tuple[dict[int, None], ...]]] = [{} for _ in members]
        """By member and load: the items, by how gladly they go."""
        for index, item_id in enumerate(self._item_ids):
            for member_id in desired[item_id]:
                self._add(index, position[member_id])

    def placement(self) -> Desired:
        """Return the placement as it is now."""
        ids = self._member_ids
        return {
            item_id: tuple(ids[m] for m in sorted(placed))
            for item_id, placed in zip(self._item_ids, self.placed, strict=True)
        }

    def utilisation(self, member: int) -> float:
        """Return load a unit of capacity."""
        return self.loads[member] / self.capacities[member]

    def has_room(self, member: int) -> bool:
        """Return whether one replica more fits."""
        return self.counts[member] < self.limits[member]

    def loads_held(self, member: int) -> list[int]:
        """Return the different loads of a member's items, rising."""
        return sorted(self._held[member])

    def movable(
        self, load: int, source: int, target: int, *, tries: int, only_new: bool
    ) -> Iterator[int]:
        """Yield items of a load that may go from one member to another, room apart; those to be made anyway first."""
        groups = self._held[source][load]
        looked_at = (item for group in groups[: 1 if only_new else None] for item in group)
        for item in islice(looked_at, tries):
            if self.may_move(item, source, target):
                yield item

    def may_move(self, item: int, source: int, target: int) -> bool:
        """Return whether an item's replica may go from one member to another, room apart."""
        placed = self.placed[item]
        if target in placed or target in self._avoided[item] or not self.limits[target]:
            return False
        if self._drained[target]:
            return False
        if self._closed[target] and target not in self._current[item]:
            return False
        zones = self._zones
        others = {zones[m] for m in placed if m != source}
        return zones[target] not in others or zones[source] in others

    def move(self, item: int, source: int, target: int) -> None:
        """Put a replica elsewhere."""
        self._remove(item, source)
        self._add(item, target)

    def returns(self, item: int) -> Iterator[tuple[int, int]]:
        """Yield the ways to keep one more replica where it is: from a new member to one that holds the item."""
        placed, current = self.placed[item], self._current[item]
        new, left = sorted(placed - current), sorted(current - placed)
        yield from ((source, target) for source in new for target in left)

    @property
    def item_ids(self) -> list[ItemId]:
        """Items by position."""
        return self._item_ids

    @property
    def member_ids(self) -> list[MemberId]:
        """Members by position."""
        return self._member_ids

    def _gladness(self, item: int, member: int) -> int:
        if member not in self._current[item]:
            return _NEW
        return _PRIMARY if member == self._primary[item] else _STANDBY

    def _add(self, item: int, member: int) -> None:
        load = self.item_loads[item]
        groups = self._held[member].get(load)
        if groups is None:
            groups = self._held[member][load] = ({}, {}, {})
        groups[self._gladness(item, member)][item] = None
        self.new_counts[member] += member not in self._current[item]
        self.placed[item].add(member)
        self.loads[member] += load
        self.counts[member] += 1

    def _remove(self, item: int, member: int) -> None:
        load = self.item_loads[item]
        groups = self._held[member][load]
        del groups[self._gladness(item, member)][item]
        self.new_counts[member] -= member not in self._current[item]
        if not any(groups):
            del self._held[member][load]
        self.placed[item].remove(member)
        self.loads[member] -= load
        self.counts[member] -= 1
