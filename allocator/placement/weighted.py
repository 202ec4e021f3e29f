"""Placement of items that weigh differently: a flow on counts, then steps that level loads.

    flow on counts ──► coverage, zones, limits, fewest moves ──► moves and swaps ──► loads in proportion to capacities
                                                                      └► returns: undo unnecessary moves

Unequal loads that cannot be split make the optimal placement hard to find, so this one is good, and its distance from
the optimum is bounded (`imbalance`). The flow solves the part that has an exact solution. Then the most utilised member
gives a replica to a less utilised one, or swaps a heavier for a lighter one, if that lowers the utilisation of the
higher of the two: the sorted utilisations fall with every step, so the steps end.

    all loads equal        the flow's answer, untouched
    moves before balance   only steps that create no replica
    within the tolerance   the same
    otherwise              steps that create none, then those that do, while a member is above its level

Invariants: the same problem has the same answer; coverage, limits and each item's zones are the flow's; the work is
bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import Desired, Problem, ProblemMember, Solver, usable
from broadsheet.allocator.placement.shares import Totals, capacity_of, is_weighted, load_windows
from broadsheet.allocator.policy import Objective

LEVEL_ENOUGH_RATIO = 0.02
"""A member this little above its level is left alone, because loads are rounded more coarsely than that."""
IDLE_RATIO = 0.2
"""A member this far below the level gets more while any is above it."""
LOWS_TRIED = 8
"""Members examined for a step that creates no replica, if one that does may be taken instead."""
ROUNDS_MAX = 4
"""Rounds over all members, because a step may make an earlier one possible."""
PAIRS_MAX = 60_000
"""Pairs of members examined in all: some seconds at worst."""
LOADS_NEAR = 3
"""Loads tried on either side of the one that would level a pair."""
LOADS_TAKEN = 16
"""Loads tried for the returned replica, evenly chosen if there are more."""
EXCHANGES_TRIED = 12
ITEMS_TRIED = 12

_NEW, _STANDBY, _PRIMARY = range(3)
"""The order of moves: first a replica that must be created anyway, then a standby, then the primary."""


class WorkingPlacement:
    """A placement that is changed step by step. Members and items are positions in the problem.

    A replica may move to a member that has room, does not hold the item, is not closed (unless it held the item
    before), is not drained, has not failed the item for too long, and does not reduce the zones of the item.
    """

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
        """Replicas that must be created anyway: without any, no step is free."""
        self.loads = [0] * len(members)
        self.placed: list[set[int]] = [set() for _ in items]
        self._held: list[dict[int, tuple[dict[int, None], ...]]] = [{} for _ in members]
        """By member and load: the items, in the order of moves."""
        for index, item_id in enumerate(self._item_ids):
            for member_id in desired[item_id]:
                self._add(index, position[member_id])

    def placement(self) -> Desired:
        """Return the current placement."""
        ids = self._member_ids
        return {
            item_id: tuple(ids[m] for m in sorted(placed))
            for item_id, placed in zip(self._item_ids, self.placed, strict=True)
        }

    def utilisation(self, member: int) -> float:
        """Return the load per unit of capacity."""
        return self.loads[member] / self.capacities[member]

    def has_room(self, member: int) -> bool:
        """Return whether one more replica fits."""
        return self.counts[member] < self.limits[member]

    def loads_held(self, member: int) -> list[int]:
        """Return the distinct loads of a member's items, rising."""
        return sorted(self._held[member])

    def movable(
        self, load: int, source: int, target: int, *, tries: int, only_new: bool
    ) -> Iterator[int]:
        """Yield items of a load that may move between two members, apart from room; replicas to be created anyway come
        first.
        """
        groups = self._held[source][load]
        # The first group has the replicas that must be created anyway, so their move costs nothing.
        looked_at = (item for group in groups[: 1 if only_new else None] for item in group)
        for item in islice(looked_at, tries):
            if self.may_move(item, source, target):
                yield item

    def may_move(self, item: int, source: int, target: int) -> bool:
        """Return whether an item's replica may move from one member to another, apart from room."""
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
        """Move a replica to another member."""
        self._remove(item, source)
        self._add(item, target)

    def returns(self, item: int) -> Iterator[tuple[int, int]]:
        """Yield the moves that undo one: from a new member of an item to a member that holds it."""
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


