"""Command line of the simulator, `python -m broadsheet.testing.families`: runs seeds, and shows those that fail."""

from __future__ import annotations

from broadsheet.testing.allocator.kernel.command import simulator_command
from broadsheet.testing.families.run import families

ABOUT = """Simulate shards of the real consumer that are split and merged under faults, and check exactly-once.

The same seed always gives the same run. Exits with 1 if any run fails.
"""

main = simulator_command(ABOUT, families())

if __name__ == "__main__":
    main()
