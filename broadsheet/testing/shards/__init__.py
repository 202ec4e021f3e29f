"""A deterministic simulator of shards: the real runtime, a broker and stores in memory, one seed for everything.

`simulate(seed, Scenario(...))` returns a `ShardReport`; `python -m broadsheet.testing.shards` runs many seeds.
docs/simulation.md shows both.
"""

from broadsheet.testing.shards.run import simulate
from broadsheet.testing.shards.scenario import ShardFault, ShardReport, ShardScenario

__all__ = ["ShardFault", "ShardReport", "ShardScenario", "simulate"]
