"""Primaries: the most level choice there is, and the one with the fewest hand-overs, against all choices there are."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings, strategies as st

from broadsheet.allocator.placement.semi_matching import SemiMatching, UnitClass
from tests.support.flow_oracle import Network

Instance = tuple[list[int], list[int], list[UnitClass]]


@st.composite
def _instances(draw: st.DrawFn, *, size_max: int, classes_max: int, members_max: int) -> Instance:
    members = draw(st.integers(2, members_max))
    weights = draw(st.lists(st.integers(1, 3), min_size=members, max_size=members))
    base = draw(st.lists(st.integers(0, 3), min_size=members, max_size=members))
    classes: list[UnitClass] = []
    for _ in range(draw(st.integers(1, classes_max))):
        choices = tuple(
            sorted(draw(st.sets(st.integers(0, members - 1), min_size=1, max_size=members)))
        )
        home = draw(st.sampled_from((None, *choices)))
        classes.append(UnitClass(choices=choices, home=home, size=draw(st.integers(1, size_max))))
    return weights, base, classes


def _unevenness(weights: list[int], loads: list[int]) -> int:
    """Return the sum of load²/weight, in whole numbers for weights up to 3."""
    return sum(6 * load * load // weight for weight, load in zip(weights, loads, strict=True))


def _changes(choice: SemiMatching, classes: list[UnitClass]) -> int:
    return sum(
        units
        for index, each in enumerate(classes)
        for member, units in choice.units(index)
        if each.home not in (None, member)
    )


@settings(max_examples=300, deadline=None)
@given(_instances(size_max=1, classes_max=5, members_max=4))
def test_level_choice_small_is_the_best_of_all_choices(instance: Instance) -> None:
    """Every choice of every unit is tried: none is more level, and none as level changes less."""
    weights, base, classes = instance
    best: tuple[int, int] | None = None
    for picked in product(*(each.choices for each in classes)):
        loads = list(base)
        for member in picked:
            loads[member] += 1
        changes = sum(
            each.home not in (None, member) for each, member in zip(classes, picked, strict=True)
        )
        cost = (_unevenness(weights, loads), changes)
        best = cost if best is None else min(best, cost)

    choice = SemiMatching(weights, base, classes)
    choice.solve()

    assert (_unevenness(weights, choice.loads), _changes(choice, classes)) == best
    assert choice.is_optimal()


@settings(max_examples=60, deadline=None)
@given(_instances(size_max=12, classes_max=12, members_max=6))
def test_level_choice_merged_units_cost_what_a_minimum_cost_flow_costs(instance: Instance) -> None:
    """Classes of many units, against a flow network with one arc for each further unit on a member."""
    weights, base, classes = instance

    choice = SemiMatching(weights, base, classes)
    choice.solve()

    placed = [sum(units for _, units in choice.units(i)) for i in range(len(classes))]
    assert placed == [each.size for each in classes]
    assert all(
        member in each.choices for i, each in enumerate(classes) for member, _ in choice.units(i)
    )
    assert (_unevenness(weights, choice.loads), _changes(choice, classes)) == _flow_cost(instance)


def _flow_cost(instance: Instance) -> tuple[int, int]:
    weights, base, classes = instance
    total = sum(each.size for each in classes)
    network = Network()
    source, sink = network.add_node(), network.add_node()
    members = [network.add_node() for _ in weights]
    load_arcs = []
    for node, weight, load in zip(members, weights, base, strict=True):
        arcs = [
            network.add_arc(
                node, sink, capacity=1, cost=(total + 1) * 6 * (2 * (load + unit) + 1) // weight
            )
            for unit in range(total)
        ]
        load_arcs.append(arcs)
    away = []
    for each in classes:
        node = network.add_node()
        network.add_arc(source, node, capacity=each.size)
        for member in each.choices:
            leaves = each.home not in (None, member)
            arc = network.add_arc(node, members[member], capacity=each.size, cost=int(leaves))
            if leaves:
                away.append(arc)
    network.solve(source, sink)
    loads = [
        load + sum(map(network.flow, arcs)) for load, arcs in zip(base, load_arcs, strict=True)
    ]
    return _unevenness(weights, loads), sum(map(network.flow, away))
