"""A flow network as arrays, solved by LEMON's network simplex (`pylmcf`) in exact lexicographic order.

The simplex sums costs along paths in 64 bits, unchecked, and one sum of all objectives may exceed them. So
objectives are solved in *stages*, heaviest first. After a stage, an equally good flow never uses arcs with a positive
reduced cost, and always fills those with a negative one: both are fixed, and the next stage chooses among the remaining
flows, which are exactly the equally good ones.

Source: Ahuja, Magnanti, Orlin, Network Flows (1993), §9.4 (complementary slackness), §5.4 (label correction), §11.5
(network simplex); Dezső, Jüttner, Kovács, LEMON (2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pylmcf

from broadsheet.allocator.placement.columns import Bools, Ints
from broadsheet.allocator.placement.objective_costs import Scale

COST_BITS = 60
"""Bits of a stage's greatest cost times the nodes, which no path exceeds; if objectives need more, stages are split.

LEMON starts from artificial arcs of cost 2^62, one to each node, all at one root. So a path in its tree has at most one
of them, and potentials are between -2^60 and 2^62 + 2^60. Reduced costs are below 2^62 + 3 × 2^60 < 2^63: nothing
overflows, and no path is as dear as an artificial arc, so a network that has a flow never keeps one in use."""


class FlowUnsolvedError(Exception):
    """The solver gave no cheapest flow for a network that has one."""


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
        FlowUnsolvedError: The network has no flow that meets the supplies, or its data is invalid.
    """
    return _Staged(arcs, scales).solve()


class _Staged:
    def __init__(self, arcs: Arcs, scales: Sequence[Scale]) -> None:
        self._arcs = arcs
        self._scales = scales
        self._bits = COST_BITS - int(arcs.nodes).bit_length()
        self._units_max = [max(1, int(column.max(initial=1))) for column in arcs.units.T]
        self._order = np.lexsort((arcs.head, arcs.tail))
        """Arcs by tail, then head, as `pylmcf` requires them."""

    def solve(self) -> Solved:
        arcs = self._arcs
        flow = np.zeros(len(arcs.tail), dtype=np.int64)
        active = np.ones(len(arcs.tail), dtype=np.bool_)
        supply = arcs.supply.copy()
        start = np.zeros(arcs.nodes, dtype=np.int64)
        for first, last in (stages := self._stages()):
            weights = self._weights(first, last)
            cost = arcs.units[:, first:last].astype(np.int64) @ weights
            flow[active] = self._run(active, cost, supply)[active]
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
        """Return a cheapest flow, by arc; 0 where an arc is not active."""
        arcs = self._arcs
        if int(supply.sum()) != 0:
            # LEMON would leave the rest of the demand unmet, and not say so.
            raise FlowUnsolvedError(
                f"the supplies of a network sum to 0, not {int(supply.sum())}: this is a defect"
            )
        order = self._order[active[self._order]]
        flow = np.zeros(len(arcs.tail), dtype=np.int64)
        try:
            network = pylmcf.Graph(arcs.nodes, arcs.tail[order], arcs.head[order])
            network.set_edge_capacities(arcs.capacity[order])
            network.set_edge_costs(cost[order])
            network.set_node_supply(supply)
            network.solve()
        except (RuntimeError, ValueError) as error:
            raise FlowUnsolvedError(f"no cheapest flow of {len(order)} arcs: {error}") from error
        flow[order] = network.result()
        return flow


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
