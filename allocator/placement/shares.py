"""Fair shares: how many replicas each member should hold, between a floor and a ceiling.

Loads follow capacities up to limits, like water in vessels of unequal width and height. But two zones per item have
priority over balance, and may prevent one common level: with one member in zone a and nine in zone b, half of all
replicas of two-replica items belong to zone a. Such zones are filled as far as zones allow, at a separate level.

Floors apply only while there are more items than members that take any. Otherwise some member is primary of nothing in
every placement, and balancing a handful of standbys is not worth a move: only ceilings apply, as in Gazette, and they
follow one level, by limits alone: replicas that zones push above it are overload.

With floors, the bound matters that a member holds an item once. No member rises above the number of items, whatever its
limit, and several members together do not rise above what all items can have on so many members: those are split off
like zones that are too full.

Drained members have no share: replicas that cannot leave them are left out of the others' shares, as far as they are
known without a placement.

Source: Fujishige, Submodular Functions and Optimization (2005), §9 (the decomposition of a lexicographically optimal
base); Gale, A Theorem on Flows in Networks (1957): how many replicas several members can hold if each holds an item
once. The application to replicas by zone and by member is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import TypeAlias

from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.problem import ZONES_WANTED, Problem, ProblemMember, usable
from broadsheet.allocator.policy import Balance, Objective

ZONES_ENUMERATED_MAX = 8
"""Up to this many zones, every set of them is examined; beyond, only single zones and the fullest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The range of a member's fair load, in replicas."""

    floor: int
    ceiling: int
    share: Fraction
    """The fair share itself: floor and ceiling are its rounded values, unless loads are within the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The properties of a problem's items that fair shares depend on."""

    replications: Mapping[int, int]
    """Items by attainable replication, from 1."""
    held: Mapping[MemberId, int]
    """Replicas that each member holds now; may be left out without closed members and without a tolerance."""

    @classmethod
    def of(cls, problem: Problem) -> Totals:
        """Count a problem's items."""
        members = len(usable(problem.members))
        replications = Counter(min(item.replication, members) for item in problem.items)
        del replications[0]
        held: Mapping[MemberId, int] = {}
        # Counting takes time for every replica, and nothing else needs it.
        if problem.objective.tolerance_ratio > 0 or any(m.closed for m in problem.members):
            held = Counter(m for i in problem.items if i.replication > 0 for m in i.current)
        return cls(replications=replications, held=held)


def load_windows(
    members: Sequence[ProblemMember], totals: Totals, objective: Objective
) -> Mapping[MemberId, Window]:
    """Return the window of each usable member."""
    items = sum(totals.replications.values())
    few = items <= sum(not (member.drain_cost or member.closed) for member in usable(members))
    vessels = _vessels(members, totals.held, items_each_max=None if few else items)
    floors = objective.balance is Balance.TWO_SIDED and not few
    drained = [member.member_id for member in usable(members) if member.drain_cost]
    shares = _Shares(vessels, totals.replications, floors=floors)
    windows = dict(shares.windows(drained=sum(totals.held.get(m, 0) for m in drained)))
    windows.update(dict.fromkeys(drained, _NO_SHARE))
    tolerance = Fraction(objective.tolerance_ratio).limit_denominator(1_000_000)
    if tolerance <= 0:
        return windows
    wide = {
        vessel.member_id: _widened(windows[vessel.member_id], tolerance, vessel)
        for vessel in vessels
    }
    within = all(
        wide[vessel.member_id].floor <= vessel.held <= wide[vessel.member_id].ceiling
        for vessel in vessels
    )
    # Hysteresis: once one member is outside the tolerance, all are levelled fully.
    return windows | wide if within else windows


_NO_SHARE = Window(floor=0, ceiling=0, share=Fraction())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vessel:
    """A member in the water model."""

    member_id: MemberId
    width: int
    height: int
    """The most replicas that it can hold: one of each item, unless items are few; a closed one no more than now."""
    held: int
    closed: bool


