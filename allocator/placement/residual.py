"""The proof of minimality: potentials under which no residual arc has a negative reduced cost.

The network is that of `flow`, with one node for each item in place of classes, over columns. Its *outer* nodes are
source, sink, members and hubs; an item's own nodes lie between them, few and similar, so their distances are computed
for all items at once from those of the outer nodes. The result is a shortest-path problem on the outer nodes.

Source: Ahuja, Magnanti, Orlin, Network Flows (1993), §9.3 (reduced-cost optimality), §5.4 (label correction).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from broadsheet.allocator.placement.columns import Bools, Ints, PlacementColumns
from broadsheet.allocator.placement.objective_costs import MOVES_OF_A_FAILED_REPLICA, Weights
from broadsheet.allocator.placement.problem import ZONES_WANTED

FAR = 2**61
"""No path."""
EXPLICIT_AT_ONCE = 1 << 12
"""Items with arcs to members that are processed together: each takes a row of all members."""


@dataclass(slots=True, eq=False)
class Placed:
    """A placement as a flow: the kept and the new replicas of each item."""

    keep: Bools
    """(n, c): current members that are kept."""
    new: Ints
    """(n, z): new replicas by zone, through hubs."""
    hub_load: Ints
    """(m,): new replicas by member, through hubs."""
    explicit: Ints
    """(e,): rows of items with arcs to members in place of hubs, rising."""
    direct: Bools
    """(e, m): their new replicas."""

    def load(self, columns: PlacementColumns) -> Ints:
        """Return replicas by member, (m,)."""
        kept = np.bincount(columns.current[self.keep], minlength=columns.none)
        load: Ints = kept[: columns.none] + self.hub_load + self.direct.sum(axis=0)
        return load


@dataclass(slots=True, eq=False)
class Potentials:
    """Distances of the outer nodes."""

    member: Ints
    """(m,)"""
    hub: Ints
    """(z,)"""
    source: int = 0
    sink: int = 0

    @classmethod
    def zero(cls, columns: PlacementColumns) -> Potentials:
        """Return the start of a relaxation, valid for any network."""
        return cls(
            member=np.zeros(columns.none, dtype=np.int64),
            hub=np.zeros(columns.zones, dtype=np.int64),
        )


@dataclass(slots=True, eq=False)
class Inner:
    """Distances of the items' own nodes."""

    item: Ints
    """(n,)"""
    spread: Ints
    """(n,)"""
    zone: Ints
    """(n, z); of a zone without room: `FAR`."""


