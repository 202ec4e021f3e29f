"""Accrual failure detector: the confidence that a process whose beats have stopped has ended.

It is not yes or no, but a figure that grows with the silence: phi is −log10 of the chance that a beat still comes,
given the recent times between beats. At a phi of 8 it is one in a hundred million. A peer with irregular beats is
therefore given more time than one with regular beats.

Source: Hayashibara, Défago, Yared, Katayama, "The φ Accrual Failure Detector", SRDS 2004. That the pauses of the
observer are no silence of the other is ours.
"""

from __future__ import annotations

import math
from collections import deque

SUSPICION_PHI = 8.0
"""From which to suspect, unless told otherwise."""
SAMPLES = 100
"""Times between beats that count, the newest."""
DEVIATION_RATIO_MIN = 0.4
"""Least standard deviation, as a part of the expected time: on a quiet machine it would be a millisecond, and the first
delay of a busy one a death."""
PHI_MAX = 300.0
"""Larger values cannot be distinguished in a float."""


class AccrualDetector:
    """Computes phi for one peer. Times are monotonic seconds."""

    def __init__(self, *, expected_seconds: float) -> None:
        """Set the expected interval.

        Args:
            expected_seconds: Time between beats.
        """
        self._deviation_min = expected_seconds * DEVIATION_RATIO_MIN
        self._intervals: deque[float] = deque(maxlen=SAMPLES)
        self._intervals.append(expected_seconds)
        self._last: float | None = None
        self._own_pauses = 0.0
        """Seconds since the last beat in which we could not have heard one."""

    def on_beat(self, now: float) -> None:
        """Record a beat."""
        if self._last is not None:
            # A pause of this process delayed the beat, too.
            self._intervals.append(max(0.0, now - self._last - self._own_pauses))
        self._last, self._own_pauses = now, 0.0

    def on_own_pause(self, seconds: float) -> None:
        """Record that this process itself was stopped for so long just now."""
        self._own_pauses += max(0.0, seconds)

    def on_gap(self) -> None:
        """Record that no beat could arrive since the last one, because the connection was opened again."""
        self._last, self._own_pauses = None, 0.0

    def silence_seconds(self, now: float) -> float:
        """Return the length of the silence, without pauses of this process."""
        return 0.0 if self._last is None else max(0.0, now - self._last - self._own_pauses)

    def phi(self, now: float) -> float:
        """Return the confidence that no beat will come; 0 before the first: the peer may be starting."""
        if self._last is None:
            return 0.0
        mean = math.fsum(self._intervals) / len(self._intervals)
        variance = math.fsum((each - mean) ** 2 for each in self._intervals) / len(self._intervals)
        deviation = max(self._deviation_min, math.sqrt(variance))
        later = 0.5 * math.erfc((self.silence_seconds(now) - mean) / (deviation * math.sqrt(2)))
        return PHI_MAX if later <= 10.0**-PHI_MAX else -math.log10(later)
