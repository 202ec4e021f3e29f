"""One decision of the leader: from a snapshot and what it remembers to the next steps. Pure, and made off the loop.

whole snapshot    plan if the demand changed, verify ──► steps of every item, and what to store
partial snapshot  the plan in force                  ──► steps of the items that are open
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from allocator.core.consistency import Consistency
from allocator.core.keys import Keys
from allocator.core.model import ItemId, MemberId
from allocator.core.placement.problem import Solver
from allocator.core.placement.verify import verify
from allocator.core.plan import Plan, PlanRefused, plan_for
from allocator.core.policy import AllocationPolicy
from allocator.core.state import AllocState
from allocator.core.stored_plan import StoredPlan, digest, pack, plan_to_store
from allocator.core.tracker import Snapshot
from allocator.core.transition.converge import Convergence, converge


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a decision is made on."""

    snapshot: Snapshot
    plan: Plan | None
    """In force; None for a new leader, and then the snapshot is whole."""
    stored: StoredPlan | None = None
    """What a former leader left behind; only for a new leader."""
    solver: Solver
    policy: AllocationPolicy
    consistency: Consistency
    keys: Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do."""

    state: AllocState
    plan: Plan
    convergence: Convergence
    unsettled: frozenset[ItemId]
    """Items of the snapshot to look at again even if they do not change."""
    packed: bytes | None = None
    """What the next leader should know of the plan, if it is a new one."""
    continued: bool = False
    """The plan is one that a former leader stored."""
    refused: PlanRefused | None = None
    """Why `plan` is still the one before, made for another demand."""


def decide(question: Question) -> Decision | PlanRefused:
    """Return the next steps; a refusal only if there is no plan at all to go by."""
    state = question.snapshot.state()
    plan, continued, refused = question.plan, False, None
    if state.is_whole:
        previous = plan
        if previous is None and question.stored is not None:
            previous = taken_up(question.stored, state)
        policy = replace(question.policy, objective=state.objective)
        planned = plan_for(state, previous, question.solver, policy)
        if isinstance(planned, PlanRefused):
            # Each step is safe whatever the plan, so the last good one still promotes and replaces what is lost.
            refused = planned
            plan = previous
        else:
            plan = planned
            continued = previous is plan
    if plan is None:
        assert refused is not None, "a new leader begins with a whole snapshot"
        return refused
    convergence = converge(
        state, plan.desired, consistency=question.consistency, keys=question.keys
    )
    is_new = plan is not question.plan and not continued
    return Decision(
        state=state,
        plan=plan,
        convergence=convergence,
        unsettled=frozenset(_unsettled(state, plan, convergence)),
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
    return Plan(demand, desired, primaries=primaries, objective=state.objective)


def stored_plan_of(state: AllocState, plan: Plan) -> StoredPlan:
    """Return what the next leader should know of a plan."""
    return plan_to_store(state, plan.demand, plan.desired, plan.primaries)


def _unsettled(state: AllocState, plan: Plan, convergence: Convergence) -> set[ItemId]:
    """Return items that have a step, or are not where they should be."""
    found = {ItemId(step.checkpoint.subject) for step in convergence.steps}
    for item_id in state.items:
        if item_id in found or item_id not in plan.desired:
            continue
        group = state.assignments.get(item_id, ())
        wanted: set[MemberId] = set(plan.desired[item_id])
        if len(group) != len(wanted) or {a.member_id for a in group} != wanted:
            found.add(item_id)
    return found
