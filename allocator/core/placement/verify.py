"""An independent check of a placement, made before it is used.

It knows nothing of flows: it looks at the answer and tries to do better by the simplest means. A placement that breaks
a bound, or that one plain step would improve in a higher objective, is refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product

from allocator.core.placement.capacity import capacity_of, is_weighted
from allocator.core.placement.problem import (
    ZONES_WANTED,
    Desired,
    Problem,
    ProblemItem,
    kept_zones,
    usable,
    zones_spanned,
)
from allocator.core.placement.shares import Totals, load_windows
from allocator.model import ItemId, MemberId
from allocator.policy import Balance

VIOLATIONS_REPORTED_MAX = 10
"""Enough to see what is wrong; a broken solver may break every item."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with a placement, and where."""

    item_id: ItemId | None
    member_id: MemberId | None
    problem: str

    def __str__(self) -> str:
        where = " on ".join(
            str(part) for part in (self.item_id, self.member_id) if part is not None
        )
        return f"{where}: {self.problem}"


def verify(problem: Problem, desired: Desired) -> tuple[Violation, ...]:
    """Return what is wrong with `desired`, at most `VIOLATIONS_REPORTED_MAX` findings; empty if nothing is."""
    check = _Check(problem, desired)
    found: list[Violation] = []
    for violation in check.violations():
        found.append(violation)
        if len(found) == VIOLATIONS_REPORTED_MAX:
            break
    return tuple(found)


