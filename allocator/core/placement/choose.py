"""Which solver to use: the one for large clusters where its extra is installed, else the one that needs nothing."""

from __future__ import annotations

from importlib.util import find_spec

from allocator.core.placement.flow import FlowSolver
from allocator.core.placement.problem import Desired, Problem, Solver


def best_solver() -> Solver:
    """Return the quickest solver that can be used here. All find the same optimum."""
    if find_spec("ortools") is None or find_spec("numpy") is None:
        return FlowSolver()
    return ArraySolver()


class ArraySolver:
    """Solves with numpy and OR-tools, imported at the first solve: that is off the event loop, and imports are slow."""

    def solve(self, problem: Problem) -> Desired:
        """Return the cheapest placement."""
        from allocator.core.placement.ortools_flow import solution_of

        return solution_of(problem).desired
