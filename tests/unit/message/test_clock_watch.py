"""Which messages are from the future, and who is told of them how often."""

from __future__ import annotations

import pytest

from broadsheet.journals.message.clock_watch import (
    TOLD_PRODUCERS_MAX,
    WARNING_REST_SECONDS,
    ClockAhead,
    ToldProducers,
    clock_ahead,
    first_ahead,
    latest_clock,
)
from broadsheet.journals.message.uuid import Flags, clock_at
from tests.support.sequencer_logs import A, log_of

NOW = 1_800_000_000.0


def ahead_of(producer: int, journal: str = "a/journal") -> ClockAhead:
    """Return a message of a producer whose clock is ahead."""
    return ClockAhead(journal, 70, producer, 7200.0)


def test_clock_at_the_bound_is_no_clock_ahead() -> None:
    """Messages at and one unit past the bound; one without a clock. What is allowed must not be refused."""
    latest = latest_clock(NOW, ahead_seconds=60)
    log = log_of((A, 0, Flags.OUTSIDE_TXN), (A, latest, Flags.OUTSIDE_TXN))
    assert latest == clock_at(int((NOW + 60) * 1e9))
    assert first_ahead(log.batch(), latest) is None
    log.append(A, latest + 160, Flags.CONTINUE_TXN)

    found = first_ahead(log.batch(), latest)

    assert found == 2
    told = clock_ahead(log.batch(), found, wall_seconds=NOW)
    assert (told.journal, told.offset, told.producer) == ("a/journal", 20, A)
    assert told.ahead_seconds == pytest.approx(60.000001, abs=1e-5)
    assert "producer 0100000000aa is 60 s ahead" in str(told.error)
    assert first_ahead(log.batch(0, 0), latest) is None


def test_each_producer_is_told_of_once_and_one_at_a_time() -> None:
    """Two producers in two journals, met again and again: a line each, and never two lines at once."""
    told = ToldProducers()
    found = [ahead_of(1), ahead_of(2), ahead_of(1, "b/journal")]
    lines = []
    for step in range(20):
        line = told.to_tell(found, now_seconds=step * WARNING_REST_SECONDS / 2)
        lines += [line] if line else []

    assert lines == found
    assert told.to_tell(found, now_seconds=1e6) is None


def test_producers_told_of_are_remembered_within_a_bound() -> None:
    """A flood of ids with wrong clocks must not fill memory."""
    told = ToldProducers()
    for producer in range(TOLD_PRODUCERS_MAX + 10):
        told.to_tell([ahead_of(producer)], now_seconds=producer * WARNING_REST_SECONDS)

    # The first ones were forgotten, so they are told of again.
    later = (TOLD_PRODUCERS_MAX + 20) * WARNING_REST_SECONDS
    assert told.to_tell([ahead_of(0)], now_seconds=later) == ahead_of(0)
    assert told.to_tell([ahead_of(TOLD_PRODUCERS_MAX + 9)], now_seconds=2 * later) is None
