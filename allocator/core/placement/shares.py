"""Fair shares: how many replicas each member should hold, between a floor and a ceiling.

Loads follow capacities up to limits, like water in vessels of unequal width and height. Two zones an item come before
balance, though, and may not let the water find one level: with one member in zone a and nine in zone b, half of all
replicas of items of two belong to zone a. Such zones are filled to what zones allow, at a level of their own.

Floors hold only while items outnumber members. Where they do not, some member is primary of nothing whatever is done,
and evening out a handful of standbys is not worth a move: ceilings alone hold, as in the model, and for them the water
has one level: what zones push above it is overload.

Members that are drained have no share: what cannot leave them is left out of the others' shares as far as it is known
without a placement.

Source: Fujishige, Submodular Functions and Optimization (2005), §9 (the decomposition of a lexicographically optimal
base); that it is replicas by zone which it decomposes is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

from allocator.core.model import MemberId
from allocator.core.placement.problem import (
    ZONES_WANTED,
    Problem,
    ProblemMember,
    usable,
)
from allocator.core.policy import Balance, Objective

ZONES_ENUMERATED_MAX = 8
"""Up to so many zones, each set of them is looked at; beyond, the likely ones only (single zones, and the fullest)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where a member's load should lie, in replicas."""

    floor: int
    ceiling: int
    share: Fraction
    """The fair share itself: floor and ceiling are it, rounded, unless loads are within the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All that fair shares depend on, of a problem's items."""

    replications: Mapping[int, int]
    """Items by attainable replication, from 1."""
    held: Mapping[MemberId, int]
    """Replicas that each member holds now; may be left out without exiting members and without a tolerance."""

    @classmethod
    def of(cls, problem: Problem) -> Totals:
        """Count a problem's items."""
        members = len(usable(problem.members))
        replications = Counter(min(item.replication, members) for item in problem.items)
        del replications[0]
        held: Mapping[MemberId, int] = {}
        if problem.objective.tolerance_ratio > 0 or any(m.exiting for m in problem.members):
            held = Counter(m for i in problem.items if i.replication > 0 for m in i.current)
        return cls(replications=replications, held=held)


def load_windows(
    members: Sequence[ProblemMember], totals: Totals, objective: Objective
) -> Mapping[MemberId, Window]:
    """Return the window of each usable member."""
    vessels = _vessels(members, totals.held)
    items = sum(totals.replications.values())
    floors = objective.balance is Balance.TWO_SIDED and items > len(vessels)
    windows = dict(_Shares(vessels, totals.replications, floors=floors).windows())
    windows.update((m.member_id, _NO_SHARE) for m in usable(members) if m.drain_cost)
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
    return windows | wide if within else windows


_NO_SHARE = Window(floor=0, ceiling=0, share=Fraction())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vessel:
    """A member as water sees it."""

    member_id: MemberId
    width: int
    height: int
    """Most replicas it can hold; an exiting one holds no more than it does now."""
    held: int
    exiting: bool


