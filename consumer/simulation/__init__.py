"""A deterministic simulator of shards: the real runtime, a broker and stores in memory, one seed for everything.

`simulate(seed, Scenario(...))` returns a `Report`; `python -m consumer.simulation` runs many seeds. docs/simulation.md
shows both.
"""

from consumer.simulation.run import simulate
from consumer.simulation.scenario import Fault, Report, Scenario

__all__ = ["Fault", "Report", "Scenario", "simulate"]
