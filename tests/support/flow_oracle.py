"""Placement as a minimum-cost flow in its plainest form: the oracle that the product's solver must equal.

Each item has arcs of its own to zones and members, so there are no classes, no hubs, no exchange of units and no array;
the price is time. It shares with the product what a placement should cost: `objective_costs`, `shares`.

                       first two zones: free                    1, first of the
             ┌──────────► spread ──┬─ item in its zone
      1 each │   others: `zone`              ▼
    source ──► item                     (item, zone) ── kept: free or `keep`, new: `move` ──► member ── `outlet` ─► sink
    k-th: k × `cover`  │                      ▲
             └──────────────────────────────┘
               `zone` + `spread`: another of the item in this zone

Source: the network of gazette/core's allocator (item, item-zone, member, sink), with costs in place of its order of
discharge.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.objective_costs import (
    MOVES_OF_A_FAILED_REPLICA,
    Weights,
    outlet,
)
from broadsheet.allocator.placement.problem import (
    ZONES_WANTED,
    Desired,
    Problem,
    ProblemItem,
    kept_zones,
    usable,
)
from broadsheet.allocator.placement.shares import Totals, load_windows


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


class PlacementOracle:
    """The network of one problem, solved. Tests check the network's certificate, too."""

    SOURCE = 0
    SINK = 1

    def __init__(self, problem: Problem) -> None:
        self.network = Network()
        self.network.add_node()
        self.network.add_node()
        self._problem = problem
        self._members = {each.member_id: each for each in usable(problem.members)}
        self._zones = sorted({member_id.zone for member_id in self._members})
        self._kept = kept_zones(tuple(self._members.values()))
        self._weights = Weights.for_cluster(
            members=len(self._members),
            zones=len(self._zones),
            objective=problem.objective,
            drain_cost_max=max((each.drain_cost for each in self._members.values()), default=0),
        )
        self._nodes = {member_id: self.network.add_node() for member_id in self._members}
        self._arcs: list[dict[MemberId, int]] = []
        self._add_outlets()
        for item in problem.items:
            self._arcs.append({})
            self._add_item(item)
        self.network.solve(self.SOURCE, self.SINK)

    @property
    def desired(self) -> Desired:
        """The placement that the flow says."""
        return {
            item.item_id: tuple(sorted(m for m, arc in arcs.items() if self.network.flow(arc)))
            for item, arcs in zip(self._problem.items, self._arcs, strict=True)
        }

    def _add_outlets(self) -> None:
        problem = self._problem
        windows = load_windows(problem.members, Totals.of(problem), problem.objective)
        # A member holds an item once, so more than all items never reach it.
        items = sum(item.replication > 0 for item in problem.items)
        for member_id, member in self._members.items():
            begin = 0
            for piece in outlet(windows[member_id], min(member.limit, items), member.drain_cost):
                self.network.add_arc(
                    self._nodes[member_id],
                    self.SINK,
                    capacity=piece.upto - begin,
                    cost=piece.cost(self._weights),
                )
                begin = piece.upto

    def _add_item(self, item: ProblemItem) -> None:
        replication = min(item.replication, len(self._members))
        if replication <= 0:
            return
        network, weights = self.network, self._weights
        node = network.add_node()
        for replica in range(replication):
            network.add_arc(self.SOURCE, node, capacity=1, cost=replica * weights.cover)
        if replication < ZONES_WANTED or len(self._kept) < ZONES_WANTED:
            for zone in self._zones:
                self._add_members(item, node, zone)
            return
        spread = network.add_node()
        network.add_arc(node, spread, capacity=ZONES_WANTED)
        network.add_arc(node, spread, capacity=replication - ZONES_WANTED, cost=weights.zone)
        for zone in self._zones:
            in_zone = network.add_node()
            # A zone that is given up adds nothing to the two zones that an item should span.
            first = int(zone in self._kept)
            network.add_arc(spread, in_zone, capacity=first)
            network.add_arc(
                node, in_zone, capacity=replication - first, cost=weights.zone + weights.spread
            )
            self._add_members(item, in_zone, zone)

    def _add_members(self, item: ProblemItem, tail: int, zone: str) -> None:
        for member_id, member in self._members.items():
            held = member_id in item.current
            # Nothing new reaches a closed member.
            if member_id.zone != zone or (member.closed and not held):
                continue
            arc = self.network.add_arc(
                tail, self._nodes[member_id], capacity=1, cost=self._cost(item, member_id)
            )
            self._arcs[-1][member_id] = arc

    def _cost(self, item: ProblemItem, member_id: MemberId) -> int:
        weights = self._weights
        if member_id not in item.current:
            return weights.move + weights.keep
        cost = 0 if member_id == item.primary else weights.keep
        failed = member_id in item.avoided
        return cost + MOVES_OF_A_FAILED_REPLICA * weights.move * failed
