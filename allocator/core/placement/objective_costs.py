"""Costs that make one sum of an ordered list of objectives.

Each weight exceeds the most that all lighter objectives together can come to over every unit of the flow, so no amount
of a lighter one ever buys a heavier one. Integers of any size: nothing overflows, nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

MOVES_OF_A_FAILED_REPLICA = 2
"""Keeping a replica that stays failed costs as much as this many moves: more than moving it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What one unit costs, lightest objective first."""

    spread: int
    """A replica that is not the first of its item in its zone."""
    keep: int
    """A replica that is not the kept primary."""
    move: int
    """A replica on a member that does not hold the item now."""
    overload: int
    """A replica above its member's fair share."""
    exiting: int
    """A new replica on a member that wants to leave."""
    zone: int
    """A replica that adds nothing towards its item's two zones."""
    cover: int
    """Each replica of the item that comes before this one."""

    @classmethod
    def for_units(cls, units: int) -> Weights:
        """Return weights for a flow of at most `units` replicas."""
        weights: list[int] = []
        heaviest = 0
        for most_per_unit in (1, 1, MOVES_OF_A_FAILED_REPLICA, 1, 1, 1):
            weight = heaviest * units + 1
            weights.append(weight)
            heaviest += weight * most_per_unit
        spread, keep, move, overload, exiting, zone = weights
        return cls(
            spread=spread,
            keep=keep,
            move=move,
            overload=overload,
            exiting=exiting,
            zone=zone,
            cover=heaviest * units + 1,
        )
