"""A chaos run must be repeatable from its seed, and say all that is needed when it fails."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.report import ChaosError, forbidden_lines
from tests.chaos.schedule import Fault, FaultKind, make_schedule


def _schedule(seed: int, *, seconds: float = 150.0) -> tuple[Fault, ...]:
    return make_schedule(
        seed, seconds=seconds, members=2, lease_seconds=5.0, kinds=tuple(FaultKind)
    )


def test_chaos_schedule_is_the_seeds_alone() -> None:
    """Replay: the same seed strikes at the same times, another at others."""
    assert _schedule(7) == _schedule(7)
    assert _schedule(7) != _schedule(8)


@pytest.mark.parametrize("seed", range(20))
def test_chaos_schedule_of_150_seconds_has_every_fault(seed: int) -> None:
    """Whatever the seed: each kind about as often as another, on both members, none at the end of the run."""
    schedule = _schedule(seed)

    counts = Counter(fault.kind for fault in schedule)
    assert set(counts) == set(FaultKind)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert {fault.member for fault in schedule} == {0, 1}
    assert [fault.at_seconds for fault in schedule] == sorted(
        fault.at_seconds for fault in schedule
    )
    assert schedule[-1].at_seconds <= 135.0


def test_chaos_schedule_outlasts_leases_only_where_it_says_so() -> None:
    """A member that sleeps past its lease wakes as a zombie; one that only hiccups must keep its shards."""
    for fault in _schedule(1, seconds=2000.0):
        if fault.kind in (FaultKind.BROKER_CUT, FaultKind.ETCD_SLOW):
            continue  # They may be shorter or longer.
        outlasts = fault.kind in (FaultKind.FREEZE, FaultKind.ETCD_LONG)
        assert (fault.lasts_seconds > 5.0) == outlasts, fault


def test_chaos_error_tells_how_to_repeat_it_and_shows_the_logs() -> None:
    """Whoever reads the failure has nothing else."""
    error = ChaosError(
        AssertionError("3 streams without a sum"),
        replay="python -m tests.chaos --seed 7",
        schedule=_schedule(7),
        logs={"member-0-0": "first\n" * 5000 + "last words"},
    )

    text = str(error)
    assert "AssertionError: 3 streams without a sum" in text
    assert "repeat it: python -m tests.chaos --seed 7\n" in text
    assert all(str(fault) in text for fault in _schedule(7))
    assert text.endswith("last words")
    assert len(text) < 10_000


def test_chaos_forbidden_words_in_a_log_are_found() -> None:
    """A chunk in the wrong order, or a state that cannot be, fails the run at once, with whose it is."""
    logs = {
        "member-0-0": "member.lost LeaseLostError\nshard.failed StreamOrderError: stream s: expected 1, got 2",
        "member-1-0": "all is well",
    }

    assert forbidden_lines(logs) == [
        "member-0-0: shard.failed StreamOrderError: stream s: expected 1, got 2"
    ]
