"""Placement as a minimum-cost flow, in plain Python.

Items that want the same and are on the same members form one *class*: in the network they are one node of `n` times the
capacity. Kept replicas of a class have an arc to their member; new ones go through their zone's *hub*, which all
classes share, so there are a few arcs for each class and zone, not for each class and member.

                       first two zones: free                    n, first of the
             ┌──────────► spread ──┬─ item in its zone
    n each   │   others: `zone`              ▼
    source ──► class                    (class, zone) ── n, kept: free ─────────► member ── `member_arcs` ──► sink
    k-th: k × `cover`  │                      ▲  └─ new: `move` ──► hub of zone ──►  ▲
             └──────────────────────────────┘                      members that stay
               `zone` + `spread`: another of the item in this zone

A hub does not track which item its units belong to. If an item gets a member twice, `unit_assignment` swaps within the
zone; if there is no partner for a swap, the class gets arcs to the members themselves, and the network is solved again.
A closed member has no arc from a hub, so nothing new can reach it. A zone that is given up has no arc from `spread`.

Source: the network of gazette/core allocator (item → item-zone → member → sink) with costs in place of its discharge
order; hubs, classes and costs are ours.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.member_arcs import outlet
from broadsheet.allocator.placement.objective_costs import MOVES_OF_A_FAILED_REPLICA, Weights
from broadsheet.allocator.placement.problem import (
    ZONES_WANTED,
    Desired,
    Problem,
    ProblemItem,
    kept_zones,
    usable,
)
from broadsheet.allocator.placement.shares import Totals, load_windows
from broadsheet.allocator.placement.unit_assignment import deal_order, pair_hub_units

Likeness: TypeAlias = "tuple[int, tuple[MemberId, ...], MemberId | None, tuple[MemberId, ...]]"
"""The properties that items of a class share: attainable replication, current members, primary, avoided."""


class Network:
    """A minimum-cost maximum flow on a small network, in plain Python, with the proof of its optimality.

    Arc `a`'s reverse is `a ^ 1`. Primal-dual: node potentials from Dijkstra's algorithm give the cheapest augmenting
    paths a reduced cost of zero; all of them are saturated at once (Dinic's level graph), then the potentials rise.
    Costs may be integers of any size, so lexicographic objectives are sums of weights that never overflow.

    Invariant after `solve`: every residual arc has a reduced cost of at least zero. Because the flow is maximum, that
    *is* the certificate of minimality, which `reduced_cost` lets a caller check.

    Source: Ahuja, Magnanti, Orlin, Network Flows (1993), §9.8 (primal-dual) and §9.3 (optimality conditions).
    """

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.residuals: list[int] = []
        """Remaining capacity, by arc; for a reverse arc, the flow that may be undone."""
        self.costs: list[int] = []
        self.arcs_out: list[list[int]] = []
        """Arcs by tail, reverse ones included."""
        self.potentials: list[int] = []

    def add_node(self) -> int:
        """Add a node and return it."""
        self.arcs_out.append([])
        self.potentials.append(0)
        return len(self.arcs_out) - 1

    def add_arc(self, tail: int, head: int, *, capacity: int, cost: int = 0) -> int:
        """Add an arc and return it.

        Requires:
            capacity >= 0 and cost >= 0: potentials start at zero.
        """
        assert capacity >= 0, "capacities count from 0"
        assert cost >= 0, "the first potentials of zero need costs from 0"
        arc = len(self.heads)
        self.heads += (head, tail)
        self.residuals += (capacity, 0)
        self.costs += (cost, -cost)
        self.arcs_out[tail].append(arc)
        self.arcs_out[head].append(arc ^ 1)
        return arc

    def flow(self, arc: int) -> int:
        """Return the units on an arc."""
        return self.residuals[arc ^ 1]

    def push(self, arc: int, amount: int) -> None:
        """Move units along an arc."""
        self.residuals[arc] -= amount
        self.residuals[arc ^ 1] += amount

    def reduced_cost(self, arc: int) -> int:
        """Return the cost of a unit over the arc beyond the difference in potentials."""
        tail, head = self.heads[arc ^ 1], self.heads[arc]
        return self.costs[arc] + self.potentials[tail] - self.potentials[head]

    def solve(self, source: int, sink: int) -> None:
        """Send as much as possible from source to sink, as cheaply as possible."""
        while self._raise_potentials(source, sink):
            while levels := self._levels(source, sink):
                self._block(source, sink, levels)

    def _raise_potentials(self, source: int, sink: int) -> bool:
        """Make the cheapest augmenting paths free; False if there is no path left."""
        far: int | None = None
        distances: list[int | None] = [None] * len(self.arcs_out)
        done = bytearray(len(self.arcs_out))
        distances[source] = 0
        heap = [(0, source)]
        while heap:
            distance, tail = heappop(heap)
            if done[tail]:
                continue
            done[tail] = True
            if tail == sink:
                far = distance
                break
            base = distance + self.potentials[tail]
            for arc in self.arcs_out[tail]:
                head = self.heads[arc]
                if not self.residuals[arc] or done[head]:
                    continue
                reached = base + self.costs[arc] - self.potentials[head]
                known = distances[head]
                if known is None or reached < known:
                    distances[head] = reached
                    heappush(heap, (reached, head))
        if far is None:
            return False
        for node, known in enumerate(distances):
            # Nodes beyond the sink rise as far as the sink: that keeps reduced costs from falling below zero.
            self.potentials[node] += far if known is None or known > far else known
        return True

    def _levels(self, source: int, sink: int) -> list[int]:
        """Return each node's distance from the source over free arcs (-1: none); empty if no path reaches the sink."""
        levels = [-1] * len(self.arcs_out)
        levels[source] = 0
        queue = deque([source])
        while queue:
            tail = queue.popleft()
            paid = self.potentials[tail]
            for arc in self.arcs_out[tail]:
                head = self.heads[arc]
                if (
                    levels[head] < 0
                    and self.residuals[arc]
                    and self.costs[arc] + paid == self.potentials[head]
                ):
                    levels[head] = levels[tail] + 1
                    queue.append(head)
        return levels if levels[sink] >= 0 else []

    def _block(self, source: int, sink: int, levels: list[int]) -> None:
        """Saturate every free path on which each arc climbs one level."""
        next_arc = [0] * len(self.arcs_out)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                amount = min(self.residuals[arc] for arc in path)
                for arc in path:
                    self.push(arc, amount)
                path.clear()
                node = source
                continue
            arc_or_none = self._climb(node, levels, next_arc)
            if arc_or_none is not None:
                path.append(arc_or_none)
                node = self.heads[arc_or_none]
            elif path:
                # A dead end: step back, and never enter this node again.
                levels[node] = -1
                node = self.heads[path.pop() ^ 1]
            else:
                return

    def _climb(self, node: int, levels: list[int], next_arc: list[int]) -> int | None:
        arcs = self.arcs_out[node]
        paid = self.potentials[node]
        while next_arc[node] < len(arcs):
            arc = arcs[next_arc[node]]
            head = self.heads[arc]
            if (
                self.residuals[arc]
                and levels[head] == levels[node] + 1
                and self.costs[arc] + paid == self.potentials[head]
            ):
                return arc
            next_arc[node] += 1
        return None


@dataclass(frozen=True, slots=True)
class _Way:
    """An arc out of a (class, zone)."""

    zone: int
    member: int
    """-1: to the hub."""
    arc: int


@dataclass(slots=True)
class _ItemClass:
    """Items that are equal in everything that costs depend on."""

    likeness: Likeness
    indices: list[int] = field(default_factory=list)
    """Of its items in the problem."""
    current: frozenset[int] = frozenset()
    ways: list[_Way] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.indices)

    @property
    def replication(self) -> int:
        return self.likeness[0]


