"""The placement in force, and the decision when to make a new one.

A plan stays in force while it is carried out: the same demand gets the same placement, without another solve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.certificate import Violation, verify
from broadsheet.allocator.placement.imbalance import imbalance_gap
from broadsheet.allocator.placement.primaries import plan_primaries
from broadsheet.allocator.placement.problem import Desired, Solver
from broadsheet.allocator.placement.shares import is_weighted
from broadsheet.allocator.policy import AllocationPolicy, Objective
from broadsheet.allocator.state.alloc_state import AllocState, Demand


@dataclass(frozen=True, slots=True)
class Plan:
    """A verified placement, and the demand that it answers."""

    demand: Demand
    desired: Desired
    primaries: Mapping[ItemId, MemberId] = field(default_factory=dict)
    """The member that should be primary of each item, to be elected if there is no primary."""
    gap: float = 0.0
    """How far the most utilised member is above what is proven unavoidable, as a share of that; where loads are
    counts, the placement is proven best and this is 0."""
    objective: Objective | None = None
    """The objective of the placement; None if unknown, which is no reason for another plan."""

    def answers(self, demand: Demand, objective: Objective) -> bool:
        """Return whether the plan is still valid, so that no new one is needed."""
        return self.demand == demand and self.objective in (None, objective)


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """A plan that is not used, because the solver's placement breaks a rule or there is none, which is a defect."""

    violations: tuple[Violation, ...] = ()
    error: Exception | None = None
    """The error that the solver raised, if it gave no placement."""


def plan_for(
    state: AllocState,
    previous: Plan | None,
    solver: Solver,
    policy: AllocationPolicy | None = None,
) -> Plan | PlanRefused:
    """Return `previous` if it answers the snapshot's demand, else a new plan if it passes the verifier.

    Args:
        state: A whole snapshot.
        previous: The plan in force.
        solver: Places replicas.
        policy: An operator's choices; the defaults if not given.
    """
    policy = policy or AllocationPolicy()
    demand = state.demand()
    if previous is not None and previous.answers(demand, policy.objective):
        return previous
    problem = replace(state.problem(), objective=policy.objective)
    try:
        desired = solver.solve(problem)
    except Exception as error:
        # Catch every error: a leader that died of it would pass it on to the next, until no member is left.
        return PlanRefused(error=error)
    if violations := verify(problem, desired):
        return PlanRefused(violations)
    return Plan(
        demand,
        desired,
        primaries=plan_primaries(problem, desired, policy=policy.primaries),
        gap=imbalance_gap(problem, desired) if is_weighted(problem) else 0.0,
        objective=policy.objective,
    )