def _vessels(members: Sequence[ProblemMember], held: Mapping[MemberId, int]) -> list[_Vessel]:
    return [
        _Vessel(
            member_id=member.member_id,
            width=member.capacity or member.limit,
            height=min(member.limit, held.get(member.member_id, 0))
            if member.exiting
            else member.limit,
            held=held.get(member.member_id, 0),
            exiting=member.exiting,
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


class _Shares:
    def __init__(
        self, vessels: Sequence[_Vessel], counts: Mapping[int, int], *, floors: bool
    ) -> None:
        self._by_zone: dict[str, list[_Vessel]] = {}
        for vessel in vessels:
            self._by_zone.setdefault(vessel.member_id.zone, []).append(vessel)
        self._zones = tuple(self._by_zone)
        self._counts = counts
        self._floors = floors
        self._windows: dict[MemberId, Window] = {}

    def windows(self) -> Mapping[MemberId, Window]:
        total = sum(count * replication for replication, count in self._counts.items())
        total = min(total, self._most())
        if self._floors:
            self._fill(self._zones, total, ())
        else:
            vessels = [vessel for group in self._by_zone.values() for vessel in group]
            self._settle(self._zones, _level(vessels, total))
        return self._windows

    def _most(self) -> int:
        """Return what all zones hold at most: some of them full to their limits, the others to what zones allow."""
        most = self._height(self._zones)
        for zones in (self._zones, *_sets(self._zones, dict.fromkeys(self._zones, Fraction()))):
            full = self._height(tuple(zone for zone in self._zones if zone not in zones))
            most = min(most, full + self._allowed(zones))
        return most

    def _height(self, zones: Sequence[str]) -> int:
        return sum(vessel.height for zone in zones for vessel in self._by_zone[zone])

    def _fill(self, zones: tuple[str, ...], total: int, full: tuple[str, ...]) -> None:
        """Fill zones with a total, splitting off those that zones do not let rise to the common level.

        Args:
            zones: To fill.
            total: Replicas to distribute.
            full: Zones filled before, to what they allow.
        """
        level = _level([vessel for zone in zones for vessel in self._by_zone[zone]], total)
        content = {
            zone: _sum(_share(vessel, level) for vessel in self._by_zone[zone]) for zone in zones
        }
        before = self._allowed(full)
        most = Fraction()
        some: tuple[str, ...] = ()
        for each in _sets(zones, content):
            allowed = self._allowed(full + each) - before
            excess = _sum(content[zone] for zone in each) - allowed
            if excess > most:
                most, some = excess, each
        if not some:
            self._settle(zones, level)
            return
        others = tuple(zone for zone in zones if zone not in some)
        allowed = self._allowed(full + some) - before
        rest = min(total - allowed, self._height(others))
        self._fill(some, total - rest, full)
        self._fill(others, rest, full + some)

    def _settle(self, zones: Sequence[str], level: Fraction) -> None:
        for zone in zones:
            for vessel in self._by_zone[zone]:
                share = _share(vessel, level)
                self._windows[vessel.member_id] = Window(
                    floor=share.__floor__() if self._floors and not vessel.exiting else 0,
                    ceiling=share.__ceil__(),
                    share=share,
                )

    def _allowed(self, zones: Sequence[str]) -> int:
        """Return how many replicas zones can hold while every item of two or more spans two."""
        several = len(self._zones) >= ZONES_WANTED
        allowed = 0
        for replication, count in self._counts.items():
            most = max(1, replication - 1) if several else replication
            allowed += count * min(
                replication, sum(min(most, len(self._by_zone[zone])) for zone in zones)
            )
        return allowed


def _share(vessel: _Vessel, level: Fraction) -> Fraction:
    return min(Fraction(vessel.height), level * vessel.width)


def _sum(fractions: Iterable[Fraction]) -> Fraction:
    return sum(fractions, start=Fraction())


def _sets(zones: tuple[str, ...], content: Mapping[str, Fraction]) -> Iterator[tuple[str, ...]]:
    """Yield sets of zones, not all, that may be too full."""
    if len(zones) <= ZONES_ENUMERATED_MAX:
        for size in range(1, len(zones)):
            yield from combinations(zones, size)
        return
    fullest = sorted(zones, key=lambda zone: -content[zone])
    yield from ((zone,) for zone in zones)
    yield from (tuple(fullest[:size]) for size in range(2, len(zones)))


def _level(vessels: Sequence[_Vessel], total: int) -> Fraction:
    """Return the level at which vessels hold a total; the highest, if they cannot."""
    rising = sorted(vessels, key=lambda vessel: Fraction(vessel.height, vessel.width))
    left, width = Fraction(total), sum(vessel.width for vessel in rising)
    for vessel in rising:
        top = Fraction(vessel.height, vessel.width)
        if top * width >= left:
            return left / width
        left -= vessel.height
        width -= vessel.width
    return max((Fraction(v.height, v.width) for v in rising), default=Fraction())
