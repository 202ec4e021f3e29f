"""The decisions of one leader round: its scope, its result, and the time of the next round.

    scope        when                                                          items examined
    EVERYTHING   the plan is out of date, the audit is due, or primaries        every item
                 may be handed over
    OPEN_ITEMS   otherwise, if an item is open                                  open items; waiting ones, too, where
                                                                                items compete for the same moves
    NOTHING      otherwise                                                      nothing

    ending       the next round                              the retry delay
    AT_REST      at the next deadline                        stays
    DONE         at the next deadline                        starts over
    PLAN_KEPT    at the retry or the deadline                grows
    RIGHT_LOST   at the retry or the deadline                grows
    NO_PLAN      at the retry                                grows
    UNANSWERED   at the retry, under a new epoch             grows

Pure: time is a parameter, and `broadsheet.allocator.leader.loop` carries out the decisions.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum

from broadsheet.allocator.leader.decision import Decision
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.placement.plan import PlanRefused

REST_PER_WORK = 1.0
"""Rest after a decision, as a multiple of the time it took: replicas that report one by one must not keep the leader
busy deciding. After a quiet time a change is still acted on at once."""
REST_SECONDS_MAX = 1.0


class Scope(Enum):
    """The part of the key space that a round examines."""

    NOTHING = "nothing"
    OPEN_ITEMS = "open-items"
    EVERYTHING = "everything"


class Ending(Enum):
    """The outcome of a round."""

    AT_REST = "at-rest"
    """There was nothing to examine."""
    DONE = "done"
    """Each step was answered; a refused one has a separate delay."""
    PLAN_KEPT = "plan-kept"
    """The new plan was defective, and the steps followed the one before."""
    RIGHT_LOST = "right-lost"
    """Another member leads by now, as far as etcd tells."""
    NO_PLAN = "no-plan"
    """There was no plan to follow, so nothing was performed."""
    UNANSWERED = "unanswered"
    """Etcd did not answer: a step may still be on its way."""

    @property
    def waits_for_deadline(self) -> bool:
        """True if the next round starts at the next deadline at the latest."""
        return self not in (Ending.NO_PLAN, Ending.UNANSWERED)

    @property
    def retries(self) -> bool:
        """True if the next round starts after the retry delay at the latest."""
        return self not in (Ending.AT_REST, Ending.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """Facts that a leader knows as a round begins."""

    now_monotonic_seconds: float
    audited_monotonic_seconds: float
    """The time of the last round over everything."""
    audit_seconds: float
    """Longest time between two rounds over everything."""
    plan_version: int
    """Grows with every change that asks for a new plan."""
    answered_version: int
    """The version that the plan in force answers."""
    open_items: frozenset[ItemId]
    """Items that changed, or that could not be finished; closed by this round."""
    waiting_items: AbstractSet[ItemId]
    """Items that wait for their own replicas."""
    is_crowded: bool
    """Whether something waits for moves that are in flight."""
    has_move_budget: bool
    """Whether the policy limits the moves at a time."""
    hand_overs_allowed: int
    """How many live primaries may be moved now; need not be known while an item is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The scope of a round."""

    scope: Scope
    items: frozenset[ItemId] = frozenset()
    """The items to examine, if not everything; opened again if no decision is made."""
    hand_overs: int = 0
    """How many live primaries may be moved."""
    sees_all_pending: bool = False
    """Whether every misplaced item is examined."""
    plan_version: int
    """The version that a plan made in this round answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """A leader's memory of a round."""

    open_items: frozenset[ItemId]
    """Items to examine again even if they do not change."""
    waiting_removed: frozenset[ItemId] | None
    """Items that do not wait for their own replicas any more, unless they are in `waiting_added`; None: all."""
    waiting_added: frozenset[ItemId]
    """Items that wait for their own replicas from now on."""
    is_crowded: bool
    audited_monotonic_seconds: float
    rests_until_monotonic_seconds: float
    adopts_plan: bool
    """Whether the decision's plan comes into force."""


def plan_round(facts: RoundFacts) -> RoundPlan:
    """Return the scope of this round."""
    # A hand-over only improves balance, so it waits until nothing else is open.
    hand_overs = 0 if facts.open_items else facts.hand_overs_allowed
    audit_age_seconds = facts.now_monotonic_seconds - facts.audited_monotonic_seconds
    if (
        facts.plan_version != facts.answered_version
        or audit_age_seconds >= facts.audit_seconds
        # The primaries to move follow from the spread of all primaries.
        or hand_overs
    ):
        scope = Scope.EVERYTHING
    elif facts.open_items:
        scope = Scope.OPEN_ITEMS
    else:
        return RoundPlan(scope=Scope.NOTHING, plan_version=facts.plan_version)
    # Moves of other items may take the capacity that an open item needs, so the waiting items must be counted, too.
    sees_all_pending = facts.is_crowded or facts.has_move_budget
    return RoundPlan(
        scope=scope,
        items=facts.open_items | facts.waiting_items if sees_all_pending else facts.open_items,
        hand_overs=hand_overs,
        sees_all_pending=sees_all_pending,
        plan_version=facts.plan_version,
    )


def conclude_round(
    plan: RoundPlan,
    facts: RoundFacts,
    decision: Decision | PlanRefused,
    *,
    decided_monotonic_seconds: float,
) -> RoundResult:
    """Return the memory of a round.

    Args:
        plan: The scope of the round.
        facts: The facts before it.
        decision: The decision, or the reason that there is none.
        decided_monotonic_seconds: The time of the decision.
    """
    started = facts.now_monotonic_seconds
    seconds = decided_monotonic_seconds - started
    rests_until = started + seconds + min(REST_SECONDS_MAX, REST_PER_WORK * seconds)
    if isinstance(decision, PlanRefused):
        # The round learned nothing about the items, so all of them must be examined again.
        return RoundResult(
            open_items=plan.items,
            waiting_removed=frozenset(),
            waiting_added=frozenset(),
            is_crowded=facts.is_crowded,
            audited_monotonic_seconds=facts.audited_monotonic_seconds,
            rests_until_monotonic_seconds=rests_until,
            adopts_plan=False,
        )
    is_whole = plan.scope is Scope.EVERYTHING
    return RoundResult(
        open_items=decision.open,
        waiting_removed=None if is_whole else plan.items,
        waiting_added=decision.waiting,
        is_crowded=decision.is_crowded,
        audited_monotonic_seconds=started if is_whole else facts.audited_monotonic_seconds,
        rests_until_monotonic_seconds=rests_until,
        # A round of some items follows the current plan, and a refused plan leaves the previous one in force.
        adopts_plan=is_whole and decision.refused is None,
    )


def ending_of(decision: Decision | PlanRefused, *, answered: bool, right_lost: bool) -> Ending:
    """Return the outcome of a round.

    Args:
        decision: The decision, or the reason that there is none.
        answered: Whether etcd answered every step.
        right_lost: Whether it refused a step because of the fence.
    """
    if isinstance(decision, PlanRefused):
        return Ending.NO_PLAN
    if not answered:
        return Ending.UNANSWERED
    if right_lost:
        return Ending.RIGHT_LOST
    return Ending.DONE if decision.refused is None else Ending.PLAN_KEPT
