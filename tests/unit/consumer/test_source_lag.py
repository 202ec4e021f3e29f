"""The lag of a source in bytes and seconds: heads and offsets in, numbers out."""

from __future__ import annotations

import pytest

from broadsheet.consumer.shard.metrics import SourceLag, SourceLags


def test_idle_journal_is_not_behind() -> None:
    """A journal that nobody writes to for a day must not page anybody: all that it has is read."""
    lag = SourceLag(100)
    lag.on_head(100, 0.0)
    assert lag.measured(86_400.0) == (0, 0.0)


def test_time_counts_from_the_oldest_unread_byte() -> None:
    """Reading catches up in steps: what counts is when the first byte beyond it came, not the last one."""
    lag = SourceLag(0)
    for second in range(10):
        lag.on_head(100 * (second + 1), float(second))
    assert lag.measured(10.0) == (1000, 10.0)
    lag.on_read(350)
    # Byte 350 was seen with the head of 400, at second 3.
    assert lag.measured(10.0) == (650, 7.0)
    lag.on_read(1000)
    assert lag.measured(10.0) == (0, 0.0)


def test_new_messages_after_a_quiet_time_are_young() -> None:
    """Lag by the clock of the last message read would show the length of the pause."""
    lag = SourceLag(100)
    lag.on_head(100, 0.0)
    lag.on_head(200, 3600.0)
    assert lag.measured(3601.0) == (100, 1.0)


def test_head_and_offset_that_go_back_change_nothing() -> None:
    """Answers of several brokers arrive in any order, and a checkpoint may lag behind what was told before."""
    lag = SourceLag(50)
    lag.on_head(200, 1.0)
    lag.on_head(100, 2.0)
    lag.on_read(120)
    lag.on_read(60)
    assert lag.measured(3.0) == (80, 2.0)


@pytest.mark.parametrize("seconds", [0.25, 1.0, 60.0])
def test_memory_is_bounded_and_the_time_stays_near(seconds: float) -> None:
    """A backlog may grow for days: few samples are kept, and the oldest of them is."""
    lag = SourceLag(0)
    for number in range(1, 5_000):
        lag.on_head(number, number * seconds)
    end = 5_000 * seconds
    assert lag.measured(end) == (4_999, end - seconds)
    lag.on_read(2_500)
    behind_bytes, behind_seconds = lag.measured(end)
    assert behind_bytes == 2_499
    # At most a second too old, or as much too young as samples are apart.
    assert 0 < behind_seconds <= 2_500 * seconds + 1.0
    assert lag.samples <= 64


def test_shard_that_is_served_elsewhere_has_no_lag_here() -> None:
    """Two members that show a lag of one shard would make an alert about the one that no longer reads."""
    lags = SourceLags()
    lags.start("shard", "journal", 0)
    lags.start("other", "journal", 0)
    lags.on_head("shard", "journal", 10)
    lags.on_read("shard", {"journal": 4, "unknown": 1})
    lags.on_head("unknown", "journal", 10)

    def samples() -> dict[tuple[str, str], float]:
        return {
            (metric.name, sample.labels["shard"]): sample.value
            for metric in lags.collect()
            for sample in metric.samples
        }

    name = "broadsheet_shard_source_lag_bytes"
    assert {samples()[name, each] for each in ("shard", "other")} == {6, 0}
    lags.forget("shard")
    assert (name, "shard") not in samples()
    assert (name, "other") in samples()
