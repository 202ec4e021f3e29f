"""Choice of the solver: the array solver for many items if its extra is installed, else the pure one.

For few items the pure solver is as quick, and saves the import of the array solver: 0.3 s of CPU, most of it with the
interpreter held, and tens of megabytes, in each process that may have to lead.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from broadsheet.allocator.placement.flow import FlowSolver
from broadsheet.allocator.placement.problem import Desired, Problem, Solver

FEW_ITEMS: Final = 64
"""This many items, at random on 20 members, take plain Python 10 to 50 ms; importing the array solver takes 300."""


def best_solver() -> Solver:
    """Return the quickest available solver. All find the same optimum."""
    return SizedSolver() if _has_extra() else FlowSolver()


def import_best_solver() -> None:
    """Import the modules that the quickest solver's first large solve needs; not on the event loop.

    Members that may lead call it early, because a leader that takes over from a dead one has no time for imports.
    """
    if _has_extra():
        import broadsheet.allocator.placement.ortools_solver  # noqa: F401


def _has_extra() -> bool:
    return find_spec("ortools") is not None and find_spec("numpy") is not None


class SizedSolver:
    """Solves few items in plain Python, and many on arrays."""

    def solve(self, problem: Problem) -> Desired:
        """Return the cheapest placement."""
        few = len(problem.items) <= FEW_ITEMS
        solver: Solver = FlowSolver() if few else ArraySolver()
        return solver.solve(problem)


class ArraySolver:
    """Solves with numpy and OR-tools, which are imported at the first solve because the import is slow."""

    def solve(self, problem: Problem) -> Desired:
        """Return the cheapest placement."""
        from broadsheet.allocator.placement.ortools_solver import solution_of

        return solution_of(problem).desired
