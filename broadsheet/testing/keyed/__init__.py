"""A deterministic simulator of keyed shards: state by key, timers, TTL and watermarks over the real runtime.

`simulate(seed)` returns a `KeyedReport`; `python -m broadsheet.testing.keyed` runs many seeds. docs/simulation.md shows
what is checked.
"""

from broadsheet.testing.keyed.run import KeyedReport, simulate

__all__ = ["KeyedReport", "simulate"]
