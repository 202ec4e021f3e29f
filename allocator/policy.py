"""An operator's choices about placement and transitions. Every option has a safe default.

Durations are seconds; counts of moves are replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

SETTLE_SECONDS = 60.0
"""Longer than a member takes to start or to drain, so that in a rolling replacement the next step comes earlier."""
SETTLE_SECONDS_MAX = 600.0
"""The time of a rollout of about ten members; members that come and go for ever must not postpone balance for ever."""


class Balance(Enum):
    """The evenness that members' loads should have."""

    TWO_SIDED = "two-sided"
    """Every member between its fair share rounded down and rounded up, wherever coverage and zones allow."""
    CEILING = "ceiling"
    """No member above its fair share rounded up, as in Gazette; one that joins late may stay idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The order of objectives in a placement, below coverage and zones, which always come first."""

    balance: Balance = Balance.TWO_SIDED
    moves_before_balance: bool = False
    """Fewest moves first, then balance among the placements with the fewest: for a cluster whose membership is in
    motion. Draining is not balance: replicas that must leave do leave, and go where balance wants them."""
    tolerance_ratio: float = 0.0
    """Hysteresis: while every load is within its fair share times (1 ± this), balance alone moves nothing; once one
    is not, loads are balanced fully. 0 balances always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryPolicy:
    """Conditions for moving a live primary to improve balance. Electing a missing primary is always allowed."""

    hand_over_above_spread: int = 0
    """Hand over primaries when the fullest member has this many more than the emptiest; 0: never."""
    hand_overs_in_flight_max: int = 1
    hand_over_interval_seconds: float = 10.0
    """Least time between two planned hand-overs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionPolicy:
    """Limits on the rate of change. Replacing lost replicas is never held back by these limits."""

    moves_per_member_max: int = 0
    """Replicas being added to one member and not yet consistent, for balance and draining; 0: no limit."""
    moves_max: int = 0
    """The same for the whole cluster; 0: no limit."""
    settle_seconds: float = SETTLE_SECONDS
    """Balance waits until membership has not changed for this long and no member is exiting; 0: it does not wait."""
    settle_seconds_max: float = SETTLE_SECONDS_MAX
    """Balance waits no longer than this after the first of several changes; 0: it waits as long as they continue."""
    drain_patience_seconds: float = 0.0
    """The longest wait of a drain for a member that replaces the leaving one; 0: it starts at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPolicy:
    """The weight of an item. A weight that its owner declares always counts; measuring is off by default."""

    measure: bool = False
    """Use members' load reports for items without a declared weight."""
    cpu_weight: float = 1000.0
    """Load of one CPU kept busy."""
    megabyte_weight: float = 20.0
    """Load of 1,000,000 bytes consumed a second."""
    declared_weight: float = 100.0
    """Load of a declared weight of 1, and of an item that is not measured yet: by default a tenth of a CPU."""
    half_life_seconds: float = 120.0
    """A measurement counts half as much after this time."""
    persist_seconds: float = 600.0
    """A load changes only after the measured one has differed for this long without a break."""
    bucket_ratio: float = 1.5
    """Loads are rounded to powers of this; above 1. Less drift than a step apart changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLogPolicy:
    """Retention of the move log."""

    entries_max: int = 4_096
    """Transactions, each of which has one to some 100 moves; 0: none are noted. A few hundred more may be there between
    two clean-ups."""
    age_seconds_max: float = 30 * 86_400.0
    """Older ones are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPolicy:
    """All policies of an operator."""

    objective: Objective = field(default_factory=Objective)
    primaries: PrimaryPolicy = field(default_factory=PrimaryPolicy)
    transition: TransitionPolicy = field(default_factory=TransitionPolicy)
    loads: LoadPolicy = field(default_factory=LoadPolicy)
    move_log: MoveLogPolicy = field(default_factory=MoveLogPolicy)
