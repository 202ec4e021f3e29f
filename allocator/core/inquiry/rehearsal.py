"""Carries a plan out in memory, step by step, as the leader would: to know what would happen, and what would wait.

Each round performs every step of one convergence. Replicas are taken to catch up whenever nothing else can be done;
live primaries are handed over once everything else is done.

Invariants: a round costs as much as there are items that are not where they should be, so that a drain which is held to
a few moves at a time can be rehearsed in a large cluster; only the first look and the last are at everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allocator.core.inquiry.happening import Happening
from allocator.core.inquiry.stage import Stage
from allocator.keys import Keys
from allocator.placement.plan import Plan
from allocator.policy import AllocationPolicy
from allocator.state.alloc_state import AllocState, Consistency
from allocator.transition.capacity import Blocked
from allocator.transition.membership_settling import Settling

ROUNDS_MAX = 100_000
"""What budgets of one move at a time need for tens of thousands of moves; a rehearsal must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What would happen."""

    happenings: tuple[Happening, ...]
    waits: tuple[Blocked, ...]
    """What would have to wait at first."""
    stuck: tuple[Blocked, ...]
    """What would wait still when nothing more happens."""
    final: AllocState


class RehearsalAbandonedError(Exception):
    """Raised when nobody waits for the answer any more."""


def rehearse(
    state: AllocState,
    plan: Plan,
    *,
    consistency: Consistency,
    keys: Keys,
    policy: AllocationPolicy,
    settling: Settling,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Rehearsal:
    """Return what carrying out `plan` from `state` would do.

    Args:
        state: Whole.
        plan: Answers the state's demand.
        consistency: Tells which replicas may be relied upon now.
        keys: The syntax of the root.
        policy: An operator's choices.
        settling: Tells which drains wait.
        is_wanted: Asked before each round whether to go on.

    Raises:
        RehearsalAbandonedError: it is not wanted any more.
    """
    stage = Stage(state, plan, consistency, keys, policy, settling)
    convergence = stage.converged(stage.whole())
    waits = convergence.blocked
    while stage.round < ROUNDS_MAX:
        if not is_wanted():
            raise RehearsalAbandonedError
        if not (stage.perform(convergence.steps) or stage.catch_up() or stage.hand_over()):
            break
        convergence = stage.converged(stage.pending())
    final = stage.whole()
    return Rehearsal(
        happenings=tuple(stage.happenings),
        waits=waits,
        stuck=stage.converged(final).blocked,
        final=final,
    )