def _vessels(
    members: Sequence[ProblemMember],
    held: Mapping[MemberId, int],
    *,
    items_each_max: int | None,
) -> list[_Vessel]:
    def height(member: ProblemMember) -> int:
        most = held.get(member.member_id, 0) if member.closed else items_each_max
        return member.limit if most is None else min(member.limit, most)

    return [
        _Vessel(
            member_id=member.member_id,
            width=member.capacity or member.limit,
            height=height(member),
            held=held.get(member.member_id, 0),
            closed=member.closed,
        )
        for member in usable(members)
        if not member.drain_cost
    ]


def _widened(window: Window, tolerance: Fraction, vessel: _Vessel) -> Window:
    low, high = window.share * (1 - tolerance), window.share * (1 + tolerance)
    return replace(
        window,
        floor=min(window.floor, max(0, low.__floor__())),
        ceiling=max(window.ceiling, min(vessel.height, high.__ceil__())),
    )


Counts: TypeAlias = "Mapping[str, int]"
"""How many vessels of each zone."""


@dataclass(frozen=True, slots=True)
class _Set:
    """Vessels that may be too full together."""

    vessels: tuple[_Vessel, ...]
    content: Fraction
    counts: Counts


class _Shares:
    def __init__(
        self, vessels: Sequence[_Vessel], counts: Mapping[int, int], *, floors: bool
    ) -> None:
        self._vessels = tuple(vessels)
        self._zones = tuple(dict.fromkeys(vessel.member_id.zone for vessel in vessels))
        self._counts = counts
        self._floors = floors
        self._windows: dict[MemberId, Window] = {}

    def windows(self, *, drained: int) -> Mapping[MemberId, Window]:
        """Return the windows; this many replicas are on drained members, and stay there if zones need them."""
        total = sum(count * replication for replication, count in self._counts.items())
        in_zones = self._most(spanning=True) if drained else total
        total = min(total, self._most(spanning=False), max(in_zones, total - drained))
        if self._floors:
            self._fill(self._vessels, total, {})
        else:
            self._settle(self._vessels, _level(self._vessels, total))
        return self._windows

    def _most(self, *, spanning: bool) -> int:
        """Return the most that all vessels hold: some of them full, the others up to the items' bound."""

        def allowed(counts: Counts) -> int:
            return self._allowed(counts, spanning=spanning)

        heights = {vessel: Fraction(vessel.height) for vessel in self._vessels}
        total = sum(vessel.height for vessel in self._vessels)
        rest = (total - int(each.content) + allowed(each.counts) for each in _sets(heights))
        return min(total, allowed(_counts(self._vessels)), *rest)

    def _fill(self, vessels: tuple[_Vessel, ...], total: int, full: Counts) -> None:
        """Distribute a total over vessels, and split off those that items keep below the common level.

        Args:
            vessels: To fill.
            total: Replicas to distribute.
            full: Vessels that are already filled up to the items' bound.
        """
        level = _level(vessels, total)
        before = self._allowed(full)
        most = Fraction()
        some: _Set | None = None
        for each in _sets({vessel: _share(vessel, level) for vessel in vessels}):
            excess = each.content - (self._allowed(_added(full, each.counts)) - before)
            if excess > most:
                most, some = excess, each
        if some is None:
            self._settle(vessels, level)
            return
        inside = set(some.vessels)
        others = tuple(vessel for vessel in vessels if vessel not in inside)
        counts = _added(full, some.counts)
        allowed = self._allowed(counts) - before
        rest = min(total - allowed, sum(vessel.height for vessel in others))
        self._fill(some.vessels, total - rest, full)
        self._fill(others, rest, counts)

    def _settle(self, vessels: Sequence[_Vessel], level: Fraction) -> None:
        for vessel in vessels:
            share = _share(vessel, level)
            self._windows[vessel.member_id] = Window(
                floor=share.__floor__() if self._floors and not vessel.closed else 0,
                ceiling=share.__ceil__(),
                share=share,
            )

    def _allowed(self, counts: Counts, *, spanning: bool = True) -> int:
        """Return the most that vessels can hold, one replica of each item, and with two zones per item if required."""
        several = spanning and len(self._zones) >= ZONES_WANTED
        allowed = 0
        for replication, count in self._counts.items():
            # An item that spans two zones has at most all but one of its replicas in one zone.
            most = max(1, replication - 1) if several else replication
            allowed += count * min(replication, sum(min(most, n) for n in counts.values()))
        return allowed


