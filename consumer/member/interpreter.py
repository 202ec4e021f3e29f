"""The Python interpreter of a process that is a member and nothing else.

All of it is process-wide: for programs that only serve a member, not for libraries.
"""

from __future__ import annotations

import gc
import sys

YOUNG_OBJECTS_MAX = 100_000
"""Objects made between two collections. Python's 700 walks a batch of messages over and over. Cycles are rare here, so
what waits for collection stays small."""
SWITCH_SECONDS = 0.0005
"""How long a shard's thread keeps the interpreter while the event loop waits for it. Each append and each commit is
several turns of the loop, and with Python's 5 ms each of them may wait that long."""


def serve_only() -> None:
    """Set the interpreter up for serving, once what is needed for that is imported."""
    gc.freeze()  # What was made during the start is never looked at again.
    gc.set_threshold(YOUNG_OBJECTS_MAX, 50, 100)
    sys.setswitchinterval(SWITCH_SECONDS)
