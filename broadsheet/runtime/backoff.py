"""Delays between attempts of a loop that owns a stream: exponential with jitter, bounded, reset by progress.

Retried *calls* use tenacity. A loop that reconnects is different: its delays start over from the shortest one as soon
as data arrives, which a call wrapper cannot see.
"""

from __future__ import annotations

import asyncio
from random import Random, uniform


class Backoff:
    """Counts attempts and sleeps before the next one."""

    def __init__(
        self,
        *,
        initial_seconds: float = 0.05,
        max_seconds: float = 5.0,
        random: Random | None = None,
    ) -> None:
        """Set the bounds.

        Args:
            initial_seconds: Upper bound of the first delay; it doubles with each attempt.
            max_seconds: Upper bound of every delay.
            random: Source of jitter; without one it is the process-wide generator, which `random.seed` makes
                repeatable.
        """
        self._initial_seconds = initial_seconds
        self._max_seconds = max_seconds
        self._uniform = uniform if random is None else random.uniform
        self.attempt = 0
        """Delays since the last reset."""

    def next_seconds(self) -> float:
        """Count one attempt and return how long to wait before it, seconds, in [bound / 2, bound)."""
        # The exponent is bounded so that an endless outage cannot overflow a float.
        bound = min(self._max_seconds, self._initial_seconds * 2.0 ** min(self.attempt, 32))
        self.attempt += 1
        return self._uniform(bound / 2, bound)

    async def sleep(self) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(self.next_seconds())

    def reset(self) -> None:
        """Forget past attempts after progress."""
        self.attempt = 0
