"""Assign each of many units to one of its members, with level loads and the fewest changes.

    units alike ──► one of their members ──► load²/weight

Members are the nodes of a small graph: an arc `a → b` represents the units on `a` that may also be on `b`, and its cost
is the number of changes by moving one of them. Loads can be made more level if and only if a path leads from a member
to one with less; once there is no such path, units that changed unnecessarily are moved back along cycles that keep the
loads' cost.

Invariants: the sum of load²/weight is the least possible, and no assignment with that sum has fewer units away from
their home. `is_optimal` verifies both from the residual graph alone.

Source: Harvey, Ladner, Lovász, Tamir, Semi-matchings for bipartite graphs and load balancing (2006): cost-reducing
paths suffice; Klein (1967): negative cycles for the fewest changes. Merged units, weights and the order in which
members are finished are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import lcm

_AWAY, _ELSEWHERE, _HOME = 1, 0, -1
"""The effect of moving a unit: it leaves home, is away before and after, or comes home."""
_CHEAPEST_FIRST = (_HOME, _ELSEWHERE, _AWAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitClass:
    """Units with equal choices."""

    choices: tuple[int, ...]
    """Members that may have a unit, at least one, each once."""
    home: int | None
    """The one of `choices` that each unit is on now, if any."""
    size: int
    """Units, from 1."""


@dataclass(slots=True)
class _Arc:
    """Units on one member that may move to another: for each cost, the classes that have some."""

    classes: dict[int, dict[int, None]] = field(
        default_factory=lambda: {_HOME: {}, _ELSEWHERE: {}, _AWAY: {}}
    )

    cheapest: int | None = None
    """The least cost of which there is a unit; None if there is none at all."""

    def add(self, index: int, cost: int) -> None:
        self.classes[cost][index] = None
        if self.cheapest is None or cost < self.cheapest:
            self.cheapest = cost

    def remove(self, index: int, cost: int) -> None:
        classes = self.classes
        del classes[cost][index]
        if cost == self.cheapest and not classes[cost]:
            self.cheapest = next((each for each in _CHEAPEST_FIRST if classes[each]), None)


class SemiMatching:
    """An assignment of units to members, first greedy, then optimal."""

    def __init__(
        self, weights: Sequence[int], base_loads: Sequence[int], classes: Sequence[UnitClass]
    ) -> None:
        """Put every unit on its home, or on its least loaded member.

        Args:
            weights: By member, from 1: loads are levelled in proportion.
            base_loads: By member, units that are not assigned here.
            classes: The units.
        """
        self.loads = list(base_loads)
        self._weights = weights
        scale = lcm(*weights)
        self._per_unit = [scale // weight for weight in weights]
        """By member, the weight of one of its units relative to others', as an integer."""
        self._classes = classes
        self._placed: list[dict[int, int]] = [{} for _ in classes]
        self._arcs: list[dict[int, _Arc]] = [{} for _ in weights]
        # Classes with the fewest choices come first, so that the others can take them into account.
        for index in sorted(range(len(classes)), key=lambda i: len(classes[i].choices)):
            self._put_first(index)

    def solve(self) -> None:
        """Level the loads, then minimise the changes."""
        self._level()
        if any(each.home is not None for each in self._classes):
            while cycles := self._negative_cycles():
                for cycle in cycles:
                    self._cancel(cycle)

    def units(self, index: int) -> list[tuple[int, int]]:
        """Return the members of a class's units, in order, and how many each has."""
        return sorted(self._placed[index].items())

    def is_optimal(self) -> bool:
        """Return whether the residual graph proves the invariants."""
        return not self._negative_cycles()

    def _put_first(self, index: int) -> None:
        each = self._classes[index]
        if each.home is not None:
            self._change(index, each.home, each.size)
            return
        for _ in range(each.size):
            least = min(
                each.choices, key=lambda m: ((2 * self.loads[m] + 1) * self._per_unit[m], m)
            )
            self._change(index, least, 1)

    def _change(self, index: int, member: int, amount: int) -> None:
        placed = self._placed[index]
        before = placed.get(member, 0)
        self.loads[member] += amount
        if before + amount:
            placed[member] = before + amount
        else:
            del placed[member]
        # An arc knows only which classes have units, so only a first or a last unit changes it.
        if bool(before) != bool(before + amount):
            self._update_arcs(index, member, has_units=not before)

    def _update_arcs(self, index: int, member: int, *, has_units: bool) -> None:
        each = self._classes[index]
        for other in each.choices:
            if other == member:
                continue
            arc = self._arcs[member].setdefault(other, _Arc())
            # A unit without a home counts as away on every member.
            cost = (member == each.home) - (other == each.home)
            if has_units:
                arc.add(index, cost)
            else:
                arc.remove(index, cost)

    def _shift(self, tail: int, head: int, amount: int) -> None:
        """Move units along an arc, the cheapest ones first."""
        arc = self._arcs[tail][head]
        for cost in _CHEAPEST_FIRST:
            # A copy, because `_change` removes a class that has no unit left.
            for index in list(arc.classes[cost]):
                moved = min(amount, self._placed[index][tail])
                self._change(index, tail, -moved)
                self._change(index, head, moved)
                amount -= moved
                if not amount:
                    return
        assert not amount, "an arc carries what its classes have"

    def _room(self, tail: int, head: int) -> int:
        classes = self._arcs[tail][head].classes.values()
        return sum(self._placed[index][tail] for indices in classes for index in indices)

    def _room_at_cheapest(self, tail: int, head: int) -> int:
        arc = self._arcs[tail][head]
        assert arc.cheapest is not None, "a cycle takes arcs with units"
        return sum(self._placed[index][tail] for index in arc.classes[arc.cheapest])

    def _level(self) -> None:
        """Shift units along paths to less loaded members until there are no such paths.

        The most loaded member goes first. If no path from it leads to a gain, no path from any member that it reaches
        does, because those have less to give; and since they reach nothing else, they are finished for good.
        """
        waiting = set(range(len(self._weights)))
        while waiting:
            high = max(waiting, key=lambda m: ((2 * self.loads[m] - 1) * self._per_unit[m], -m))
            reached, low = self._search(high)
            if low is None:
                waiting -= reached.keys()
                continue
            path = list(_path(reached, low))
            room = min(self._room(tail, head) for tail, head in path)
            amount = min(room, self._gain(high, low))
            for tail, head in path:
                self._shift(tail, head, amount)

    def _search(self, high: int) -> tuple[dict[int, int], int | None]:
        """Return the predecessor of each reached member, and the first one found that should have more."""
        reached = {high: high}
        queue = deque([high])
        while queue:
            tail = queue.popleft()
            for head, arc in self._arcs[tail].items():
                if head in reached or arc.cheapest is None:
                    continue
                reached[head] = tail
                if self._gain(high, head) > 0:
                    return reached, head
                queue.append(head)
        return reached, None

    def _gain(self, high: int, low: int) -> int:
        """Return how many units to shift for the least load²/weight; 0 if even one would not lower it."""
        total_weight = self._weights[high] + self._weights[low]
        slope = self.loads[high] * self._weights[low] - self.loads[low] * self._weights[high]
        # The real minimum is at slope / total_weight; the integral minimum is the nearest integer.
        best = (2 * slope + total_weight) // (2 * total_weight)
        improves = best * (2 * slope - best * total_weight) > 0
        return best if best > 0 and improves else 0

    def _negative_cycles(self) -> list[list[tuple[int, int]]]:
        """Return disjoint cycles of arcs along which units move at a lower cost (Bellman and Ford).

        The node after the last member represents the loads' cost: a path through it lowers one member's load and raises
        another's.
        """
        hub = len(self._weights)
        arcs = list(self._costs(hub))
        # All at zero, so that a negative cycle is found wherever it is.
        distances = [0] * (hub + 1)
        came_from: list[int | None] = [None] * (hub + 1)
        while True:
            changed = False
            for tail, head, cost in arcs:
                if distances[tail] + cost < distances[head]:
                    distances[head] = distances[tail] + cost
                    came_from[head] = tail
                    changed = True
            if not changed:
                return []
            if cycles := list(_cycles(came_from)):
                return cycles

    def _costs(self, hub: int) -> Iterator[tuple[int, int, int]]:
        # One unit of the loads' cost outweighs all changes of one cycle.
        scale = hub + 2
        for tail, arcs in enumerate(self._arcs):
            for head, arc in arcs.items():
                if arc.cheapest is not None:
                    yield tail, head, arc.cheapest
        for member, per_unit in enumerate(self._per_unit):
            yield member, hub, (2 * self.loads[member] + 1) * per_unit * scale
            # An empty member has no unit to give.
            if self.loads[member]:
                yield hub, member, -(2 * self.loads[member] - 1) * per_unit * scale

    def _cancel(self, cycle: list[tuple[int, int]]) -> None:
        hub = len(self._weights)
        inner = [(tail, head) for tail, head in cycle if hub not in (tail, head)]
        # Through the hub one unit at a time, because each unit changes the loads' cost.
        amount = 1
        if len(inner) == len(cycle):
            amount = min(self._room_at_cheapest(tail, head) for tail, head in inner)
        for tail, head in inner:
            self._shift(tail, head, amount)


def _path(reached: dict[int, int], end: int) -> Iterator[tuple[int, int]]:
    """Yield the arcs that lead to `end`, the last one first, so that none takes the units that another one brings."""
    while reached[end] != end:
        yield reached[end], end
        end = reached[end]


def _cycles(came_from: Sequence[int | None]) -> Iterator[list[tuple[int, int]]]:
    """Yield the arcs of each cycle of predecessors."""
    seen_in: dict[int, int] = {}
    for start in range(len(came_from)):
        node: int | None = start
        while node is not None and node not in seen_in:
            seen_in[node] = start
            node = came_from[node]
        if node is None or seen_in[node] != start:
            continue
        cycle: list[tuple[int, int]] = []
        head = node
        while not cycle or head != node:
            tail = came_from[head]
            assert tail is not None, "a cycle has no start"
            cycle.append((tail, head))
            head = tail
        yield cycle
