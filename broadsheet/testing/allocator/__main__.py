"""`python -m broadsheet.testing.allocator`: run seeds, and show the failed ones."""

from __future__ import annotations

from broadsheet.testing.allocator.kernel.command import simulator_command
from broadsheet.testing.allocator.run import clusters

ABOUT = """Simulate clusters of the real allocator under faults, and check that its invariants hold.

The same seed always gives the same run. Exits with 1 if any run fails.
"""

main = simulator_command(ABOUT, clusters())

if __name__ == "__main__":
    main()
