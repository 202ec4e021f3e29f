"""Marginal cost of a replica on a member, by its load: the arcs from a member to the sink.

    load      0 ......... floor ......... ceiling .......... limit
    overload      0               1                  2               outside the window it costs most
    level     0 1 2 3 4 5 ... by eighths of the fair share ... 64    the lightest objective: who gets the odd one
    drain     the same for each, if the member is drained            a replica there is one too many

The costs rise with the load, so a cheapest flow fills the pieces in order and no arc needs a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from broadsheet.allocator.placement.objective_costs import LEVEL_MAX, OVERLOAD_MAX, Weights
from broadsheet.allocator.placement.shares import Window

LEVELS_PER_SHARE = 8
"""Steps in which the level cost rises until a member holds its fair share."""


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
    """Return a member's arc pieces, from load 0 to its limit.

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
