"""Command line of the simulator, `python -m broadsheet.testing.keyed`: runs seeds, and shows those that fail."""

from __future__ import annotations

from broadsheet.testing.allocator.kernel.command import simulator_command
from broadsheet.testing.keyed.run import keyed_shards

ABOUT = """Simulate keyed shards of the real consumer under faults, and check their rows, state and timers.

The same seed always gives the same run. Exits with 1 if any run fails.
"""

main = simulator_command(ABOUT, keyed_shards())

if __name__ == "__main__":
    main()
