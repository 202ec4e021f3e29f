"""What one more replica on a member costs, by how many it holds: the arcs from a member to the sink.

    load      0 ......... floor ......... ceiling .......... limit
    overload      0               1                  2               outside the window it costs most
    level     0 1 2 3 4 5 ... by eighths of the fair share ... 64    the lightest objective: who gets the odd one

Both rise with the load, so a cheapest flow fills the pieces in order and no arc needs a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from allocator.core.placement.objective_costs import LEVEL_MAX, OVERLOAD_MAX
from allocator.core.placement.shares import Window

LEVELS_PER_SHARE = 8
"""Steps in which the level cost rises until a member holds its fair share."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of loads at one cost a unit."""

    upto: int
    """The load at which the next piece begins."""
    overload: int
    level: int


def outlet(window: Window, limit: int) -> Sequence[Piece]:
    """Return a member's pieces, from load 0 to its limit."""
    floor = window.floor
    steps = _level_steps(window.share, limit)
    bounds = sorted({min(floor, limit), min(window.ceiling, limit), limit, *steps} - {0})
    pieces: list[Piece] = []
    begin = 0
    for upto in bounds:
        overload = OVERLOAD_MAX if begin >= window.ceiling else int(begin >= floor)
        level = sum(step <= begin for step in steps)
        pieces.append(Piece(upto, overload, min(LEVEL_MAX, level)))
        begin = upto
    return pieces


def _level_steps(share: Fraction, limit: int) -> list[int]:
    """Return the loads at which the level cost rises by one."""
    step = max(share, Fraction(1)) / LEVELS_PER_SHARE
    loads = ((step * number).__ceil__() for number in range(1, LEVEL_MAX + 1))
    return [load for load in loads if load < limit]
