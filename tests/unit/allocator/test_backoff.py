"""Delays of reconnecting loops stay within their bounds."""

from __future__ import annotations

from random import Random

from broadsheet.runtime.backoff import Backoff


def test_delays_double_up_to_the_bound_and_never_reach_zero() -> None:
    """No delay is zero (no busy loop), none exceeds the bound, and an endless outage overflows nothing."""
    backoff = Backoff(initial_seconds=0.05, max_seconds=5.0, random=Random(7))

    delays = [backoff.next_seconds() for _ in range(2000)]

    assert all(0.025 <= delay <= 5.0 for delay in delays)
    assert delays[0] <= 0.05
    assert all(delay >= 2.5 for delay in delays[10:])


def test_reset_starts_over_from_the_shortest_delay() -> None:
    """A stream that delivered something reconnects at once when it breaks later."""
    backoff = Backoff(initial_seconds=0.05, max_seconds=5.0, random=Random(7))
    for _ in range(10):
        backoff.next_seconds()

    backoff.reset()

    assert backoff.next_seconds() <= 0.05