class WeightedSolver:
    """Solves by counts, then levels loads if they differ."""

    def __init__(self, solver: Solver) -> None:
        """Wrap a solver that places by counts."""
        self._solver = solver

    def solve(self, problem: Problem) -> Desired:
        """Return a placement with the inner solver's coverage and zones, and level loads."""
        # With equal loads the flow on counts is exact.
        if not is_weighted(problem):
            return self._solver.solve(problem)
        # Moves for even counts would only be undone by moves for even loads.
        by_count = replace(problem, objective=replace(problem.objective, moves_before_balance=True))
        return _Search(problem, self._solver.solve(by_count)).run()


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A replica of load `given` moves to another member, and one of load `taken` (0: none) comes back."""

    given: int
    taken: int
    merit: float


class _Search:
    def __init__(self, problem: Problem, desired: Desired) -> None:
        self._working = WorkingPlacement(problem, desired)
        self._members = [i for i, member in enumerate(problem.members) if member.limit > 0]
        self._staying = [i for i in self._members if not problem.members[i].closed]
        self._fair = _fair_utilisations(problem, desired)
        relief = _relief(problem, desired)
        self._levels = [relief * fair for fair in self._fair]
        """By member, the target utilisation."""
        self._pairs_left = PAIRS_MAX
        objective = problem.objective
        self._may_make = not objective.moves_before_balance and not self._is_within(
            objective.tolerance_ratio
        )

    def run(self) -> Desired:
        for _ in range(ROUNDS_MAX):
            if not self._round():
                break
        if self._may_make:
            self._return()
        return self._working.placement()

    def _is_within(self, tolerance_ratio: float) -> bool:
        if not tolerance_ratio:
            return False
        return all(
            abs(self._working.utilisation(member) - self._fair[member])
            <= self._fair[member] * tolerance_ratio
            for member in self._members
        )

    def _round(self) -> bool:
        """Relieve members above their level, highest first, until no step helps."""
        working, waiting, stepped = self._working, set(self._members), False
        while waiting and self._pairs_left > 0:
            high = max(waiting, key=lambda member: (working.utilisation(member), -member))
            if not self._should_give(high):
                waiting.remove(high)
                continue
            if self._step(high, making=False) or (self._may_make and self._step(high, making=True)):
                stepped = True
            else:
                waiting.remove(high)
        return stepped

    def _should_give(self, member: int) -> bool:
        """Return whether a member is above its level, or a little above it while another one is far below.

        A member with a replica heavier than its level cannot get below that replica's load, and need not give away all
        others.
        """
        working = self._working
        utilisation, loads = working.utilisation(member), working.loads_held(member)
        heaviest = loads[-1] / working.capacities[member] if loads else 0.0
        level = self._levels[member]
        if utilisation > max(level, heaviest) * (1 + LEVEL_ENOUGH_RATIO):
            return True
        if utilisation <= level or heaviest > level:
            return False
        return any(
            working.utilisation(other) < self._levels[other] * (1 - IDLE_RATIO)
            for other in self._staying
        )

    def _step(self, high: int, *, making: bool) -> bool:
        """Relieve a member in favour of the least utilised possible one."""
        working = self._working
        lows = sorted(self._members, key=lambda member: (working.utilisation(member), member))
        if self._may_make and not making:
            lows = lows[:LOWS_TRIED]
        for low in lows:
            if working.utilisation(low) >= working.utilisation(high) or self._pairs_left <= 0:
                return False
            self._pairs_left -= 1
            best_first = sorted(
                self._exchanges(high, low), key=lambda e: (-e.merit, e.taken, e.given)
            )
            for exchange in best_first[:EXCHANGES_TRIED]:
                if self._carry_out(exchange, high, low, making=making):
                    return True
        return False

    def _exchanges(self, high: int, low: int) -> Iterator[_Exchange]:
        """Yield exchanges that lower the utilisation of the higher of two members."""
        working = self._working
        load_high, load_low = working.loads[high], working.loads[low]
        width_high, width_low = working.capacities[high], working.capacities[low]
        ideal = (load_high * width_low - load_low * width_high) / (width_high + width_low)
        givable = working.loads_held(high)
        held = working.loads_held(low)
        takeable = held[:: 1 + len(held) // LOADS_TAKEN]
        if working.has_room(low):
            # Load 0: a move, with nothing in return.
            takeable.insert(0, 0)
        for taken in takeable:
            middle = bisect_left(givable, taken + ideal)
            for given in givable[max(0, middle - LOADS_NEAR) : middle + LOADS_NEAR]:
                net = given - taken
                # In integers, so that rounding decides nothing.
                if net <= 0 or (load_low + net) * width_high >= load_high * width_low:
                    continue
                after = max((load_high - net) / width_high, (load_low + net) / width_low)
                # A swap creates two replicas, but a move creates one.
                merit = (load_high / width_high - after) / (2 if taken else 1)
                yield _Exchange(given, taken, merit)

    def _carry_out(self, exchange: _Exchange, high: int, low: int, *, making: bool) -> bool:
        working = self._working
        tries = ITEMS_TRIED
        for given in working.movable(exchange.given, high, low, tries=tries, only_new=not making):
            if not exchange.taken:
                working.move(given, high, low)
                return True
            for taken in working.movable(
                exchange.taken, low, high, tries=tries, only_new=not making
            ):
                working.move(given, high, low)
                working.move(taken, low, high)
                return True
            return False
        return False

    def _return(self) -> None:
        """Move replicas back where that puts no member above its level."""
        working = self._working
        for item, load in enumerate(working.item_loads):
            for source, target in list(working.returns(item)):
                if (
                    # An earlier return may have moved this replica already.
                    source in working.placed[item]
                    and working.may_move(item, source, target)
                    and working.has_room(target)
                    and working.loads[target] + load <= self._most(target)
                ):
                    working.move(item, source, target)

    def _most(self, member: int) -> float:
        """Return the highest load at which a member counts as level."""
        return self._levels[member] * (1 + LEVEL_ENOUGH_RATIO) * self._working.capacities[member]


def _lasting(problem: Problem) -> list[ProblemMember]:
    """Return the members with a share of the load."""
    return [member for member in usable(problem.members) if not member.drain_cost]


def _fair_utilisations(problem: Problem, desired: Desired) -> list[float]:
    """Return each member's fair share of the load per unit of capacity: its share of replicas at their mean load."""
    windows = load_windows(problem.members, Totals.of(problem), Objective())
    replicas = sum(map(len, desired.values()))
    mean_load = sum(i.load * len(desired[i.item_id]) for i in problem.items) / max(1, replicas)
    return [
        float(windows[m.member_id].share) * mean_load / capacity_of(m) if m.limit > 0 else 0.0
        for m in problem.members
    ]


def _relief(problem: Problem, desired: Desired) -> float:
    """Return the part of a fair share that is left to most members, because some replicas weigh more than a whole
    share.
    """
    members = _lasting(problem)
    width = float(sum(map(capacity_of, members)))
    mean_width = width / max(1, len(members))
    loads = sorted(
        (item.load for item in problem.items for _ in desired[item.item_id]), reverse=True
    )
    left = total = float(sum(loads))
    fair = total / width if width else 0.0
    for load in loads:
        if width <= mean_width or load * width <= left * mean_width:
            break
        left -= load
        width -= mean_width
    return left / width / fair if fair else 0.0
