"""Costs of a placement: weights that combine an ordered list of objectives into one sum, and stay small; and what a
replica costs on a member, by the member's load.

A flow is cheapest if its residual network has no cycle of negative cost. That holds in lexicographic order if each
weight exceeds the most that all lighter objectives together can gain on one *simple* cycle. Such a cycle passes each
member, each zone's hub, source and sink at most once, and an item between two of them changes each objective by little:
so a weight grows with the number of members, not of items, and the heaviest fits 64 bits for thousands of members.

Source: Ahuja, Magnanti, Orlin, Network Flows (1993), §9.3 (optimality by residual cycles); the bound is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from broadsheet.allocator.placement.shares import Window
from broadsheet.allocator.policy import Objective

MOVES_OF_A_FAILED_REPLICA = 2
"""Keeping a replica that stays failed costs as much as this many moves: more than moving it."""

OVERLOAD_MAX = 2
"""Cost of a unit above a member's ceiling; one between floor and ceiling costs 1, one below the floor nothing."""

LEVEL_MAX = 64
"""Cost of a unit on the fullest member: see `ArcPiece`."""

LEVELS_PER_SHARE = 8
"""Steps in which the level cost rises until a member holds its fair share."""


WEIGHT_MAX = 2**55
"""Heaviest weight with which 64 bits hold every sum along a path."""

LEFT_OUT_OF_LARGE_CLUSTERS = ("level", "spread", "keep")
"""Objectives that are dropped, in this order, if thousands of members make weights too heavy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Cost of one unit of each objective, lightest first, for a cluster that balances before it saves moves."""

    level: int
    """Cost by the fullness of the member: it decides which member is the first to have one more than others."""
    spread: int
    """A replica that is not the first of its item in its zone."""
    keep: int
    """A replica that is not the kept primary."""
    move: int
    """A replica on a member that does not hold the item now."""
    overload: int
    """A replica outside its member's window."""
    drain: int
    """A replica on a member that is drained; see `ProblemMember.drain_cost`."""
    zone: int
    """A replica that does not add to its item's two zones."""
    cover: int
    """Each replica of the item that comes before this one."""

    @classmethod
    def for_cluster(
        cls, *, members: int, zones: int, objective: Objective, drain_cost_max: int = 0
    ) -> Weights:
        """Return weights for a cluster; see `scales_for`."""
        scales = scales_for(
            members=members, zones=zones, objective=objective, drain_cost_max=drain_cost_max
        )
        return cls.of(scales)

    @classmethod
    def of(cls, scales: Sequence[Scale]) -> Weights:
        """Return the weights for an order of objectives."""
        return cls(**{scale.objective: scale.weight for scale in scales})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An objective and its weight."""

    objective: str
    """The name of its weight."""
    weight: int
    cycle_max: int
    """The most that a simple cycle changes it by. It passes the sink once, so it uses the arcs of two members."""


def scales_for(
    *, members: int, zones: int, objective: Objective, drain_cost_max: int = 0
) -> list[Scale]:
    """Return the objectives with their weights, heaviest first.

    Args:
        members: The number of usable members.
        zones: The number of their zones.
        objective: The operator's order of objectives.
        drain_cost_max: The greatest `ProblemMember.drain_cost`.
    """
    passed = members + zones + 2
    cycles_max = {
        "cover": 0,
        "zone": passed,
        # Members' arcs to the sink have this cost, and a cycle passes at most two of them.
        "drain": drain_cost_max,
        "overload": OVERLOAD_MAX,
        "move": MOVES_OF_A_FAILED_REPLICA * passed,
        "keep": passed,
        "spread": passed,
        "level": LEVEL_MAX,
    }
    order = list(cycles_max)
    if objective.moves_before_balance:
        at = order.index("overload")
        order[at : at + 2] = ["move", "overload"]
    for left_out in range(len(LEFT_OUT_OF_LARGE_CLUSTERS) + 1):
        ignored = LEFT_OUT_OF_LARGE_CLUSTERS[:left_out]
        scales: list[Scale] = []
        lighter = 0
        for name in reversed(order):
            weight = 0 if name in ignored else lighter + 1
            scales.append(Scale(objective=name, weight=weight, cycle_max=cycles_max[name]))
            lighter += weight * cycles_max[name]
        if scales[-1].weight <= WEIGHT_MAX:
            break
    return scales[::-1]


@dataclass(frozen=True, slots=True)
class ArcPiece:
    """A range of loads with one cost per unit."""

    upto: int
    """The load at which the next piece begins."""
    overload: int
    level: int
    drain: int = 0

    def cost(self, weights: Weights) -> int:
        """Return the cost of a unit as one weighted sum."""
        return (
            self.drain * weights.drain
            + self.overload * weights.overload
            + self.level * weights.level
        )


def outlet(window: Window, limit: int, drain_cost: int = 0) -> Sequence[ArcPiece]:
    """Return a member's arc pieces, from load 0 to its limit: the marginal cost of a replica on it, by its load.

        load      0 ......... floor ......... ceiling .......... limit
        overload      0               1                  2               outside the window it costs most
        level     0 1 2 3 4 5 ... by eighths of the fair share ... 64    the lightest objective: who gets the odd one
        drain     the same for each, if the member is drained            a replica there is one too many

    The costs rise with the load, so a cheapest flow fills the pieces in order and no arc needs a lower bound.

    Args:
        window: The range of its fair load.
        limit: The most replicas that it may hold, one of each item.
        drain_cost: The cost of each replica if the member is drained.
    """
    floor, ceiling = min(window.floor, limit), min(window.ceiling, limit)
    levels = _level_steps(window.share, limit)
    pieces: list[ArcPiece] = []
    begin = level = 0
    for upto in sorted({floor, ceiling, limit, *levels} - {0}):
        overload = OVERLOAD_MAX if begin >= ceiling else int(begin >= floor)
        while level < len(levels) and levels[level] <= begin:
            level += 1
        pieces.append(ArcPiece(upto, overload, level, drain_cost))
        begin = upto
    return pieces


def _level_steps(share: Fraction, limit: int) -> list[int]:
    """Return the loads at which the level cost increases by one."""
    share = max(share, Fraction(1))
    unit = share.denominator * LEVELS_PER_SHARE
    loads = (-(-share.numerator * number // unit) for number in range(1, LEVEL_MAX + 1))
    return [load for load in loads if load < limit]
