"""Garbage collection for a process that is a member and nothing else."""

from __future__ import annotations

import gc

YOUNG_OBJECTS_MAX = 100_000
"""Objects made between two collections. Python's 700 walks a batch of messages over and over. Cycles are rare here, so
what waits for collection stays small."""


def collect_rarely() -> None:
    """Collect garbage for throughput, and never look again at what was made during the start.

    Process-wide: for programs that only serve a member, not for libraries.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, 50, 100)
