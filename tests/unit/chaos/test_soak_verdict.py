"""What `make soak` says of the memory that it measured."""

from __future__ import annotations

import os

from tests.soak.memory import Measured, rss_by_process, table_line, verdict

MIB = 1 << 20


def measured(*values: tuple[float, float]) -> list[Measured]:
    """Return looks at one member: seconds, MiB."""
    return [Measured(seconds, {"member 7": int(size * MIB)}) for seconds, size in values]


def judged(*values: tuple[float, float]) -> list[str]:
    """Return what is said of an hour."""
    return verdict(measured(*values), warm_seconds=600, traffic_seconds=3600)


def test_memory_that_stays_and_falls_is_right() -> None:
    """It grows while it gets warm, hardly after that, and falls at the end."""
    assert judged((0, 50), (600, 100), (1800, 150), (3600, 109), (3800, 90)) == []


def test_memory_that_grows_is_wrong() -> None:
    """More than a tenth over what it was after ten minutes: a leak shows so."""
    (problem,) = judged((0, 50), (600, 100), (3600, 111), (3800, 90))
    assert "member 7 grew from 100.0 to 111.0 MiB" in problem


def test_memory_that_is_kept_after_the_traffic_is_wrong() -> None:
    """It goes on to grow when nothing comes any more."""
    (problem,) = judged((600, 100), (3600, 100), (3800, 120))
    assert "member 7 takes 120.0 MiB after the traffic" in problem


def test_process_that_ended_is_wrong() -> None:
    """A member that was started again has the memory of a new one, which says nothing."""
    looks = [*measured((600, 100)), Measured(3600, {"member 8": MIB}), Measured(3800, {})]
    (problem,) = verdict(looks, warm_seconds=600, traffic_seconds=3600)
    assert "member 7 is not there any more" in problem


def test_line_names_each_process() -> None:
    """The table is read by people."""
    assert table_line(*measured((60, 91.5))) == "     60 s  member 7    91.5 MiB"


def test_only_members_and_brokers_of_this_run_are_measured() -> None:
    """Others run on the same machine; this process has started none."""
    assert not any(str(os.getpid()) in name for name in rss_by_process())
