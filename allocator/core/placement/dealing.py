"""From flow to replicas: who of a class gets which unit, and which member each unit of a zone's hub becomes.

*Dealing.* The units of a class are laid in a row and dealt round its items like cards. A zone's units are adjacent, so
each item gets its share of the zone rounded down or up, and a member's units, never more than the items, go to as many
items. Zones that an item does not yet stand in come first, the fullest of them in front, and zones that are given up
last: then as many items span two zones as the flow says.

*Hubs.* The flow says how many units a hub takes from each item and gives to each member, not which go where. They are
paired in turn; a pair that would put an item on a member twice swaps members with another pair of the zone, which
changes no cost. Items for which no partner is found are *stuck*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, islice

PARTNERS_TRIED_MAX = 5_000
"""Pairs looked at to swap one bad pair; nearly always the first is good."""


def deal_order(
    units_by_zone: Mapping[int, int],
    entered: Collection[int] = (),
    worthless: Collection[int] = (),
) -> list[int]:
    """Return zones in the order in which their units are dealt.

    Args:
        units_by_zone: Units of a class in each zone.
        entered: Zones that its items stand in already.
        worthless: Zones that are given up.
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
    """Give each unit of a zone's hub a member.

    Args:
        items: The item of each unit, an item's units adjacent; as many as the quotas come to.
        quotas: Units by member.
        members: How many members there are at all.
        taken: Tells which members an item must not get.

    Returns:
        The member of each unit, and the items that are stuck: on a member twice.
    """
    rounds = sorted((copy, m) for m, quota in quotas.items() for copy in range(quota))
    slots = [member for _, member in rounds]
    given: set[int] = set()
    bad: list[int] = []
    for index, (item, member) in enumerate(zip(items, slots, strict=True)):
        pair = item * members + member
        if pair in given or member in taken(item):
            bad.append(index)
        else:
            given.add(pair)
    unresolved = [i for i in bad if not _swap(i, items, slots, given, members, taken)]
    return slots, [items[index] for index in unresolved]


def _swap(
    index: int,
    items: Sequence[int],
    slots: list[int],
    given: set[int],
    members: int,
    taken: Callable[[int], Collection[int]],
) -> bool:
    item, member = items[index], slots[index]
    barred = taken(item)
    others: Iterable[int] = chain(range(index + 1, len(items)), range(index))
    for other in islice(others, PARTNERS_TRIED_MAX):
        partner, theirs = items[other], slots[other]
        if (
            theirs not in barred
            and item * members + theirs not in given
            and member not in taken(partner)
            and partner * members + member not in given
        ):
            given.discard(partner * members + theirs)
            given.add(item * members + theirs)
            given.add(partner * members + member)
            slots[index], slots[other] = theirs, member
            return True
    return False
