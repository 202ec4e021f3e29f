"""A benchmark that blames the disk must be right: the time of a sync is noted, and that of a rest is not."""

from __future__ import annotations

import tempfile
import time
from itertools import islice
from pathlib import Path

import pytest

from bench.disturbances import BLOCK_BYTES, Interval, disk_stalls, syncs_of, write_block


class ScriptedDisk:
    """Syncs that take as long as is said, on a clock of its own, seconds."""

    def __init__(self, sync_seconds: list[float], *, rest_seconds: float) -> None:
        """Begin at 0."""
        self._sync_seconds = iter(sync_seconds)
        self._rest_seconds = rest_seconds
        self._now = 0.0

    def sync(self) -> None:
        """Take the next time."""
        self._now += next(self._sync_seconds)

    def rest(self) -> None:
        """Take the time of a rest."""
        self._now += self._rest_seconds

    def clock(self) -> float:
        """Return the time."""
        return self._now


def test_times_of_syncs_are_without_the_rests_between_them() -> None:
    """A rest is longer than what is called a stall, so it must not count as one."""
    disk = ScriptedDisk([0.25, 1.0, 0.25], rest_seconds=8.0)

    found = list(islice(syncs_of(disk.sync, rest=disk.rest, clock=disk.clock), 3))

    assert found == [Interval(0.0, 0.25), Interval(8.25, 9.25), Interval(17.25, 17.5)]


def test_synced_block_is_always_the_same_one() -> None:
    """Files that grow cost a sync more, and a disk its room."""
    with tempfile.TemporaryFile() as file:
        for _ in range(3):
            write_block(file.fileno())

        assert len(file.read()) == BLOCK_BYTES


def test_watcher_of_a_disk_syncs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its file has no name, so nothing is left even of a watcher that is killed."""
    with disk_stalls(tmp_path) as stalls:
        later = time.monotonic() + 60

        assert not stalls.longest_seconds(since=later, until=later + 1)
        assert not list(tmp_path.iterdir())


def test_watcher_without_its_directory_does_not_begin(tmp_path: Path) -> None:
    """No stall of another disk may be told instead."""
    with pytest.raises(RuntimeError, match=r"bench\.disturbances ended with 1"):
        disk_stalls(tmp_path / "absent").__enter__()
