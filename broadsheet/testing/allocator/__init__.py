"""A deterministic simulator of clusters: the real allocator, an etcd in memory, and one seed for every event.

`simulate(seed, Scenario(...))` returns a `Report`; `python -m broadsheet.testing.allocator` runs many seeds.
docs/simulation.md shows both.
"""

from broadsheet.testing.allocator.invariants import Invariant
from broadsheet.testing.allocator.kernel.run import InvariantViolation
from broadsheet.testing.allocator.run import simulate
from broadsheet.testing.allocator.scenario import Fault, Report, Scenario
from broadsheet.testing.allocator.world import Change, World

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
