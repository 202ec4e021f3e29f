"""How long a step takes, and waiting for one that takes a moment."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

_POLL_SECONDS: Final = 0.05


def half_within_ms(step: Callable[[], object], times: int) -> float:
    """Run a step some times; return the time within which half of the runs ended, milliseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def wait_until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it takes longer.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"the condition does not hold after {seconds:g} s")
        time.sleep(_POLL_SECONDS)
