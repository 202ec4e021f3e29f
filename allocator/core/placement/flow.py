"""Placement as a minimum-cost flow, in plain Python.

Items that want the same and stand on the same members form one *class*: to the network they are one node of `n` times
the capacity. What a class keeps has an arc to its member; what is new goes through its zone's *hub*, which all classes
share: so there are some arcs for each class and zone, not for each class and member.

                       first two zones: free                    n, first of the
             ┌──────────► spread ──┬─ item in its zone
    n each   │   others: `zone`              ▼
    source ──► class                    (class, zone) ── n, kept: free ─────────► member ── see `outlets` ──► sink
    k-th: k × `cover`  │                      ▲  └─ new: `move` ──► hub of zone ──►  ▲
             └──────────────────────────────┘                      members that stay
               `zone` + `spread`: another of the item in this zone

A hub forgets whose units it passes on. Should an item get a member twice, `dealing` swaps within the zone; where nobody
can swap, the class gets arcs to the members themselves, and the network is solved again. A closed member has no arc
from a hub: nothing new can reach it. A zone that is given up has no arc from `spread`.

Source: the network of gazette/core allocator (item → item-zone → member → sink) with costs in place of its order of
discharge; hubs, classes and costs are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from allocator.core.placement.dealing import deal_order, pair_hub_units
from allocator.core.placement.min_cost_flow import Network
from allocator.core.placement.objective_costs import MOVES_OF_A_FAILED_REPLICA, Weights
from allocator.core.placement.outlets import outlet
from allocator.core.placement.problem import (
    ZONES_WANTED,
    Desired,
    Problem,
    ProblemItem,
    kept_zones,
    usable,
)
from allocator.core.placement.shares import Totals, load_windows
from allocator.model import MemberId

Likeness: TypeAlias = "tuple[int, tuple[MemberId, ...], MemberId | None, tuple[MemberId, ...]]"
"""What items of a class have in common: attainable replication, current members, primary, avoided."""


@dataclass(frozen=True, slots=True)
class _Way:
    """An arc out of a (class, zone)."""

    zone: int
    member: int
    """-1: to the hub."""
    arc: int


@dataclass(slots=True)
class _ItemClass:
    """Items alike in everything that costs depend on."""

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
    """Solves placement exactly, in plain Python: no dependency, right for thousands of items."""

    def solve(self, problem: Problem) -> Desired:
        """Return the cheapest placement (see the module); the same problem always gives the same answer."""
        return PlacementFlow.solved(problem).desired


class PlacementFlow:
    """One problem's network: build, solve, read back. Tests check the network's certificate."""

    SOURCE = 0
    SINK = 1

    def __init__(self, problem: Problem, explicit: frozenset[Likeness] = frozenset()) -> None:
        """Build the network.

        Args:
            problem: What to place.
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
        # A member holds an item once: without this bound, hubs would fill a large one with few items.
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
        """Return the solved network of a problem, with explicit arcs where hubs led to no placement."""
        explicit: frozenset[Likeness] = frozenset()
        while True:
            flow = cls(problem, explicit)
            flow.network.solve(cls.SOURCE, cls.SINK)
            stuck = flow.read_back()
            if not stuck:
                return flow
            # Each turn adds a class, so this ends: with explicit arcs alone nothing can be stuck.
            explicit |= stuck

    def read_back(self) -> frozenset[Likeness]:
        """Set `desired` from the flow; return the classes that hubs gave a member twice."""
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
