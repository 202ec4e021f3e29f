"""The solver of placements, whose libraries are imported when it is first used.

The import of numpy and `pylmcf` takes about 0.1 s of CPU and 20 MiB. Processes that never lead, such
as clients, are spared it.
"""

from __future__ import annotations

from broadsheet.allocator.placement.problem import Desired, Problem


class FlowSolver:
    """Finds the cheapest placement as a minimum-cost flow (see `placement.flow`)."""

    def solve(self, problem: Problem) -> Desired:
        """Return the cheapest placement; deterministic.

        Raises:
            FlowUnsolvedError: the solver gave no optimum, which is a defect.
        """
        from broadsheet.allocator.placement.flow import solution_of

        return solution_of(problem).desired


def import_solver() -> None:
    """Import the libraries that the first solve needs, which takes about 0.1 s; call it off the event loop.

    Members call it before they join, because a leader that takes over from a dead one has no time for imports.
    """
    import broadsheet.allocator.placement.flow  # noqa: F401
