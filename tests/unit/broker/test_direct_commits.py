"""The event loop makes small commits itself, as long as it does not have to wait for them."""

from __future__ import annotations

import pytest

from broadsheet.broker.inline_commits import (
    PENDING_MAX,
    REST_PER_STALL,
    RETRY_SECONDS,
    STALL_SECONDS,
    TYPICAL_SECONDS_MAX,
    InlineCommits,
)
from tests.support.stepping_clock import SteppingClock

BYTES_MAX = 1000
QUICK_SECONDS = TYPICAL_SECONDS_MAX / 4
SLOW_SECONDS = TYPICAL_SECONDS_MAX * 3


@pytest.fixture
def clock() -> SteppingClock:
    """A clock that only commits move."""
    return SteppingClock(now_seconds=100.0)


@pytest.fixture
def direct(clock: SteppingClock) -> InlineCommits:
    """Of a disk that nobody knows yet."""
    return InlineCommits(clock, bytes_max=BYTES_MAX)


def _commit(direct: InlineCommits, clock: SteppingClock, seconds: float, *, times: int = 1) -> None:
    def commit() -> None:
        clock.now_seconds += seconds

    for _ in range(times):
        direct.run(commit)


def test_only_small_commits_are_made_directly(direct: InlineCommits) -> None:
    """A long write would hold up the loop for longer than a thread costs."""
    assert direct.allow(BYTES_MAX)
    assert not direct.allow(BYTES_MAX + 1)


def test_none_are_made_directly_where_none_may_be(clock: SteppingClock) -> None:
    """Not even one without content, which only confirms a loss: it waits for the disk all the same."""
    direct = InlineCommits(clock, bytes_max=0)
    assert not direct.allow(0)
    assert not direct.allow(1)


def test_commits_that_could_be_made_at_once_go_to_threads(direct: InlineCommits) -> None:
    """Many that wait are quicker side by side; those that have gone do not count any more."""
    direct.pending = PENDING_MAX
    assert direct.allow(1)
    direct.pending += 1
    assert not direct.allow(1)
    direct.pending = 0
    assert direct.allow(1)


def test_quick_disk_stays_with_the_loop(direct: InlineCommits, clock: SteppingClock) -> None:
    """A commit now and then that takes longer, as on busy processors, changes nothing."""
    for _ in range(20):
        _commit(direct, clock, QUICK_SECONDS, times=19)
        _commit(direct, clock, STALL_SECONDS / 2)
        assert direct.allow(1)


def test_slow_disk_goes_to_threads_and_is_tried_now_and_then(
    direct: InlineCommits, clock: SteppingClock
) -> None:
    """It is found out within a few commits, and asked again once a second; when it is quick again, that is noticed."""
    commits = 0
    while direct.allow(1):
        _commit(direct, clock, SLOW_SECONDS)
        commits += 1
    assert commits < 20

    clock.now_seconds += RETRY_SECONDS
    assert direct.allow(1)
    _commit(direct, clock, SLOW_SECONDS)
    assert not direct.allow(1)

    tries = 0
    while not direct.allow(1):
        clock.now_seconds += RETRY_SECONDS
        _commit(direct, clock, QUICK_SECONDS)
        tries += 1
    assert tries < 60


def test_stall_sends_commits_to_threads_for_a_multiple_of_its_length(
    direct: InlineCommits, clock: SteppingClock
) -> None:
    """One that stands still for 0.3 s is followed by 15 s of threads; then the loop tries again."""
    _commit(direct, clock, 0.3)
    assert not direct.allow(1)
    clock.now_seconds += REST_PER_STALL * 0.3 - 0.001
    assert not direct.allow(1)
    clock.now_seconds += 0.002
    assert direct.allow(1)


def test_learns_from_commits_that_fail(direct: InlineCommits, clock: SteppingClock) -> None:
    """A disk that fails after a long time is a disk that stalls."""

    def fail() -> None:
        clock.now_seconds += 1.0
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        direct.run(fail)
    assert not direct.allow(1)
