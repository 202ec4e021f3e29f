"""A deterministic simulator of clusters: the real allocator, an etcd in memory, and one seed for every event.

`simulate(seed, Scenario(...))` returns a `ClusterReport`; `python -m broadsheet.testing.allocator` runs many seeds.
docs/simulation.md shows both.
"""

from broadsheet.testing.allocator.invariants import Invariant
from broadsheet.testing.allocator.kernel.run import InvariantViolation
from broadsheet.testing.allocator.run import simulate
from broadsheet.testing.allocator.scenario import ClusterFault, ClusterReport, ClusterScenario
from broadsheet.testing.allocator.world import ClusterChange, StoredCluster

__all__ = [
    "ClusterChange",
    "ClusterFault",
    "ClusterReport",
    "ClusterScenario",
    "Invariant",
    "InvariantViolation",
    "StoredCluster",
    "simulate",
]
