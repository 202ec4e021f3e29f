"""A deterministic simulator of shards: the real runtime, a broker and stores in memory, one seed for everything.

`simulate(seed, Scenario(...))` returns a `Report`; `python -m broadsheet.testing.shards` runs many seeds.
docs/simulation.md shows both.
"""

from broadsheet.testing.shards.run import simulate
from broadsheet.testing.shards.scenario import Fault, Report, Scenario

__all__ = ["Fault", "Report", "Scenario", "simulate"]
