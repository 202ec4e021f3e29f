"""What is measured of each system, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.vs_structured_streaming.feed import Pace
from bench.vs_structured_streaming.results import SentRow, Sums, latencies_seconds

ROWS = 1_000_000
"""Of one load."""
LOADS = 2
"""Measured after one that warms up."""
WARM_UP = Pace(2_000, 200.0)
LATENCY = (Pace(2_000, 200.0), Pace(500, 50.0))
"""After the warm-up, one after the other."""
RECOVERY = Pace(1_000_000, 100.0)
"""Until all kills are done."""
RESULT_SECONDS_MAX = 180.0
"""Longest wait for any result."""


@dataclass(slots=True)
class Measured:
    """Of one system."""

    rows_per_second: list[float] = field(default_factory=list)
    """Of each load."""
    latencies_seconds: dict[float, list[float]] = field(default_factory=dict)
    """Of each row, by the rows a second that were sent."""
    recoveries_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of each kill, by what was killed."""

    def add(self, other: Measured) -> None:
        """Add what another round measured."""
        self.rows_per_second += other.rows_per_second
        for rate, latencies in other.latencies_seconds.items():
            self.latencies_seconds.setdefault(rate, []).extend(latencies)
        for kill, recoveries in other.recoveries_seconds.items():
            self.recoveries_seconds.setdefault(kill, []).extend(recoveries)


def latencies_by_pace(sent: Sequence[SentRow], seen: Sequence[Sums]) -> dict[float, list[float]]:
    """Return the latency of each row after the warm-up, by the rows a second that were sent then."""
    latencies = latencies_seconds(sent, seen)
    begin, found = WARM_UP.rows, {}
    for pace in LATENCY:
        found[pace.rows_per_second] = latencies[begin : begin + pace.rows]
        begin += pace.rows
    return found
