"""A deterministic simulator of clusters: the real allocator, an etcd in memory, and one seed for every event.

`simulate(seed, Scenario(...))` returns a `Report`; `python -m broadsheet.allocator.simulation` runs many seeds.
docs/simulation.md shows both.
"""

from broadsheet.allocator.simulation.invariants import Invariant
from broadsheet.allocator.simulation.kernel.run import InvariantViolation
from broadsheet.allocator.simulation.run import simulate
from broadsheet.allocator.simulation.scenario import Fault, Report, Scenario
from broadsheet.allocator.simulation.world import Change, World

__all__ = [
    "Change",
    "Fault",
    "Invariant",
    "InvariantViolation",
    "Report",
    "Scenario",
    "World",
    "simulate",
]