class FlowSolver:
    """Solves placement exactly, in plain Python: without a dependency, suitable for thousands of items."""

    def solve(self, problem: Problem) -> Desired:
        """Return the cheapest placement (see the module); deterministic."""
        return PlacementFlow.solved(problem).desired


class PlacementFlow:
    """The network of one problem: build, solve, read back. Tests check the network's certificate."""

    SOURCE = 0
    SINK = 1

    def __init__(self, problem: Problem, explicit: frozenset[Likeness] = frozenset()) -> None:
        """Build the network.

        Args:
            problem: The placement problem.
            explicit: Classes with arcs to members in place of hubs.
        """
        self.network = Network()
        self.network.add_node()
        self.network.add_node()
        self._problem = problem
        self._explicit = explicit
        self._members = usable(problem.members)
        self._index = {member.member_id: n for n, member in enumerate(self._members)}
        zones = sorted({member.member_id.zone for member in self._members})
        zone_index = {zone: n for n, zone in enumerate(zones)}
        self._zone_of = [zone_index[member.member_id.zone] for member in self._members]
        kept = kept_zones(self._members)
        self._kept_zones = [zone in kept for zone in zones]
        self._staying: list[list[int]] = [[] for _ in zones]
        for n, member in enumerate(self._members):
            if not member.closed:
                self._staying[self._zone_of[n]].append(n)
        self._weights = Weights.for_cluster(
            members=len(self._members),
            zones=len(zones),
            objective=problem.objective,
            drain_cost_max=max((member.drain_cost for member in self._members), default=0),
        )
        # A member holds an item once: without this bound, hubs would put a few items several times on a large member.
        items = sum(item.replication > 0 for item in problem.items)
        self._limits = [min(member.limit, items) for member in self._members]
        self._nodes = self._add_members()
        self._hubs, self._hub_ways = self._add_hubs()
        self._classes = self._make_classes(problem.items)
        for item_class in self._classes:
            self._add_class(item_class)
        self.desired: Desired = {}

    @classmethod
    def solved(cls, problem: Problem) -> PlacementFlow:
        """Return the solved network of a problem, with explicit arcs where hubs gave no valid placement."""
        explicit: frozenset[Likeness] = frozenset()
        while True:
            flow = cls(problem, explicit)
            flow.network.solve(cls.SOURCE, cls.SINK)
            stuck = flow.read_back()
            if not stuck:
                return flow
            # Each round adds a class, so this ends: with explicit arcs alone no item can be stuck.
            explicit |= stuck

    def read_back(self) -> frozenset[Likeness]:
        """Set `desired` from the flow; return the classes that hubs put twice on a member."""
        placed: dict[int, list[int]] = {
            index: [] for each in self._classes for index in each.indices
        }
        hub_units: list[list[int]] = [[] for _ in self._hubs]
        for item_class in self._classes:
            self._deal(item_class, placed, hub_units)
        current = {i: each.current for each in self._classes for i in each.indices}
        stuck: set[int] = set()
        for zone, units in enumerate(hub_units):
            quotas = {m: self.network.flow(arc) for m, arc in self._hub_ways[zone]}
            units.sort()
            members, again = pair_hub_units(
                units,
                quotas,
                members=len(self._members),
                taken=lambda item: current[item].union(placed[item]),
            )
            stuck.update(again)
            for item, member in zip(units, members, strict=True):
                placed[item].append(member)
        ids = [member.member_id for member in self._members]
        self.desired = {
            item.item_id: tuple(ids[m] for m in sorted(placed.get(n, ())))
            for n, item in enumerate(self._problem.items)
        }
        return frozenset(
            each.likeness for each in self._classes if not stuck.isdisjoint(each.indices)
        )

    def _deal(
        self,
        item_class: _ItemClass,
        placed: Mapping[int, list[int]],
        hub_units: Sequence[list[int]],
    ) -> None:
        by_zone: dict[int, list[int]] = {}
        for way in item_class.ways:
            if flow := self.network.flow(way.arc):
                by_zone.setdefault(way.zone, []).extend([way.member] * flow)
        position = 0
        given_up = [zone for zone, kept in enumerate(self._kept_zones) if not kept]
        for zone in deal_order({z: len(units) for z, units in by_zone.items()}, worthless=given_up):
            for member in by_zone[zone]:
                item = item_class.indices[position % item_class.size]
                if member < 0:
                    hub_units[zone].append(item)
                else:
                    placed[item].append(member)
                position += 1

    def _add_members(self) -> list[int]:
        windows = load_windows(
            self._problem.members, Totals.of(self._problem), self._problem.objective
        )
        nodes: list[int] = []
        for member, limit in zip(self._members, self._limits, strict=True):
            node = self.network.add_node()
            begin = 0
            for piece in outlet(windows[member.member_id], limit, member.drain_cost):
                capacity, cost = piece.upto - begin, piece.cost(self._weights)
                self.network.add_arc(node, self.SINK, capacity=capacity, cost=cost)
                begin = piece.upto
            nodes.append(node)
        return nodes

    def _add_hubs(self) -> tuple[list[int], list[list[tuple[int, int]]]]:
        hubs: list[int] = []
        ways: list[list[tuple[int, int]]] = []
        for staying in self._staying:
            hub = self.network.add_node()
            hubs.append(hub)
            ways.append(
                [
                    (
                        m,
                        self.network.add_arc(hub, self._nodes[m], capacity=self._limits[m]),
                    )
                    for m in staying
                ]
            )
        return hubs, ways

    def _make_classes(self, items: Iterable[ProblemItem]) -> list[_ItemClass]:
        classes: dict[Likeness, _ItemClass] = {}
        for index, item in enumerate(items):
            replication = min(item.replication, len(self._members))
            if replication <= 0:
                continue
            likeness = (replication, item.current, item.primary, item.avoided)
            item_class = classes.get(likeness)
            if item_class is None:
                current = frozenset(self._index[m] for m in item.current if m in self._index)
                item_class = classes[likeness] = _ItemClass(likeness, current=current)
            item_class.indices.append(index)
        return list(classes.values())

    def _add_class(self, item_class: _ItemClass) -> None:
        node, size, replication = self.network.add_node(), item_class.size, item_class.replication
        for replica in range(replication):
            self.network.add_arc(
                self.SOURCE, node, capacity=size, cost=replica * self._weights.cover
            )
        zones = range(len(self._staying))
        if replication < ZONES_WANTED or sum(self._kept_zones) < ZONES_WANTED:
            for zone in zones:
                self._add_ways(item_class, node, zone)
            return
        spread = self.network.add_node()
        self.network.add_arc(node, spread, capacity=size * ZONES_WANTED)
        self.network.add_arc(
            node,
            spread,
            capacity=size * (replication - ZONES_WANTED),
            cost=self._weights.zone,
        )
        held = Counter(self._zone_of[m] for m in item_class.current if self._members[m].closed)
        for zone in zones:
            room = min(replication, len(self._staying[zone]) + held[zone])
            if room == 0:
                continue
            zone_node = self.network.add_node()
            free = int(self._kept_zones[zone])
            self.network.add_arc(spread, zone_node, capacity=size * free)
            self.network.add_arc(
                node,
                zone_node,
                capacity=size * (room - free),
                cost=self._weights.zone + self._weights.spread,
            )
            self._add_ways(item_class, zone_node, zone)

    def _add_ways(self, item_class: _ItemClass, tail: int, zone: int) -> None:
        size, weights = item_class.size, self._weights
        _, _, primary, avoided = item_class.likeness
        new = weights.move + weights.keep
        targets: list[tuple[int, int]] = []
        for m in sorted(item_class.current):
            if self._zone_of[m] == zone:
                member_id = self._members[m].member_id
                cost = 0 if member_id == primary else weights.keep
                if member_id in avoided:
                    cost += MOVES_OF_A_FAILED_REPLICA * weights.move
                targets.append((m, cost))
        if item_class.likeness in self._explicit:
            targets += [(m, new) for m in self._staying[zone] if m not in item_class.current]
        else:
            capacity = size * item_class.replication
            arc = self.network.add_arc(tail, self._hubs[zone], capacity=capacity, cost=new)
            item_class.ways.append(_Way(zone, -1, arc))
        for m, cost in targets:
            arc = self.network.add_arc(tail, self._nodes[m], capacity=size, cost=cost)
            item_class.ways.append(_Way(zone, m, arc))
