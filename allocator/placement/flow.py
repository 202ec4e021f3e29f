"""Placement as a minimum-cost flow: a network simplex, fed by numpy, for a million items as for one.

    columns ──► roles: what is loose ──► classes ──► arcs ──► simplex ──► flow and potentials
                  ▲                                                           │
                  └──── open items with paths of negative cost ◄──────── price every path of every item
                                                                              │ none
                        explicit arcs for items stuck on a member twice ◄── hubs' units become members

`hub_network` draws the network, `objective_costs` gives its costs. Only the replicas that may have to move are in it.
Then all items are priced with its potentials: if no path of any item has a negative reduced cost, the flow is cheapest
over the *full* network, which is the certificate; if some have, their items are opened and the network is solved again.
So the small network only saves time.

Source: Ahuja, Magnanti, Orlin, Network Flows (1993), §9.3; Desrosiers and Lübbecke, A Primer in Column Generation
(2005), for pricing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

import numpy as np

from broadsheet.allocator.model import ItemId
from broadsheet.allocator.placement.arcs import FlowUnsolvedError, solve
from broadsheet.allocator.placement.columns import Ints, PlacementColumns, columns_of
from broadsheet.allocator.placement.hub_network import HubNetwork, classes_of
from broadsheet.allocator.placement.objective_costs import Weights, scales_for
from broadsheet.allocator.placement.problem import Desired, Problem
from broadsheet.allocator.placement.residual import FAR, Placed, Potentials, Residual
from broadsheet.allocator.placement.roles import first_roles
from broadsheet.allocator.placement.unit_assignment import pair_hub_units

STUCK_ALONE_MAX = 64
"""Beyond this many stuck items, whole classes get arcs to members, because more rounds cost more than arcs."""

OPENED_PER_NODE = 64
"""Items opened for each outer node at first, those with the cheapest paths; four times as many each time."""


def underpriced(residual: Residual, at: Potentials, turn: int) -> Ints:
    """Return rows of items with a path of negative cost, to be opened; none if the flow is the cheapest.

    Args:
        residual: The residual network of the flow.
        at: Potentials of the solved network; lowered here for members without loose replicas, because their replicas
            could move too.
        turn: The number of times that the network was solved, from 1.

    Raises:
        FlowUnsolvedError: the flow is not the cheapest even without opening anything.
    """
    if not residual.relax_outer(at):
        raise FlowUnsolvedError(
            "the flow has a negative cycle through members: it is not the cheapest"
        )
    inner = residual.inner(at)
    columns = residual.columns
    per_node = OPENED_PER_NODE * 4 ** (turn - 1)
    opened = [_cheapest(residual.into_source(inner) - at.source, per_node)]
    hubs = residual.into_hubs(inner) - at.hub
    opened += [_cheapest(hubs[:, zone], per_node) for zone in range(columns.zones)]
    member = np.append(at.member, FAR)
    for column in range(columns.current.shape[1]):
        held = columns.current[:, column]
        gain = residual.into_members(inner, column) - member[held]
        gain[held == columns.none] = 0
        rows = np.flatnonzero(gain < 0)
        order = rows[np.lexsort((gain[rows], held[rows]))]
        begin = np.searchsorted(held[order], held[order], side="left")
        opened.append(order[np.arange(len(order)) - begin < per_node])
    return np.unique(np.concatenate(opened))


def _cheapest(gain: Ints, most: int) -> Ints:
    rows = np.flatnonzero(gain < 0)
    if len(rows) <= most:
        return rows
    return rows[np.argpartition(gain[rows], most)[:most]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A placement, and the data to certify it."""

    desired: Desired
    explicit: frozenset[ItemId]
    """Items with arcs to members, because hubs alone would have put them twice on one member."""
    solves: int
    """The number of networks that were solved."""


