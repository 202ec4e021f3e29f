"""`python -m broadsheet.allocator.simulation`: run seeds, and show the failed ones."""

from __future__ import annotations

from dataclasses import replace

from broadsheet.allocator.simulation.command import simulator_command
from broadsheet.allocator.simulation.many import Family, clusters
from broadsheet.allocator.simulation.scenario import Scenario

ABOUT = """Simulate clusters of the real allocator under faults, and check that its invariants hold.

The same seed always gives the same run. Exits with 1 if any run fails.
"""


def _family(steps: int | None) -> Family:
    if steps is None:
        return clusters()
    scenario = replace(Scenario(), steps=(steps, steps))
    return clusters(scenario, arguments=("--steps", str(steps)))


main = simulator_command(ABOUT, _family)

if __name__ == "__main__":
    main()
