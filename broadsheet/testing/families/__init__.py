"""A deterministic simulator of families: shards that are split and merged while members die, over the real runtime.

`simulate(seed)` returns a `FamilyReport`; `python -m broadsheet.testing.families` runs many seeds. docs/simulation.md
shows what is checked.
"""

from broadsheet.testing.families.run import FamilyReport, simulate

__all__ = ["FamilyReport", "simulate"]
