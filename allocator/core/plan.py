"""The placement in force, and when it is made anew.

A plan is kept while it is carried out: the same demand gets the same answer, without a solve and without second
thoughts.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocator.core.placement.problem import Desired, Solver
from allocator.core.placement.verify import Violation, verify
from allocator.core.state import AllocState, Demand


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement that was verified, and the demand that it answers."""

    demand: Demand
    desired: Desired


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """The solver gave an answer that breaks a rule, or none, which is a defect. Nothing is done with it."""

    violations: tuple[Violation, ...] = ()
    error: Exception | None = None
    """What the solver raised instead of an answer."""


def plan_for(state: AllocState, previous: Plan | None, solver: Solver) -> Plan | PlanRefused:
    """Return `previous` if it answers the snapshot's demand, else a new plan if it passes the verifier."""
    demand = state.demand()
    if previous is not None and previous.demand == demand:
        return previous
    problem = state.problem()
    try:
        desired = solver.solve(problem)
    except Exception as error:
        # Whatever it is: a leader that dies of it hands it on to the next, until no member is left.
        return PlanRefused(error=error)
    if violations := verify(problem, desired):
        return PlanRefused(violations)
    return Plan(demand, desired)
