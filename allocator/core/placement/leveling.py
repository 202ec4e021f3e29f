"""Level loads without changing the cost of a flow.

Among all cheapest flows the solver returns any one; this picks a level one. A unit may go from one member to another
along residual arcs of reduced cost zero: the total stays the minimum, and so does every bound. Each shift lowers the
sum of load²/weight, so the loads end where no free shift makes them more even, in proportion to the members' weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass

from allocator.core.placement.min_cost_flow import Network

SHIFTS_PER_PAIR_MAX = 8
"""Shifts allowed for each pair of members: far above what is seen (one or two); levelling is a nicety and must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Where a member's load leaves the network."""

    node: int
    arcs: tuple[int, ...]
    """Arcs from the node to the sink, cheapest first."""
    weight: int
    """The member's limit: loads are levelled in proportion to it."""


def level_loads(network: Network, outlets: Sequence[Outlet], *, fixed: Set[int]) -> None:
    """Shift flow between outlets, at no cost, until none can be made more level.

    Args:
        network: Solved.
        outlets: The members' ways out.
        fixed: Nodes that no shift may pass: source and sink.
    """
    for _ in range(SHIFTS_PER_PAIR_MAX * len(outlets) ** 2):
        by_load = sorted(outlets, key=lambda outlet: _load(network, outlet) / outlet.weight)
        if not any(_fill(network, outlet, by_load, fixed) for outlet in by_load):
            return


def _load(network: Network, outlet: Outlet) -> int:
    return sum(network.flow(arc) for arc in outlet.arcs)


def _fill(network: Network, low: Outlet, by_load: Sequence[Outlet], fixed: Set[int]) -> bool:
    """Shift load to `low` from the most loaded outlet that can give some; False if none can."""
    entry = next((arc for arc in low.arcs if _free(network, arc)), None)
    if entry is None:
        return False
    donors = [outlet for outlet in reversed(by_load) if _gain(network, outlet, low) > 0]
    if not donors:
        return False
    towards = _paths_to(network, low.node, fixed)
    for high in donors:
        exit_arc = next((arc for arc in reversed(high.arcs) if _free(network, arc ^ 1)), None)
        if exit_arc is None or high.node not in towards:
            continue
        path = _path(network, towards, high.node, low.node)
        room = min(network.residuals[arc] for arc in (exit_arc ^ 1, *path, entry))
        amount = min(room, _gain(network, high, low))
        for arc in (exit_arc ^ 1, *path, entry):
            network.push(arc, amount)
        return True
    return False


def _gain(network: Network, high: Outlet, low: Outlet) -> int:
    """Return how many units to shift for the least load²/weight; 0 if even one would not lower it."""
    high_load, low_load = _load(network, high), _load(network, low)
    total_weight = high.weight + low.weight
    slope = high_load * low.weight - low_load * high.weight
    # The real minimum lies at slope / total_weight; the nearest integer below or above it is the integral one.
    best = (2 * slope + total_weight) // (2 * total_weight)
    improves = best * (2 * slope - best * total_weight) > 0
    return best if best > 0 and improves else 0


def _free(network: Network, arc: int) -> bool:
    return network.residuals[arc] > 0 and network.reduced_cost(arc) == 0


def _paths_to(network: Network, target: int, fixed: Set[int]) -> dict[int, int]:
    """Return, for each node with a free path to `target`, the first arc of it."""
    first_arcs: dict[int, int] = {}
    queue = deque([target])
    while queue:
        head = queue.popleft()
        for back in network.arcs_out[head]:
            tail = network.heads[back]
            if tail == target or tail in first_arcs or tail in fixed:
                continue
            if _free(network, back ^ 1):
                first_arcs[tail] = back ^ 1
                queue.append(tail)
    return first_arcs


def _path(network: Network, first_arcs: dict[int, int], start: int, end: int) -> list[int]:
    path: list[int] = []
    node = start
    while node != end:
        path.append(first_arcs[node])
        node = network.heads[path[-1]]
    return path
