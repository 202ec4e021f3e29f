"""An average that forgets: a measurement counts half as much after each half-life."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Smoothed:
    """An average, and the time up to which it was measured."""

    value: float
    at_monotonic_seconds: float

    def after(
        self, sample: float, now_monotonic_seconds: float, *, half_life_seconds: float
    ) -> Smoothed:
        """Return the average once `sample` has been measured from then until now."""
        elapsed = max(0.0, now_monotonic_seconds - self.at_monotonic_seconds)
        kept = 0.5 ** (elapsed / half_life_seconds) if half_life_seconds > 0.0 else 0.0
        return Smoothed(kept * self.value + (1.0 - kept) * sample, now_monotonic_seconds)
