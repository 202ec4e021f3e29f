"""A deterministic simulator of shards: the real runtime, a broker and stores in memory, one seed for everything.

`simulate(seed, Scenario(...))` returns a `Report`; `python -m broadsheet.consumer.simulation` runs many seeds.
docs/simulation.md shows both.
"""

from broadsheet.consumer.simulation.run import simulate
from broadsheet.consumer.simulation.scenario import Fault, Report, Scenario

__all__ = ["Fault", "Report", "Scenario", "simulate"]
