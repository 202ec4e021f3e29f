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


def import_best_solver() -> None:
    """Import what the quickest solver's first solve would, some 0.2 s of CPU; not on the event loop.

    For members that may lead later: a leader that takes over from a dead one has no time for it.
    """
    if isinstance(best_solver(), ArraySolver):
        import allocator.core.placement.ortools_flow  # noqa: F401


class ArraySolver:
    """Solves with numpy and OR-tools, imported at the first solve if not before: imports are slow."""

    def solve(self, problem: Problem) -> Desired:
        """Return the cheapest placement."""
        from allocator.core.placement.ortools_flow import solution_of

        return solution_of(problem).desired