class Residual:
    """The residual network of a placement."""

    def __init__(self, columns: PlacementColumns, placed: Placed, weights: Weights) -> None:
        self.columns = columns
        self.placed = placed
        self.weights = weights
        self.load = placed.load(columns)
        several = int(columns.kept_zones.sum()) >= ZONES_WANTED
        zoned = (columns.replication >= ZONES_WANTED) & several
        self.zone_cost = np.where(zoned, weights.zone, 0)
        self.spread_cost = np.where(zoned, weights.spread, 0)
        self.new_cost = weights.move + weights.keep
        self.keep_cost = np.where(columns.primary, 0, weights.keep) + np.where(
            columns.avoided, MOVES_OF_A_FAILED_REPLICA * weights.move, 0
        )
        staying = np.bincount(columns.zone_of[columns.staying], minlength=columns.zones)
        self.hubs: Bools = staying[: columns.zones] > 0
        self.room = np.minimum(
            columns.replication[:, None], staying[: columns.zones] + columns.closed_held()
        )
        self.count = columns.count_by_zone(placed.keep) + placed.new
        if len(placed.explicit):
            self.count[placed.explicit] += self._by_zone(placed.direct)
        self.replicas = self.count.sum(axis=1)
        self.first = (self.count > 0) & columns.kept_zones
        """(n, z): zones whose first replica counts as one."""
        self.spanned = self.first.sum(axis=1)
        self.unplaced = int(columns.replication.sum() - self.replicas.sum())
        self.unplaced_cost = weights.cover * (int(columns.replication.max(initial=0)) + 1)
        self.rise, self.fall = self._marginal_costs()
        self._hubbed = np.ones(len(columns.items), dtype=np.bool_)
        self._hubbed[placed.explicit] = False
        self.rounds = 0
        """The number of times that distances were lowered."""

    def _by_zone(self, direct: Bools) -> Ints:
        zone = self.columns.zone_of[:-1]
        return np.stack(
            [direct[:, zone == z].sum(axis=1) for z in range(self.columns.zones)], axis=1
        )

    def _marginal_costs(self) -> tuple[Ints, Ints]:
        """Return the costs of one more replica and of the last one on each member, (m,) each."""
        rise = np.full(self.columns.none, FAR, dtype=np.int64)
        fall = np.full(self.columns.none, FAR, dtype=np.int64)
        for member, pieces in enumerate(self.columns.member_arcs):
            begin, load = 0, int(self.load[member])
            for piece in pieces:
                cost = piece.cost(self.weights)
                if begin <= load < piece.upto:
                    rise[member] = cost
                if begin < load <= piece.upto:
                    fall[member] = cost
                begin = piece.upto
        return rise, fall

    def inner(self, at: Potentials) -> Inner:
        """Return the shortest distances of the items' nodes from outer nodes."""
        columns, placed = self.columns, self.placed
        rows = np.arange(len(columns.items))
        member = np.append(at.member, FAR)
        zone = np.full((len(rows), columns.zones + 1), FAR, dtype=np.int64)
        for column in range(columns.current.shape[1]):
            held = columns.current[:, column]
            back = np.where(placed.keep[:, column], member[held] - self.keep_cost[:, column], FAR)
            where = columns.zone_of[held]
            zone[rows, where] = np.minimum(zone[rows, where], back)
        zone = zone[:, :-1]
        np.minimum(zone, np.where(placed.new > 0, at.hub - self.new_cost, FAR), out=zone)
        for some in self._explicit_parts():
            rows_here = placed.explicit[some]
            back = np.where(placed.direct[some], at.member - self.new_cost, FAR)
            for z in range(columns.zones):
                mine = back[:, columns.zone_of[:-1] == z].min(axis=1, initial=FAR)
                zone[rows_here, z] = np.minimum(zone[rows_here, z], mine)
        return self._inner_from(zone, at.source)

    def _inner_from(self, zone: Ints, source_at: int) -> Inner:
        """Return distances of the items' nodes, given those of their zones' entries from members and hubs."""
        further = self.zone_cost + self.spread_cost
        up_spread = np.where(self.first, zone, FAR).min(axis=1, initial=FAR)
        item = np.where(self.count > self.first, zone, FAR).min(axis=1, initial=FAR) - further
        wanting = self.replicas < self.columns.replication
        source = source_at + self.weights.cover * self.replicas
        np.minimum(item, np.where(wanting, source, FAR), out=item)
        np.minimum(
            item,
            np.where(
                self.spanned > 0,
                up_spread - np.where(self.spanned > ZONES_WANTED, self.zone_cost, 0),
                FAR,
            ),
            out=item,
        )
        down = item + np.where(self.spanned >= ZONES_WANTED, self.zone_cost, 0)
        spread = np.minimum(up_spread, np.where(self.spanned < self.columns.replication, down, FAR))
        kept = self.columns.kept_zones
        first = (self.count == 0) & (self.room > 0) & kept
        np.minimum(zone, np.where(first, spread[:, None], FAR), out=zone)
        more = np.maximum(self.count, kept) < self.room
        np.minimum(zone, np.where(more, (item + further)[:, None], FAR), out=zone)
        return Inner(item=item, spread=spread, zone=zone)

    def into_hubs(self, inner: Inner) -> Ints:
        """Return the distance of each item's path into each hub, (n, z)."""
        ways = inner.zone + self.new_cost
        ways[:, ~self.hubs] = FAR
        ways[~self._hubbed] = FAR
        return ways

    def into_members(self, inner: Inner, column: int) -> Ints:
        """Return the distance of each item's path back to its current member in a column, (n,)."""
        held = self.columns.current[:, column]
        zone = np.append(inner.zone, np.full((len(held), 1), FAR), axis=1)
        way = zone[np.arange(len(held)), self.columns.zone_of[held]] + self.keep_cost[:, column]
        free = ~self.placed.keep[:, column] & (held < self.columns.none)
        return np.where(free, way, FAR)

    def into_source(self, inner: Inner) -> Ints:
        """Return the distance of each item's path back to the source, (n,)."""
        way = inner.item - self.weights.cover * (self.replicas - 1)
        return np.where(self.replicas > 0, way, FAR)

    def explicit_ways(self, inner: Inner) -> Iterator[tuple[slice, Ints, Bools]]:
        """Yield parts of the explicit items: their rows, the distances of their paths to members, and which paths
        exist.
        """
        columns, placed = self.columns, self.placed
        for some in self._explicit_parts():
            rows = placed.explicit[some]
            exists = np.tile(columns.staying, (len(rows), 1))
            exists[np.arange(len(rows))[:, None], columns.current[rows]] = False
            yield some, inner.zone[rows][:, columns.zone_of[:-1]] + self.new_cost, exists[:, :-1]

    def _explicit_parts(self) -> Iterator[slice]:
        for begin in range(0, len(self.placed.explicit), EXPLICIT_AT_ONCE):
            yield slice(begin, begin + EXPLICIT_AT_ONCE)

    def relax_outer(self, at: Potentials) -> bool:
        """Lower distances along arcs between outer nodes until none is lower; False if there is a negative cycle."""
        zone = self.columns.zone_of[:-1]
        staying = self.columns.staying[:-1]
        passing = self.placed.hub_load > 0
        # A shortest path passes each outer node once, and each round extends it by at least one node.
        for _ in range(self.columns.none + self.columns.zones + 2):
            self.rounds += 1
            before = (at.source, at.sink, int(at.member.sum()), int(at.hub.sum()))
            np.minimum(at.member, np.where(staying, at.hub[zone], FAR), out=at.member)
            np.minimum.at(at.hub, zone[passing], at.member[passing])
            can_rise = self.rise < FAR
            if can_rise.any():
                at.sink = min(at.sink, int((at.member + self.rise)[can_rise].min()))
            at.sink = min(at.sink, at.source + self.unplaced_cost)
            if self.unplaced:
                at.source = min(at.source, at.sink - self.unplaced_cost)
            loaded = self.fall < FAR
            at.member[loaded] = np.minimum(at.member, at.sink - self.fall)[loaded]
            if before == (at.source, at.sink, int(at.member.sum()), int(at.hub.sum())):
                return True
            if min(at.source, at.sink, int(at.member.min(initial=0))) < -FAR:
                # No path costs so little; further rounds would overflow the integers.
                return False
        return False

    def relax_items(self, at: Potentials) -> bool:
        """Lower outer distances along paths through items, once; False if none became lower."""
        inner = self.inner(at)
        hub = np.minimum(at.hub, self.into_hubs(inner).min(axis=0, initial=FAR))
        member = np.append(at.member, FAR)
        for column in range(self.columns.current.shape[1]):
            np.minimum.at(member, self.columns.current[:, column], self.into_members(inner, column))
        member = member[:-1]
        for some, ways, exists in self.explicit_ways(inner):
            free = np.where(exists & ~self.placed.direct[some], ways, FAR)
            np.minimum(member, free.min(axis=0), out=member)
        source = min(at.source, int(self.into_source(inner).min(initial=FAR)))
        lower = source < at.source or bool((hub < at.hub).any()) or bool((member < at.member).any())
        at.hub, at.member, at.source = hub, member, source
        return lower

    def item_costs(self) -> Ints:
        """Return the cost of a unit between outer nodes through the cheapest item, (m + z + 1,) squared.

        Members come first, then hubs, then the source. Items with arcs to members are left out.
        """
        columns, placed = self.columns, self.placed
        first_hub, source = columns.none, columns.none + columns.zones
        costs = np.full((source + 1, source + 1), FAR, dtype=np.int64)
        rows = np.arange(len(columns.items))
        for column in range(columns.current.shape[1]):
            held = columns.current[:, column]
            mine = np.flatnonzero(placed.keep[:, column])
            zone = np.full((len(rows), columns.zones), FAR, dtype=np.int64)
            zone[mine, columns.zone_of[held[mine]]] = -self.keep_cost[mine, column]
            self._add_costs(costs, held[mine], mine, self._inner_from(zone, FAR))
        for z in range(columns.zones):
            mine = np.flatnonzero(placed.new[:, z])
            zone = np.full((len(rows), columns.zones), FAR, dtype=np.int64)
            zone[mine, z] = -self.new_cost
            self._add_costs(
                costs, np.full(len(mine), first_hub + z), mine, self._inner_from(zone, FAR)
            )
        zone = np.full((len(rows), columns.zones), FAR, dtype=np.int64)
        self._add_costs(costs, np.full(len(rows), source), rows, self._inner_from(zone, 0))
        return costs

    def _add_costs(
        self, costs: Ints, tails: npt.NDArray[np.integer[Any]], rows: Ints, inner: Inner
    ) -> None:
        columns = self.columns
        if not len(rows):
            return
        hubs = self.into_hubs(inner)[rows]
        for z in range(columns.zones):
            np.minimum.at(costs, (tails, np.full(len(tails), columns.none + z)), hubs[:, z])
        for column in range(columns.current.shape[1]):
            heads, ways = columns.current[rows, column], self.into_members(inner, column)[rows]
            # `FAR` plus or minus some costs is still no path.
            some = ways < FAR // 2
            np.minimum.at(costs, (tails[some], heads[some]), ways[some])
        source = np.full(len(tails), len(costs) - 1)
        np.minimum.at(costs, (tails, source), self.into_source(inner)[rows])
