"""Minimum-cost maximum flow on a small network, in plain Python, with the proof of its optimality.

Primal-dual: node potentials from Dijkstra's algorithm make the cheapest augmenting paths the ones of reduced cost
zero; all of them are saturated at once (Dinic's level graph), then the potentials rise. Costs may be integers of any
size, so lexicographic objectives are sums of weights that never overflow.

Invariant after `solve`: every residual arc has a reduced cost of at least zero. With the flow being maximum, that *is*
the certificate of minimality, and `reduced_cost` lets anyone check it.

Source: Ahuja, Magnanti, Orlin, Network Flows (1993), §9.8 (primal-dual) and §9.3 (optimality conditions).
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush


class Network:
    """Nodes and arcs; arc `a`'s reverse is `a ^ 1`."""

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.residuals: list[int] = []
        """Capacity left, by arc; of a reverse arc: the flow that may be taken back."""
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
        """Move units over an arc."""
        self.residuals[arc] -= amount
        self.residuals[arc ^ 1] += amount

    def reduced_cost(self, arc: int) -> int:
        """Return what a unit over the arc costs beyond what the potentials already pay."""
        tail, head = self.heads[arc ^ 1], self.heads[arc]
        return self.costs[arc] + self.potentials[tail] - self.potentials[head]

    def solve(self, source: int, sink: int) -> None:
        """Send as much as possible from source to sink, as cheaply as possible."""
        while self._raise_potentials(source, sink):
            while levels := self._levels(source, sink):
                self._block(source, sink, levels)

    def _raise_potentials(self, source: int, sink: int) -> bool:
        """Make the cheapest augmenting paths free; False if no path is left."""
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
            self.potentials[node] += far if known is None or known > far else known
        return True

    def _levels(self, source: int, sink: int) -> list[int]:
        """Return arcs from the source to each node over free arcs (-1: none); empty if the sink has no such path."""
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
        """Saturate every free path that climbs one level with each arc."""
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
                # A dead end: step back, and never come here again.
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
