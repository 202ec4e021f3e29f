"""Placement as a minimum-cost flow.

Items that want the same and stand on the same members form one *class*: to the network they are one node of `n` times
the capacity, so 1,000 items on 10 members become some hundred classes.

                       first two zones: free                    n, first of the
             ┌──────────► spread ──┬─ item in its zone
    n each   │   others: `zone`              ▼
    source ──► class                      (class, zone) ── n, kept: free ──► member ── fair share ──► sink
    k-th: k × `cover`  │                      ▲               new: `move`           └─ to limit: `overload` ─►
             └──────────────────────────────┘
               `zone` + `spread`: another of the item in this zone

Why a class can be taken apart again: sort its members by zone and deal the units of its flow round the items like
cards. No member has more units than there are items, so no item gets a member twice; a zone's units are adjacent, so
each item gets its share of the zone rounded down or up. Every bound of the class holds for each of its items.

Source: the network of gazette/core allocator (item → item-zone → member → sink) with costs in place of its order of
discharge; classes and costs are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from allocator.core.model import ItemId, MemberId
from allocator.core.placement.leveling import Outlet, level_loads
from allocator.core.placement.min_cost_flow import Network
from allocator.core.placement.objective_costs import MOVES_OF_A_FAILED_REPLICA, Weights
from allocator.core.placement.problem import (
    ZONES_WANTED,
    Desired,
    Problem,
    ProblemItem,
    ProblemMember,
    attainable_replication,
    fair_shares,
    usable,
)


@dataclass(frozen=True, slots=True)
class _ItemClass:
    """Items alike in everything that costs depend on."""

    replication: int
    current: frozenset[MemberId]
    primary: MemberId | None
    avoided: frozenset[MemberId]
    item_ids: tuple[ItemId, ...]

    @property
    def size(self) -> int:
        return len(self.item_ids)


class FlowSolver:
    """Solves placement exactly, in plain Python: no dependency, right for thousands of items."""

    def solve(self, problem: Problem) -> Desired:
        """Return the cheapest placement (see the module); the same problem always gives the same answer."""
        flow = PlacementFlow(problem)
        flow.solve()
        return flow.placement()


class PlacementFlow:
    """One problem's network: build, solve, read back. Tests check the network's certificate."""

    SOURCE = 0
    SINK = 1

    def __init__(self, problem: Problem) -> None:
        self.network = Network()
        self.network.add_node()
        self.network.add_node()
        self._problem = problem
        self._members = usable(problem.members)
        self._classes = list(_classes(problem.items, len(self._members)))
        self._weights = Weights.for_units(
            sum(each.replication * each.size for each in self._classes)
        )
        self._placing: list[list[tuple[MemberId, int]]] = []
        """By class: the arc that ends in each member, members in id order, hence by zone."""
        self._outlets = self._add_members()
        for item_class in self._classes:
            self._placing.append(self._add_class(item_class))

    def solve(self) -> None:
        """Find the flow, then level loads as far as that costs nothing."""
        self.network.solve(self.SOURCE, self.SINK)
        level_loads(self.network, tuple(self._outlets.values()), fixed={self.SOURCE, self.SINK})

    def placement(self) -> Desired:
        """Read the flow back, item by item."""
        desired: dict[ItemId, tuple[MemberId, ...]] = {
            item.item_id: () for item in self._problem.items
        }
        for item_class, placing in zip(self._classes, self._placing, strict=True):
            units = [member_id for member_id, arc in placing for _ in range(self.network.flow(arc))]
            for index, item_id in enumerate(item_class.item_ids):
                desired[item_id] = tuple(units[index :: item_class.size])
        return desired

    def _add_members(self) -> Mapping[MemberId, Outlet]:
        shares = fair_shares(self._problem)
        outlets: dict[MemberId, Outlet] = {}
        for member in self._members:
            node = self.network.add_node()
            share = shares[member.member_id]
            fair = self.network.add_arc(node, self.SINK, capacity=share)
            over = self.network.add_arc(
                node, self.SINK, capacity=member.limit - share, cost=self._weights.overload
            )
            outlets[member.member_id] = Outlet(node=node, arcs=(fair, over), weight=member.limit)
        return outlets

    def _add_class(self, item_class: _ItemClass) -> list[tuple[MemberId, int]]:
        node, size = self.network.add_node(), item_class.size
        for replica in range(item_class.replication):
            self.network.add_arc(
                self.SOURCE, node, capacity=size, cost=replica * self._weights.cover
            )
        by_zone = [
            (zone, list(group))
            for zone, group in groupby(self._members, lambda m: m.member_id.zone)
        ]
        if item_class.replication < ZONES_WANTED or len(by_zone) < ZONES_WANTED:
            return self._add_placing(item_class, node, self._members)
        spread = self._add_spread(item_class, node)
        placing: list[tuple[MemberId, int]] = []
        for _, members in by_zone:
            zone_node = self.network.add_node()
            self.network.add_arc(spread, zone_node, capacity=size)
            self.network.add_arc(
                node,
                zone_node,
                capacity=size * (item_class.replication - 1),
                cost=self._weights.zone + self._weights.spread,
            )
            placing += self._add_placing(item_class, zone_node, members)
        return placing

    def _add_spread(self, item_class: _ItemClass, node: int) -> int:
        spread = self.network.add_node()
        further = item_class.replication - ZONES_WANTED
        self.network.add_arc(node, spread, capacity=item_class.size * ZONES_WANTED)
        self.network.add_arc(
            node, spread, capacity=item_class.size * further, cost=self._weights.zone
        )
        return spread

    def _add_placing(
        self, item_class: _ItemClass, tail: int, members: Sequence[ProblemMember]
    ) -> list[tuple[MemberId, int]]:
        return [
            (
                member.member_id,
                self.network.add_arc(
                    tail,
                    self._outlets[member.member_id].node,
                    capacity=item_class.size,
                    cost=self._placing_cost(item_class, member),
                ),
            )
            for member in members
        ]

    def _placing_cost(self, item_class: _ItemClass, member: ProblemMember) -> int:
        weights, member_id = self._weights, member.member_id
        if member_id not in item_class.current:
            return weights.move + weights.keep + (weights.exiting if member.exiting else 0)
        cost = 0 if member_id == item_class.primary else weights.keep
        if member_id in item_class.avoided:
            cost += MOVES_OF_A_FAILED_REPLICA * weights.move
        return cost


def _classes(items: Iterable[ProblemItem], usable_members: int) -> Iterator[_ItemClass]:
    ids_by_likeness: dict[
        tuple[int, tuple[MemberId, ...], MemberId | None, tuple[MemberId, ...]], list[ItemId]
    ] = {}
    for item in items:
        replication = attainable_replication(item, usable_members)
        if replication > 0:
            likeness = (replication, item.current, item.primary, item.avoided)
            ids_by_likeness.setdefault(likeness, []).append(item.item_id)
    for (replication, current, primary, avoided), item_ids in ids_by_likeness.items():
        yield _ItemClass(
            replication=replication,
            current=frozenset(current),
            primary=primary,
            avoided=frozenset(avoided),
            item_ids=tuple(item_ids),
        )
