"""Command line of the simulator, `python -m broadsheet.consumer.simulation`: runs seeds, and shows those that fail."""

from __future__ import annotations

from dataclasses import replace

from broadsheet.allocator.simulation.command import simulator_command
from broadsheet.allocator.simulation.many import Family
from broadsheet.consumer.simulation.run import shards
from broadsheet.consumer.simulation.scenario import Scenario

ABOUT = """Simulate a shard of the real consumer under faults, and check that it is exactly once.

The same seed always gives the same run. Exits with 1 if any run fails.
"""


def _family(steps: int | None) -> Family:
    if steps is None:
        return shards()
    scenario = replace(Scenario(), steps=(steps, steps))
    return shards(scenario, arguments=("--steps", str(steps)))


main = simulator_command(ABOUT, _family)

if __name__ == "__main__":
    main()
