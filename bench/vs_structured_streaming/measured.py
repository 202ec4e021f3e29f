"""What is measured of each system, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.disturbances import Disturbances, Longest
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


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of rows that were sent at one pace."""

    seconds: list[float]
    """Of each row."""
    longest: Longest
    """What disturbed the machine, from when the first row was due to when the last one was seen."""

    def and_of(self, other: Latencies) -> Latencies:
        """Return those of two rounds."""
        return Latencies(self.seconds + other.seconds, Longest.of((self.longest, other.longest)))


@dataclass(slots=True)
class Measured:
    """Of one system."""

    rows_per_second: list[float] = field(default_factory=list)
    """Of each load."""
    latencies: dict[float, Latencies] = field(default_factory=dict)
    """By the rows a second that were sent."""
    recoveries_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of each kill, by what was killed."""

    def add(self, other: Measured) -> None:
        """Add what another round measured."""
        self.rows_per_second += other.rows_per_second
        for rate, latencies in other.latencies.items():
            before = self.latencies.get(rate)
            self.latencies[rate] = before.and_of(latencies) if before else latencies
        for kill, recoveries in other.recoveries_seconds.items():
            self.recoveries_seconds.setdefault(kill, []).extend(recoveries)


def latencies_by_pace(
    sent: Sequence[SentRow], seen: Sequence[Sums], disturbances: Disturbances
) -> dict[float, Latencies]:
    """Return the latencies of rows after the warm-up, by the rows a second that were sent then."""
    all_seconds = latencies_seconds(sent, seen)
    begin, found = WARM_UP.rows, {}
    for pace in LATENCY:
        end = begin + pace.rows
        due = [row.at_monotonic_seconds for row in sent[begin:end]]
        seconds = all_seconds[begin:end]
        last_seen = max(at + latency for at, latency in zip(due, seconds, strict=True))
        longest = disturbances.longest(since=due[0], until=last_seen)
        found[pace.rows_per_second] = Latencies(seconds, longest)
        begin = end
    return found
