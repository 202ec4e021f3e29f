"""One decision of the leader: from a snapshot and its memory to the next steps. Pure, and made off the loop.

whole snapshot    plan if the demand changed, verify ──► steps of every item, and the plan to store
partial snapshot  the plan in force                  ──► steps of the items that are open
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.stored_plan import StoredPlan, digest, pack, plan_to_store
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.certificate import verify
from broadsheet.allocator.placement.plan import Plan, PlanRefused, plan_for
from broadsheet.allocator.placement.primaries import HandOver, wanted_hand_overs
from broadsheet.allocator.placement.problem import Solver
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.allocator.state.alloc_state import AllocState, Consistency, Snapshot
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, WaitReason
from broadsheet.allocator.transition.converge import Convergence, converge
from broadsheet.allocator.transition.replicas import is_settled
from broadsheet.allocator.transition.schedule import Targets

WAITS_FOR_OTHERS = frozenset(WaitReason) - {
    WaitReason.STANDBY_NOT_CAUGHT_UP,
    WaitReason.ZONE,
    WaitReason.DISABLED,
}
"""Reasons to wait that may end without a change of the item's own keys."""
CROWDED = frozenset({WaitReason.LIMIT, WaitReason.MOVE_BUDGET})
"""Reasons to wait that end when replicas of other items catch up, or go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBasis:
    """Input of a decision."""

    snapshot: Snapshot
    plan: Plan | None
    """The plan in force; None for a new leader, whose snapshot is whole."""
    stored: StoredPlan | None = None
    """A former leader's plan; only for a new leader."""
    ordered: Plan | None = None
    """The plan that an operator ordered: used in place of a new plan if it answers the demand."""
    solver: Solver
    policy: AllocationPolicy
    consistency: Consistency
    keys: Keys
    drains_waiting: frozenset[MemberId] = frozenset()
    """Exiting members that keep their replicas for now."""
    hand_overs_allowed: int = 0
    """How many live primaries may be moved; needs a whole snapshot."""
    sees_all_pending: bool = False
    """Whether a partial snapshot has every misplaced item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Result of a decision: the steps to perform."""

    state: AllocState
    plan: Plan
    convergence: Convergence
    open: frozenset[ItemId]
    """Items of the snapshot to examine again even if they do not change: they have a step, or wait for others."""
    waiting: frozenset[ItemId]
    """Items of the snapshot that wait for their own replicas."""
    packed: bytes | None = None
    """The part of a new plan that the next leader needs."""
    continued: bool = False
    """The plan is one that a former leader stored."""
    refused: PlanRefused | None = None
    """The reason that `plan` is still the previous one, made for another demand."""

    @property
    def is_crowded(self) -> bool:
        """True if a change waits for moves that are in flight."""
        return any(
            each.reason in CROWDED and _is_planned(each, self.plan)
            for each in self.convergence.blocked
        )


def decide(question: DecisionBasis) -> Decision | PlanRefused:
    """Return the next steps; a refusal only if there is no plan at all to follow."""
    state = question.snapshot.state()
    plan, continued, refused = question.plan, False, None
    if state.is_whole:
        previous = plan
        if previous is None and question.stored is not None:
            previous = taken_up(question.stored, state)
        # If the demand has changed since, the operator's plan is outdated, and the leader makes its own.
        if question.ordered is not None and question.ordered.answers(
            state.demand(), state.objective
        ):
            previous = question.ordered
        policy = replace(question.policy, objective=state.objective)
        planned = plan_for(state, previous, question.solver, policy)
        if isinstance(planned, PlanRefused):
            # Each step is safe under any plan, so the last valid one still promotes and replaces lost replicas.
            refused = planned
            plan = previous
        else:
            plan = planned
            continued = previous is plan and plan is not question.ordered
    if plan is None:
        assert refused is not None, "a new leader begins with a whole snapshot"
        return refused
    targets = Targets(
        desired=plan.desired,
        primaries=plan.primaries,
        policy=question.policy.transition,
        drains_waiting=question.drains_waiting,
        hand_overs=_hand_overs(question, state, plan),
        hand_overs_allowed=question.hand_overs_allowed,
        sees_all_pending=state.is_whole or question.sees_all_pending,
    )
    convergence = converge(state, targets, consistency=question.consistency, keys=question.keys)
    is_open, waiting = _left_to_do(state, plan, convergence)
    # A continued plan is the stored one, so it is not stored again.
    is_new = plan is not question.plan and not continued
    return Decision(
        state=state,
        plan=plan,
        convergence=convergence,
        open=is_open,
        waiting=waiting,
        packed=pack(stored_plan_of(state, plan)) if is_new else None,
        continued=continued and question.plan is None,
        refused=refused,
    )


def taken_up(stored: StoredPlan, state: AllocState) -> Plan | None:
    """Return a former leader's plan, if it answers the snapshot's demand and breaks no rule."""
    demand = state.demand()
    if stored.demand != digest(demand):
        return None
    desired = stored.desired(state)
    if verify(state.problem(), desired):
        return None
    primaries = stored.planned_primaries(state)
    return Plan(demand, desired, primaries=primaries, gap=stored.gap, objective=state.objective)


def stored_plan_of(state: AllocState, plan: Plan) -> StoredPlan:
    """Return the part of a plan that the next leader needs."""
    return plan_to_store(state, plan.demand, plan.desired, plan.primaries, gap=plan.gap)


def _hand_overs(question: DecisionBasis, state: AllocState, plan: Plan) -> Sequence[HandOver]:
    if not question.hand_overs_allowed or not state.is_whole:
        return ()
    return wanted_hand_overs(state.problem(), plan.desired, policy=question.policy.primaries)


def _waits_for_others(blocked: Blocked, plan: Plan) -> bool:
    return blocked.reason in WAITS_FOR_OTHERS and _is_planned(blocked, plan)


def _is_planned(blocked: Blocked, plan: Plan) -> bool:
    """Return whether a waiting change is part of the plan.

    A change that is not planned waits for another plan, and a hand-over waits until it is requested again.
    """
    is_wanted = blocked.member_id in plan.desired.get(blocked.item_id, ())
    match blocked.change:
        case BlockedChange.ADD:
            return is_wanted
        case BlockedChange.REMOVE:
            return not is_wanted
        case _:
            return False


def _left_to_do(
    state: AllocState, plan: Plan, convergence: Convergence
) -> tuple[frozenset[ItemId], frozenset[ItemId]]:
    """Return items with something to do or that wait for others, and those that wait for their own replicas only."""
    is_open = {ItemId(step.checkpoint.subject) for step in convergence.steps}
    is_open |= {each.item_id for each in convergence.blocked if _waits_for_others(each, plan)}
    waiting: set[ItemId] = set()
    for item_id in state.items:
        if item_id in is_open or item_id not in plan.desired:
            continue
        if not is_settled(state.assignments.get(item_id, ()), plan.desired[item_id]):
            waiting.add(item_id)
    return frozenset(is_open), frozenset(waiting)
