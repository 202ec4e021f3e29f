"""Shifts this process's wall clock by what a file says, seconds: Python imports this at its start if it is on the path.

Monotonic clocks stay as they are: what steps on a real machine is the wall clock, too.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

OFFSET_FILE_VARIABLE = "BROADSHEET_CHAOS_CLOCK"


def _install(path: Path) -> None:
    real = time.time

    def shifted() -> float:
        try:
            return real() + float(path.read_text() or 0.0)
        except (OSError, ValueError):
            return real()  # It is being written.

    time.time = shifted


if name := os.environ.get(OFFSET_FILE_VARIABLE):
    _install(Path(name))
