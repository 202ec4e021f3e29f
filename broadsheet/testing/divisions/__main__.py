"""Command line of the simulator, `python -m broadsheet.testing.divisions`: runs seeds, and shows those that fail."""

from __future__ import annotations

from broadsheet.testing.allocator.kernel.command import simulator_command
from broadsheet.testing.divisions.run import divisions

ABOUT = """Simulate source journals that are divided under faults, beside splits and merges of shards, and check
that each message is handled once, and those of a key in order.

The same seed always gives the same run. Exits with 1 if any run fails.
"""

main = simulator_command(ABOUT, divisions())

if __name__ == "__main__":
    main()
