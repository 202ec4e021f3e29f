"""What is measured of each system, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, field

ROWS = 1_000_000
"""Of one load."""
LOADS = 2
"""Measured after one that warms up."""
LATENCY_ROWS_PER_SECOND = 200.0
LATENCY_WARM_UP_ROWS = 2_000
LATENCY_ROWS = 2_000
RECOVERY_ROWS_PER_SECOND = 100.0
RESULT_SECONDS_MAX = 180.0
"""Longest wait for any result."""


@dataclass(slots=True)
class Measured:
    """Of one system."""

    rows_per_second: list[float] = field(default_factory=list)
    """Of each load."""
    latencies_seconds: list[float] = field(default_factory=list)
    """Of each row."""
    recoveries_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of each kill, by what was killed."""

    def add(self, other: Measured) -> None:
        """Add what another round measured."""
        self.rows_per_second += other.rows_per_second
        self.latencies_seconds += other.latencies_seconds
        for kill, seconds in other.recoveries_seconds.items():
            self.recoveries_seconds.setdefault(kill, []).extend(seconds)
