"""A flow network as arrays, solved by OR-tools in exact lexicographic order.

OR-tools multiplies costs by the number of nodes and works in 64 bits, which one sum of all objectives may exceed. So
objectives are solved in *stages*, heaviest first. After a stage, an equally good flow never uses arcs with a positive
reduced cost, and always fills those with a negative one: both are fixed, and the next stage chooses among the remaining
flows, which are exactly the equally good ones.

Source: Ahuja, Magnanti, Orlin, Network Flows (1993), §9.4 (complementary slackness), §5.4 (label correction).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

from broadsheet.allocator.placement.columns import Bools, Ints
from broadsheet.allocator.placement.objective_costs import Scale

COST_BITS = 60
"""Bits for a cost times the nodes: 63 minus the further bits of potentials; if they need more, stages are split."""


class FlowUnsolvedError(Exception):
    """OR-tools gave no solution to a network that has one."""


@dataclass(frozen=True, slots=True, eq=False)
class Arcs:
    """A network with one source and one sink. Capacities are at least 1."""

    nodes: int
    tail: npt.NDArray[np.int32]
    head: npt.NDArray[np.int32]
    capacity: Ints
    units: npt.NDArray[np.int16]
    """(arcs, objectives): what a unit adds to each objective, heaviest first."""
    supply: Ints
    """(nodes,): the outflow of each node minus its inflow."""


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A cheapest flow, and its potentials under all weighted objectives."""

    flow: Ints
    potential: Ints


def solve(arcs: Arcs, scales: Sequence[Scale]) -> Solved:
    """Return a lexicographically cheapest flow.

    Raises:
        FlowUnsolvedError: OR-tools refuses the network.
    """
    bits = COST_BITS
    while True:
        try:
            return _Staged(arcs, scales, bits).solve()
        except FlowUnsolvedError:
            # OR-tools refuses costs that are too large; more stages have smaller ones.
            bits -= 8
            if bits < COST_BITS // 2:
                raise


class _Staged:
    def __init__(self, arcs: Arcs, scales: Sequence[Scale], bits: int) -> None:
        self._arcs = arcs
        self._scales = scales
        self._bits = bits - int(arcs.nodes).bit_length()
        self._units_max = [max(1, int(column.max(initial=1))) for column in arcs.units.T]

    def solve(self) -> Solved:
        arcs = self._arcs
        flow = np.zeros(len(arcs.tail), dtype=np.int64)
        active = np.ones(len(arcs.tail), dtype=np.bool_)
        supply = arcs.supply.copy()
        start = np.zeros(arcs.nodes, dtype=np.int64)
        for first, last in (stages := self._stages()):
            weights = self._weights(first, last)
            cost = arcs.units[:, first:last].astype(np.int64) @ weights
            flow[active] = self._run(active, cost, supply)
            # The only stage: no further one has to be restricted.
            if last == len(self._scales) and len(stages) == 1:
                break
            lowest = self._scales[last - 1].weight
            at = potentials(arcs, flow, cost, np.zeros(arcs.nodes, dtype=np.int64), active)
            start += at * lowest
            reduced = cost + at[arcs.tail] - at[arcs.head]
            full = active & (reduced < 0)
            np.subtract.at(supply, arcs.tail[full], flow[full])
            np.add.at(supply, arcs.head[full], flow[full])
            active &= reduced == 0
        total = arcs.units.astype(np.int64) @ np.array(
            [scale.weight for scale in self._scales], dtype=np.int64
        )
        return Solved(flow, potentials(arcs, flow, total, start))

    def _stages(self) -> list[tuple[int, int]]:
        """Return ranges of objectives that are solved together."""
        stages: list[tuple[int, int]] = []
        first = 0
        while first < len(self._scales):
            last = len(self._scales)
            while last > first + 1 and self._cost_max(first, last).bit_length() > self._bits:
                last -= 1
            stages.append((first, last))
            first = last
        return stages

    def _cost_max(self, first: int, last: int) -> int:
        weights = self._weights(first, last).tolist()
        return sum(w * n for w, n in zip(weights, self._units_max[first:last], strict=True))

    def _weights(self, first: int, last: int) -> npt.NDArray[np.int64]:
        lighter, weights = 0, []
        for scale in reversed(self._scales[first:last]):
            weights.append(lighter + 1)
            lighter += weights[-1] * scale.cycle_max
        return np.array(weights[::-1], dtype=np.object_ if lighter >= 2**62 else np.int64)

    def _run(self, active: Bools, cost: Ints, supply: Ints) -> Ints:
        arcs, network = self._arcs, SimpleMinCostFlow()
        network.add_arcs_with_capacity_and_unit_cost(
            arcs.tail[active], arcs.head[active], arcs.capacity[active], cost[active]
        )
        network.set_nodes_supplies(np.arange(arcs.nodes, dtype=np.int32), supply)
        status = network.solve()
        if status != network.OPTIMAL:
            raise FlowUnsolvedError(f"OR-tools answers {status.name} to a feasible network")
        answer: Ints = network.flows(np.arange(int(active.sum()), dtype=np.int32))
        return answer


def potentials(
    arcs: Arcs, flow: Ints, cost: Ints, start: Ints, active: Bools | None = None
) -> Ints:
    """Return node distances that no residual arc can lower.

    Args:
        arcs: The network.
        flow: A cheapest flow.
        cost: The cost of a unit, by arc.
        start: The distances to relax from; any values are valid, good ones take less time.
        active: The arcs to use; all if not given.
    """
    on = np.ones(len(flow), dtype=np.bool_) if active is None else active
    forward, back = on & (flow < arcs.capacity), on & (flow > 0)
    tail = np.concatenate([arcs.tail[forward], arcs.head[back]])
    head = np.concatenate([arcs.head[forward], arcs.tail[back]])
    price = np.concatenate([cost[forward], -cost[back]])
    order = np.argsort(head, kind="stable")
    tail, head, price = tail[order], head[order], price[order]
    begins = np.flatnonzero(np.diff(head, prepend=-1))
    heads = head[begins]
    at = start.copy()
    # A shortest path passes each node once, so a cheapest flow needs no more rounds.
    for _ in range(arcs.nodes + 1):
        lower = np.minimum.reduceat(at[tail] + price, begins) if len(tail) else at[heads]
        if not (lower < at[heads]).any():
            return at
        at[heads] = np.minimum(at[heads], lower)
    raise FlowUnsolvedError("the flow has a negative cycle: it is not the cheapest")
