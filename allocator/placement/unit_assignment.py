"""Conversion of flow to replicas: the item of each unit of a class, and the member of each unit of a hub.

*Dealing.* The units of a class are put in a row and dealt to its items in turn, like cards. A zone's units are
adjacent, so each item gets its share of the zone rounded down or up, and a member's units, never more than the items,
go to different items. Zones that an item is not yet in come first, the fullest of them in front, and zones that are
given up last: then as many items span two zones as the flow requires.

*Hubs.* The flow determines how many units a hub takes from each item and gives to each member, but not which go where.
They are paired in turn, or, if that makes many duplicates, each item gets the members with the most units left, which
makes no avoidable duplicate if no member is barred. A pair that would put an item on a member twice swaps members with
another pair of the zone, which changes no cost. Items without such a partner are *stuck*.

Source: Gale, A Theorem on Flows in Networks (1957), for the choice of members with the most units left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain, groupby, islice

PARTNERS_TRIED_MAX = 5_000
"""Pairs examined to swap one bad pair; nearly always the first is good."""
PARTNERS_TRIED_IN_ALL_MAX = 500_000
"""The same for all bad pairs of a zone: a fraction of a second. The remaining items get explicit arcs, all at once."""
BAD_SHARE_MAX = 1 / 64
"""Above this share of all pairs, bad ones are not worth swapping one by one."""


def deal_order(
    units_by_zone: Mapping[int, int],
    entered: Collection[int] = (),
    worthless: Collection[int] = (),
) -> list[int]:
    """Return zones in the order in which their units are dealt.

    Args:
        units_by_zone: Units of a class in each zone.
        entered: Zones that its items are already in.
        worthless: The zones that are given up.
    """

    def place(zone: int) -> tuple[bool, bool, int, int]:
        return (zone in worthless, zone in entered, -units_by_zone[zone], zone)

    return sorted(units_by_zone, key=place)


def pair_hub_units(
    items: Sequence[int],
    quotas: Mapping[int, int],
    *,
    members: int,
    taken: Callable[[int], Collection[int]],
) -> tuple[list[int], list[int]]:
    """Assign a member to each unit of a zone's hub.

    Args:
        items: The item of each unit, an item's units adjacent; as many as the sum of the quotas.
        quotas: Units by member.
        members: The total number of members.
        taken: Tells which members an item must not get.

    Returns:
        The member of each unit, and the items that are stuck: on a member twice.
    """
    pairing = _Pairing(items, _round_robin(quotas), members=members, taken=taken)
    if len(pairing.bad) > len(items) * BAD_SHARE_MAX:
        slots = _most_left_first(items, quotas, taken)
        pairing = _Pairing(items, slots, members=members, taken=taken)
    tries = iter(range(PARTNERS_TRIED_IN_ALL_MAX))
    unresolved = [index for index in pairing.bad if not pairing.swap(index, tries)]
    return pairing.slots, [items[index] for index in unresolved]


def _round_robin(quotas: Mapping[int, int]) -> list[int]:
    """Return members in rounds, each until its quota is used up."""
    rounds = sorted((copy, m) for m, quota in quotas.items() for copy in range(quota))
    return [member for _, member in rounds]


def _most_left_first(
    items: Sequence[int], quotas: Mapping[int, int], taken: Callable[[int], Collection[int]]
) -> list[int]:
    """Return the members of units: each item gets the allowed ones with most units left; other units get the rest."""
    slots = [-1] * len(items)
    heap = [(-quota, member) for member, quota in quotas.items() if quota]
    heapify(heap)
    begin = 0
    for item, group in groupby(items):
        end = begin + sum(1 for _ in group)
        barred = taken(item)
        passed: list[tuple[int, int]] = []
        while begin < end and heap:
            left, member = heappop(heap)
            if member in barred:
                passed.append((left, member))
                continue
            slots[begin] = member
            begin += 1
            if left + 1:
                passed.append((left + 1, member))
        # Given back only after the item is done, so that it gets each member once.
        for each in passed:
            heappush(heap, each)
        begin = end
    rest = iter([member for left, member in heap for _ in range(-left)])
    return [next(rest) if member < 0 else member for member in slots]


@dataclass(slots=True)
class _Pairing:
    """The pairs of a hub's units with members, of which bad ones can be swapped with others."""

    items: Sequence[int]
    """The item of each unit."""
    slots: list[int]
    """The member of each unit."""
    members: int = field(kw_only=True)
    """The total number of members."""
    taken: Callable[[int], Collection[int]] = field(kw_only=True)
    """Tells which members an item must not get."""
    bad: list[int] = field(init=False, default_factory=list)
    """Positions of the pairs that were bad at first: an item twice on a member, or on one that it must not get."""
    _good: set[int] = field(init=False, default_factory=set)
    """Good pairs, as numbers."""

    def __post_init__(self) -> None:
        """Tell the good pairs from the bad ones."""
        for index, (item, member) in enumerate(zip(self.items, self.slots, strict=True)):
            pair = self._pair(item, member)
            if pair in self._good or member in self.taken(item):
                self.bad.append(index)
            else:
                self._good.add(pair)

    def swap(self, index: int, tries: Iterator[int]) -> bool:
        """Swap the member of a bad pair with that of another unit, so that both are good. False if none was found.

        Args:
            index: The position of the bad pair.
            tries: Yields once for every partner that may be tried.
        """
        item, member = self.items[index], self.slots[index]
        barred = self.taken(item)
        others: Iterable[int] = chain(range(index + 1, len(self.items)), range(index))
        for other, _ in zip(islice(others, PARTNERS_TRIED_MAX), tries, strict=False):
            partner, theirs = self.items[other], self.slots[other]
            if (
                theirs not in barred
                and self._pair(item, theirs) not in self._good
                and member not in self.taken(partner)
                and self._pair(partner, member) not in self._good
            ):
                self._good.discard(self._pair(partner, theirs))
                self._good.add(self._pair(item, theirs))
                self._good.add(self._pair(partner, member))
                self.slots[index], self.slots[other] = theirs, member
                return True
        return False

    def _pair(self, item: int, member: int) -> int:
        return item * self.members + member
