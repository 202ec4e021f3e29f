"""Command line of the simulator, `python -m broadsheet.testing.shards`: runs seeds, and shows those that fail."""

from __future__ import annotations

from broadsheet.testing.allocator.kernel.command import simulator_command
from broadsheet.testing.shards.run import shards

ABOUT = """Simulate a shard of the real consumer under faults, and check that it is exactly once.

The same seed always gives the same run. Exits with 1 if any run fails.
"""

main = simulator_command(ABOUT, shards())

if __name__ == "__main__":
    main()