def _share(vessel: _Vessel, level: Fraction) -> Fraction:
    return min(Fraction(vessel.height), level * vessel.width)


def _counts(vessels: Iterable[_Vessel]) -> Counts:
    return Counter(vessel.member_id.zone for vessel in vessels)


def _added(some: Counts, more: Counts) -> Counts:
    return {zone: some.get(zone, 0) + more.get(zone, 0) for zone in (*some, *more)}


def _sets(content: Mapping[_Vessel, Fraction]) -> Iterator[_Set]:
    """Yield proper subsets of vessels that may be too full: of whole zones, and the fullest ones of all zones."""
    by_zone: dict[str, list[_Vessel]] = {}
    for vessel in content:
        by_zone.setdefault(vessel.member_id.zone, []).append(vessel)
    sums = {zone: _sum(content[v] for v in group) for zone, group in by_zone.items()}
    for zones in _zone_sets(sums):
        yield _Set(
            vessels=tuple(vessel for zone in zones for vessel in by_zone[zone]),
            content=_sum(sums[zone] for zone in zones),
            counts={zone: len(by_zone[zone]) for zone in zones},
        )
    yield from _fullest(content)


def _sum(fractions: Iterable[Fraction]) -> Fraction:
    return sum(fractions, start=Fraction())


def _fullest(content: Mapping[_Vessel, Fraction]) -> Iterator[_Set]:
    """Yield the fullest vessel, the two fullest, and so on, equally full ones together.

    These subsets suffice, because the items' bound grows ever more slowly with the number of vessels.
    """
    order = sorted(content, key=lambda vessel: (-content[vessel], vessel.member_id))
    total = Fraction()
    counts: Counter[str] = Counter()
    for size, vessel in enumerate(order[:-1], start=1):
        total += content[vessel]
        counts[vessel.member_id.zone] += 1
        if content[order[size]] < content[vessel]:
            yield _Set(vessels=tuple(order[:size]), content=total, counts=dict(counts))


def _zone_sets(content: Mapping[str, Fraction]) -> Iterator[tuple[str, ...]]:
    """Yield proper subsets of zones."""
    zones = tuple(content)
    if len(zones) <= ZONES_ENUMERATED_MAX:
        for size in range(1, len(zones)):
            yield from combinations(zones, size)
        return
    fullest = sorted(zones, key=lambda zone: -content[zone])
    yield from ((zone,) for zone in zones)
    yield from (tuple(fullest[:size]) for size in range(2, len(zones)))


def _level(vessels: Sequence[_Vessel], total: int) -> Fraction:
    """Return the level at which vessels hold a total; the highest level, if they cannot hold it."""
    rising = sorted(vessels, key=lambda vessel: Fraction(vessel.height, vessel.width))
    left, width = Fraction(total), sum(vessel.width for vessel in rising)
    for vessel in rising:
        top = Fraction(vessel.height, vessel.width)
        if top * width >= left:
            return left / width
        left -= vessel.height
        width -= vessel.width
    return max((Fraction(v.height, v.width) for v in rising), default=Fraction())


def capacity_of(member: ProblemMember) -> int:
    """Return a member's capacity, which is its limit unless it declares another; at least 1."""
    return max(1, member.capacity or member.limit)


def is_weighted(problem: Problem) -> bool:
    """Return whether items have different weights; otherwise counts suffice."""
    return len({item.load for item in problem.items}) > 1
