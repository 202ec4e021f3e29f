"""What is told beside a figure: the longest of each kind, over all that the figure is of."""

from __future__ import annotations

import time
from pathlib import Path

from bench.disturbances import Disturbances, Longest


def test_longest_of_several_times_is_that_of_each_kind() -> None:
    """The longest pause and the longest stall need not be of one trial."""
    several = [Longest(0.1, 0.0), Longest(0.0, 0.25), Longest()]

    assert Longest.of(several) == Longest(0.1, 0.25)
    assert Longest.of([]) == Longest()


def test_figures_are_printed_with_both_kinds() -> None:
    """Also with none, so that nobody takes what was not watched for what was not disturbed."""
    assert Longest(0.123456, 0.0).params() == {
        "machine_pause_max_s": 0.1235,
        "disk_stall_max_s": 0.0,
    }


def test_time_that_nothing_touched_is_undisturbed(tmp_path: Path) -> None:
    """Both watchers run, and neither has noted what is still to come."""
    with Disturbances(tmp_path) as disturbances:
        later = time.monotonic() + 60

        assert disturbances.longest(since=later, until=later + 1) == Longest()
