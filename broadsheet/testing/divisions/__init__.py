"""A deterministic simulator of source journals that are divided while shards publish into them and read them.

`simulate(seed)` returns a `DivisionReport`; `python -m broadsheet.testing.divisions` runs many seeds.
docs/simulation.md shows what is checked.
"""

from broadsheet.testing.divisions.run import DivisionReport, simulate

__all__ = ["DivisionReport", "simulate"]
