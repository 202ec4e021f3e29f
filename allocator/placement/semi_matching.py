"""Give each of many units one of its members so that loads are level, and no level choice changes fewer units.

    units alike ──► one of their members ──► load²/weight

Members are the nodes of a small graph: an arc `a → b` stands for the units on `a` that may as well go to `b`, and costs
what moving one of them changes. Loads can be made more level exactly if a path leads from a member to one with less;
once no path is left, units that need not have changed are put back round cycles that leave the loads' cost as it is.

Invariants: the sum of load²/weight is the least possible, and no choice with that sum leaves fewer units away from
their home. `is_optimal` says so from the residual graph alone.

Source: Harvey, Ladner, Lovász, Tamir, Semi-matchings for bipartite graphs and load balancing (2006): cost-reducing
paths are all there is to it; Klein (1967): negative cycles for the fewest changes. Merged units, weights and the order
in which members are done with are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import lcm

_AWAY, _ELSEWHERE, _HOME = 1, 0, -1
"""What moving a unit changes: it leaves home, is away before and after, comes home."""
_CHEAPEST_FIRST = (_HOME, _ELSEWHERE, _AWAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitClass:
    """Units alike."""

    choices: tuple[int, ...]
    """Members that may have a unit, at least one, each once."""
    home: int | None
    """The one of `choices` that each unit is on now, if any."""
    size: int
    """Units, from 1."""


@dataclass(slots=True)
class _Arc:
    """Units on one member that may go to another: for each cost, the classes that have some."""

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
    """A choice for each unit, first made greedily, then made best."""

    def __init__(
        self, weights: Sequence[int], base_loads: Sequence[int], classes: Sequence[UnitClass]
    ) -> None:
        """Put every unit home, or where least is.

        Args:
            weights: By member, from 1: loads are levelled in proportion.
            base_loads: By member, units that stay whatever is chosen here.
            classes: The units.
        """
        self.loads = list(base_loads)
        self._weights = weights
        scale = lcm(*weights)
        self._per_unit = [scale // weight for weight in weights]
        """By member, what one of its units weighs beside others', in whole numbers."""
        self._classes = classes
        self._placed: list[dict[int, int]] = [{} for _ in classes]
        self._arcs: list[dict[int, _Arc]] = [{} for _ in weights]
        # Those with the fewest choices first: what cannot be helped is then known to the others.
        for index in sorted(range(len(classes)), key=lambda i: len(classes[i].choices)):
            self._put_first(index)

    def solve(self) -> None:
        """Make the loads level, then the changes few."""
        self._level()
        if any(each.home is not None for each in self._classes):
            while cycles := self._negative_cycles():
                for cycle in cycles:
                    self._cancel(cycle)

    def units(self, index: int) -> list[tuple[int, int]]:
        """Return where a class's units are: members in order, and how many each has."""
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
        if bool(before) != bool(before + amount):
            self._update_arcs(index, member, has_units=not before)

    def _update_arcs(self, index: int, member: int, *, has_units: bool) -> None:
        each = self._classes[index]
        for other in each.choices:
            if other == member:
                continue
            arc = self._arcs[member].setdefault(other, _Arc())
            # Without a home, a unit is away wherever it is.
            cost = (member == each.home) - (other == each.home)
            if has_units:
                arc.add(index, cost)
            else:
                arc.remove(index, cost)

    def _shift(self, tail: int, head: int, amount: int) -> None:
        """Move units over an arc, those that cost least first."""
        arc = self._arcs[tail][head]
        for cost in _CHEAPEST_FIRST:
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
        """Shift along paths to less loaded members until there are none.

        The most loaded member goes first. If no path leads from it to a gain, none leads from any member it reaches
        either, for they have less to give; and since they reach nothing else, they are done with for good.
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
        """Return, for each member that was reached, where from; and the first found that should have more."""
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
        # The real minimum lies at slope / total_weight; the nearest integer is the integral one.
        best = (2 * slope + total_weight) // (2 * total_weight)
        improves = best * (2 * slope - best * total_weight) > 0
        return best if best > 0 and improves else 0

    def _negative_cycles(self) -> list[list[tuple[int, int]]]:
        """Return cycles of arcs, no two through one node, round which units move for less (Bellman and Ford).

        The node after the last member stands for the loads' cost: a path through it makes one member's load less and
        another's more.
        """
        hub = len(self._weights)
        arcs = list(self._costs(hub))
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
        # One step of the loads' cost outweighs all changes that one cycle can make.
        scale = hub + 2
        for tail, arcs in enumerate(self._arcs):
            for head, arc in arcs.items():
                if arc.cheapest is not None:
                    yield tail, head, arc.cheapest
        for member, per_unit in enumerate(self._per_unit):
            yield member, hub, (2 * self.loads[member] + 1) * per_unit * scale
            if self.loads[member]:
                yield hub, member, -(2 * self.loads[member] - 1) * per_unit * scale

    def _cancel(self, cycle: list[tuple[int, int]]) -> None:
        hub = len(self._weights)
        inner = [(tail, head) for tail, head in cycle if hub not in (tail, head)]
        amount = 1
        if len(inner) == len(cycle):
            amount = min(self._room_at_cheapest(tail, head) for tail, head in inner)
        for tail, head in inner:
            self._shift(tail, head, amount)


def _path(reached: dict[int, int], end: int) -> Iterator[tuple[int, int]]:
    """Yield the arcs that lead to `end`, the last one first: none takes the units that another one brings."""
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
