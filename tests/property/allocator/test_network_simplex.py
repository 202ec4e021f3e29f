"""The solver of networks against OR-tools, which is another algorithm (cost scaling) by other authors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings, strategies as st
from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

from broadsheet.allocator.placement.arcs import COST_BITS, Arcs, FlowUnsolvedError, solve
from broadsheet.allocator.placement.columns import Ints
from broadsheet.allocator.placement.objective_costs import Scale

UNITS_MAX = 9
NODES_MAX = 8
CYCLE_MAX = UNITS_MAX * NODES_MAX
"""A simple cycle passes each node once."""
ONE_STAGE_BITS = COST_BITS - NODES_MAX.bit_length()


@st.composite
def networks(draw: st.DrawFn) -> Arcs:
    """Networks with parallel arcs and cycles, from node 0 to the last; some cannot carry what they should."""
    nodes = draw(st.integers(2, NODES_MAX))
    node = st.integers(0, nodes - 1)
    pairs = draw(
        st.lists(st.tuples(node, node).filter(lambda ends: ends[0] != ends[1]), max_size=24)
    )
    wanted = draw(st.integers(0, 9))
    if wanted and draw(st.integers(0, 3)):
        # Most networks have a way for what the others cannot carry, as placements have for what has no room.
        pairs.append((0, nodes - 1))
    count = len(pairs)
    capacity = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    if wanted and pairs and pairs[-1] == (0, nodes - 1):
        capacity[-1] = wanted
    unit = st.integers(0, UNITS_MAX)
    units = draw(st.lists(st.tuples(unit, unit), min_size=count, max_size=count))
    supply = np.zeros(nodes, dtype=np.int64)
    supply[0], supply[-1] = wanted, -wanted
    return Arcs(
        nodes=nodes,
        tail=np.array([tail for tail, _ in pairs], dtype=np.int32),
        head=np.array([head for _, head in pairs], dtype=np.int32),
        capacity=np.array(capacity, dtype=np.int64),
        units=np.array(units, dtype=np.int16).reshape(count, 2),
        supply=supply,
    )


def costs(arcs: Arcs) -> Ints:
    """Both objectives as one cost, exact on these networks."""
    cost: Ints = arcs.units.astype(np.int64) @ np.array([CYCLE_MAX + 1, 1])
    return cost


def oracle_cost(arcs: Arcs) -> int | None:
    """The least cost by OR-tools; None if the network cannot carry its supply."""
    network = SimpleMinCostFlow()
    network.add_arcs_with_capacity_and_unit_cost(arcs.tail, arcs.head, arcs.capacity, costs(arcs))
    network.set_nodes_supplies(np.arange(arcs.nodes, dtype=np.int32), arcs.supply)
    status = network.solve()
    assert status in (network.OPTIMAL, network.INFEASIBLE)
    return int(network.optimal_cost()) if status == network.OPTIMAL else None


def outflow(arcs: Arcs, flow: Ints) -> list[int]:
    """What leaves each node minus what enters it."""
    out = np.zeros(arcs.nodes, dtype=np.int64)
    np.add.at(out, arcs.tail, flow)
    np.subtract.at(out, arcs.head, flow)
    balance: list[int] = out.tolist()
    return balance


@settings(max_examples=150, deadline=None)
@given(networks(), st.sampled_from(["small", "at the bound", "two stages"]))
def test_network_any_costs_same_optimum_as_the_oracle_with_its_proof(
    arcs: Arcs, weights: str
) -> None:
    """Small weights, weights at the bound of a stage and stages one by one: the same least cost, and valid prices.

    At the bound, costs times nodes have 60 bits: a solver that overflows there would give another flow.
    """
    # Any bound of a cycle from the true one on is valid, and makes the heavier weight as large as it is itself.
    bound = {
        "small": CYCLE_MAX,
        "at the bound": 2**ONE_STAGE_BITS // (UNITS_MAX + 1) - UNITS_MAX,
        "two stages": 2**COST_BITS,
    }[weights]
    scales = [
        Scale(objective="first", weight=CYCLE_MAX + 1, cycle_max=1),
        Scale(objective="second", weight=1, cycle_max=bound),
    ]
    expected = oracle_cost(arcs)
    event(f"{weights}, {'infeasible' if expected is None else 'feasible'}")
    if expected is None:
        with pytest.raises(FlowUnsolvedError, match="INFEASIBLE"):
            solve(arcs, scales)
        return

    solved = solve(arcs, scales)

    flow, cost = solved.flow, costs(arcs)
    assert outflow(arcs, flow) == arcs.supply.tolist()
    assert ((flow >= 0) & (flow <= arcs.capacity)).all()
    assert int(cost @ flow) == expected
    reduced = cost + solved.potential[arcs.tail] - solved.potential[arcs.head]
    assert (reduced[flow < arcs.capacity] >= 0).all()
    assert (reduced[flow > 0] <= 0).all()