class _Check:
    """Looks at a million items in about a second: members are ranks, and an item without any doubt costs no call."""

    def __init__(self, problem: Problem, desired: Desired) -> None:
        self._problem = problem
        self._desired = desired
        self._members = problem.members
        self._ranks = {member.member_id: rank for rank, member in enumerate(problem.members)}
        # Few values, many mentions: a member is looked up by value once for each object that stands for it.
        mentions = Counter(map(id, chain.from_iterable(desired.values())))
        values = {id(m): m for m in chain.from_iterable(desired.values())}
        self._rank_of = {key: self._ranks.get(m, -1) for key, m in values.items()}
        self._loads: Counter[MemberId] = Counter()
        for key, count in mentions.items():
            self._loads[values[key]] += count
        self._room = [
            member for member in problem.members if self._loads[member.member_id] < member.limit
        ]
        self._drained = {member.member_id for member in problem.members if member.drain_cost}
        self._kept_zones = kept_zones(problem.members)
        self._closed = {member.member_id for member in problem.members if member.closed}

    def violations(self) -> Iterator[Violation]:
        for member_id, load in self._loads.items():
            if member_id not in self._ranks:
                yield Violation(None, member_id, "is no member")
            elif load > (limit := self._members[self._ranks[member_id]].limit):
                yield Violation(None, member_id, f"holds {load}, its limit is {limit}")
        if unknown := self._desired.keys() - {item.item_id for item in self._problem.items}:
            yield Violation(min(unknown), None, "is no item")
        zone_of = [member.member_id.zone for member in self._members]
        rank_of, desired, closed = self._rank_of, self._desired, self._closed
        for item in self._problem.items:
            placed = desired.get(item.item_id)
            if placed is None:
                yield Violation(item.item_id, None, "has no answer")
                continue
            ranks = [rank_of[id(m)] for m in placed]
            last, zone, zones = -1, None, 0
            for rank in ranks:
                if rank <= last:
                    break
                last = rank
                if zone_of[rank] != zone:
                    zone = zone_of[rank]
                    zones += 1
            else:
                if (
                    len(ranks) == item.replication
                    and (zones >= ZONES_WANTED or len(ranks) < ZONES_WANTED)
                    and (not closed or closed.isdisjoint(placed))
                ):
                    continue
            yield from self._item_violations(item, placed)
        yield from self._balance_violations()

    def _item_violations(
        self, item: ProblemItem, placed: tuple[MemberId, ...]
    ) -> Iterator[Violation]:
        if len(set(placed)) != len(placed):
            yield Violation(item.item_id, None, "has a member twice")
        if list(placed) != sorted(placed):
            yield Violation(item.item_id, None, "has members out of order")
        if len(placed) > item.replication:
            yield Violation(item.item_id, None, f"has {len(placed)} of {item.replication} replicas")
        for member_id in placed:
            if member_id in self._closed and member_id not in item.current:
                yield Violation(
                    item.item_id, member_id, "is new on a member that is leaving or cordoned"
                )
        others = [
            member.member_id
            for member in self._room
            if member.member_id not in placed
            and (not member.closed or member.member_id in item.current)
        ]
        if len(placed) < item.replication and others:
            yield Violation(item.item_id, others[0], "is short of a replica that fits")
        if len(placed) >= ZONES_WANTED and self._zones(placed) < ZONES_WANTED:
            zones = {member_id.zone for member_id in placed}
            elsewhere = (m for m in others if m.zone in self._kept_zones - zones)
            if (other := next(elsewhere, None)) is not None:
                yield Violation(item.item_id, other, "stands in one zone, another has room")
        for member_id in self._drained.intersection(placed):
            yield from self._drain_violations(item, member_id, others)

    def _zones(self, placed: Iterable[MemberId]) -> int:
        """Return how many zones members stand in, those that are given up left out."""
        return zones_spanned(m for m in placed if m.zone in self._kept_zones)

    def _drain_violations(
        self, item: ProblemItem, member_id: MemberId, others: Iterable[MemberId]
    ) -> Iterator[Violation]:
        """Find a member that could take a replica from one that is drained, without a loss of zones."""
        placed = self._desired[item.item_id]
        rest = [m for m in placed if m != member_id]
        zones = min(ZONES_WANTED, self._zones(placed))
        for other in others:
            if other not in self._closed and self._zones([*rest, other]) >= zones:
                yield Violation(item.item_id, member_id, f"is drained, {other} has room")
                return

    def _balance_violations(self) -> Iterator[Violation]:
        """Find items that could go from a member with too many to one of the same zone with too few."""
        if self._problem.objective.moves_before_balance or is_weighted(self._problem):
            # Even counts are not what was asked for.
            return
        pairs: dict[MemberId, set[MemberId]] = {}
        for giver, taker in chain(self._outside_windows(), self._unlike_their_equals()):
            pairs.setdefault(giver, set()).add(taker)
        if not pairs:
            return
        for item_id, placed in self._desired.items():
            for giver in pairs.keys() & set(placed):
                free = pairs[giver].difference(placed)
                if free:
                    yield Violation(item_id, giver, f"has too many, {min(free)} too few")

    def _outside_windows(self) -> Iterator[tuple[MemberId, MemberId]]:
        """Yield who should give to whom, by the windows of their loads."""
        windows = load_windows(self._members, Totals.of(self._problem), self._problem.objective)
        takers: dict[str, list[tuple[MemberId, int]]] = {}
        for member in usable(self._members):
            load, window = self._loads[member.member_id], windows[member.member_id]
            if load < min(window.ceiling, member.limit) and not member.closed:
                gain = 2 if load < window.floor else 1
                takers.setdefault(member.member_id.zone, []).append((member.member_id, gain))
        for giver, load in self._loads.items():
            if giver in windows:
                window = windows[giver]
                loss = (load > window.floor) + (load > window.ceiling)
                for taker, gain in takers.get(giver.zone, ()):
                    if gain + loss > 2:
                        yield giver, taker

    def _unlike_their_equals(self) -> Iterator[tuple[MemberId, MemberId]]:
        """Yield who should give to whom of members alike: whatever their fair share is, it is the same.

        This does not depend on the windows, which the solver, too, goes by.
        """
        objective = self._problem.objective
        staying = [member for member in usable(self._members) if not member.closed]
        items = sum(item.replication > 0 for item in self._problem.items)
        if objective.balance is not Balance.TWO_SIDED or objective.tolerance_ratio > 0:
            return
        if items <= len(staying):
            # So few are not evened out: see `shares`.
            return
        alike: dict[tuple[str, int, int], list[MemberId]] = defaultdict(list)
        for member in staying:
            kind = (member.member_id.zone, capacity_of(member), min(member.limit, items))
            alike[kind].append(member.member_id)
        for equals in alike.values():
            least = min(self._loads[m] for m in equals)
            givers = [m for m in equals if self._loads[m] > least + 1]
            for giver, taker in product(givers, equals if givers else ()):
                if self._loads[taker] < self._loads[giver] - 1:
                    yield giver, taker