def solution_of(problem: Problem) -> Solution:
    """Return the cheapest placement with the data to certify it.

    Raises:
        FlowUnsolvedError: the solver gave no optimum, which is a defect.
    """
    columns = columns_of(problem)
    if not len(columns.items):
        return Solution(desired=_nothing(problem), explicit=frozenset(), solves=0)
    scales = scales_for(
        members=columns.none,
        zones=columns.zones,
        objective=problem.objective,
        drain_cost_max=columns.drain_cost_max,
    )
    weights = Weights.of(scales)
    roles = first_roles(columns)
    explicit = np.zeros(0, dtype=np.int64)
    solves = 0
    while True:
        classes = classes_of(columns, roles, explicit)
        network = HubNetwork(columns, roles, classes, scales)
        solved = solve(network.arcs, scales)
        solves += 1
        placed = network.placed(solved.flow, explicit)
        residual = Residual(columns, placed, weights)
        rows = underpriced(residual, network.outer(solved.potential), solves)
        if len(rows):
            # All of them are open already, so another round would find the same.
            if (roles.loose[rows] == columns.held[rows]).all() and roles.active[rows].all():
                raise FlowUnsolvedError("items in the network itself have paths of negative cost")
            roles.open(columns, rows)
            continue
        units, members, stuck = _pair_hubs(columns, placed)
        if not len(stuck):
            break
        if len(stuck) > STUCK_ALONE_MAX:
            # Items of the same class would be stuck next.
            stuck = classes.alike(stuck)
        explicit = np.union1d(explicit, stuck)
        roles.open(columns, explicit)
    items = problem.items
    return Solution(
        desired=_desired(columns, placed, units, members),
        explicit=frozenset(items[n].item_id for n in columns.items[explicit].tolist()),
        solves=solves,
    )


def _nothing(problem: Problem) -> Desired:
    return {item.item_id: () for item in problem.items}


def _pair_hubs(columns: PlacementColumns, placed: Placed) -> tuple[list[int], list[int], Ints]:
    """Return rows and members of the new replicas that came through hubs, and the stuck rows."""
    units: list[int] = []
    members: list[int] = []
    stuck: set[int] = set()
    for zone in range(columns.zones):
        rows = np.flatnonzero(placed.new[:, zone])
        if not len(rows):
            continue
        taken = dict(zip(rows.tolist(), columns.current[rows].tolist(), strict=True))
        items = np.repeat(rows, placed.new[rows, zone]).tolist()
        mine = np.flatnonzero((columns.zone_of[:-1] == zone) & (placed.hub_load > 0)).tolist()
        got, again = pair_hub_units(
            items,
            {m: int(placed.hub_load[m]) for m in mine},
            members=columns.none,
            taken=taken.__getitem__,
        )
        units += items
        members += got
        stuck.update(again)
    return units, members, np.array(sorted(stuck), dtype=np.int64)


def _desired(
    columns: PlacementColumns, placed: Placed, units: list[int], members: list[int]
) -> Desired:
    problem = columns.problem
    count = columns.held.sum(axis=1)
    whole = (placed.keep.sum(axis=1) == count) & (placed.new.sum(axis=1) == 0)
    whole[placed.explicit] = False
    lengths = np.fromiter(
        (len(problem.items[n].current) for n in columns.items.tolist()), np.int64, len(count)
    )
    whole &= lengths == count
    desired = {item.item_id: item.current for item in problem.items}
    if len(columns.items) < len(problem.items):
        unwanted = np.ones(len(problem.items), dtype=np.bool_)
        unwanted[columns.items] = False
        desired.update((item.item_id, ()) for item in compress(problem.items, unwanted.tolist()))
    changed = np.flatnonzero(~whole)
    groups = {
        row: [m for m, kept in zip(current, keep, strict=True) if kept]
        for row, current, keep in zip(
            changed.tolist(),
            columns.current[changed].tolist(),
            placed.keep[changed].tolist(),
            strict=True,
        )
    }
    for row, member in zip(units, members, strict=True):
        groups[row].append(member)
    for index, row in enumerate(placed.explicit.tolist()):
        groups[row] += np.flatnonzero(placed.direct[index]).tolist()
    ids = [member.member_id for member in columns.members]
    for row, group in groups.items():
        item = problem.items[int(columns.items[row])]
        desired[item.item_id] = tuple(ids[m] for m in sorted(group))
    return desired
