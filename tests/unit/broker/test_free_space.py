"""What is left of the disk is looked up often enough."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broadsheet.broker.disk import Disk
from broadsheet.broker.free_space import (
    FILL_BYTES_PER_SECOND,
    LOOK_SECONDS_MAX,
    SMALL_BYTES_MAX,
    FreeSpace,
)
from broadsheet.broker.segment_recycler import SegmentRecycler
from tests.support.stepping_clock import SteppingClock

FLOOR = 64 << 20
PLENTY = 1 << 40


class _CountingDisk(Disk):
    """Tells what the test says is free, and how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.free = PLENTY
        self.looks = 0
        self.error: OSError | None = None

    def free_bytes(self, directory: Path) -> int:
        """Return it."""
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.free


@pytest.fixture
def disk() -> _CountingDisk:
    """A disk with plenty of space."""
    return _CountingDisk()


@pytest.fixture
def clock() -> SteppingClock:
    """A clock that the test moves."""
    return SteppingClock(now_seconds=100.0)


@pytest.fixture
def spares(tmp_path: Path, disk: _CountingDisk) -> SegmentRecycler:
    """Files on that disk that may go."""
    return SegmentRecycler(disk, tmp_path, bytes_max=PLENTY, file_bytes_min=0)


@pytest.fixture
def space(
    tmp_path: Path, disk: _CountingDisk, clock: SteppingClock, spares: SegmentRecycler
) -> FreeSpace:
    """Of that disk."""
    return FreeSpace(disk, clock, tmp_path, spares, floor_bytes=FLOOR)


def test_looks_again_once_a_look_is_old(
    space: FreeSpace, disk: _CountingDisk, clock: SteppingClock
) -> None:
    """However much there was."""
    for _ in range(1000):
        space.require(100)
    assert disk.looks == 1
    clock.now_seconds += LOOK_SECONDS_MAX
    space.require(100)
    assert disk.looks == 2


def test_looks_again_before_the_disk_can_be_full(
    space: FreeSpace, disk: _CountingDisk, clock: SteppingClock
) -> None:
    """Plan: so much is left above the floor as takes 10 ms to fill, beside something small."""
    disk.free = FLOOR + 2 * SMALL_BYTES_MAX + FILL_BYTES_PER_SECOND // 100
    space.require(SMALL_BYTES_MAX)
    clock.now_seconds += 0.009
    space.require(SMALL_BYTES_MAX)
    assert disk.looks == 1
    clock.now_seconds += 0.002
    disk.free = FLOOR
    with pytest.raises(OSError, match="would be left free") as refused:
        space.require(1)
    assert refused.value.errno == errno.ENOSPC
    assert disk.looks == 2


def test_looks_each_time_where_little_is_left_or_much_is_wanted(
    space: FreeSpace, disk: _CountingDisk
) -> None:
    """The floor holds to the byte then."""
    for _ in range(3):
        space.require(SMALL_BYTES_MAX + 1)
    assert disk.looks == 3
    disk.free = FLOOR + SMALL_BYTES_MAX + 1
    with pytest.raises(OSError, match="would be left free"):
        space.require(SMALL_BYTES_MAX + 2)


def test_a_file_system_that_does_not_tell_is_asked_again(
    space: FreeSpace, disk: _CountingDisk
) -> None:
    """What it told before does not count for what is large."""
    disk.error = OSError(errno.EIO, "broken")
    with pytest.raises(OSError, match="broken"):
        space.require(1)
    disk.error = None
    space.require(1)
    assert disk.looks == 2


def test_spare_files_go_before_anything_is_refused(
    space: FreeSpace, spares: SegmentRecycler, disk: _CountingDisk, tmp_path: Path
) -> None:
    """Plan: a spare file, and too little space. That it goes makes none on this disk: refused all the same."""
    old = tmp_path / "old"
    old.write_bytes(b"x" * 100)
    spares.retire([old])
    assert len(list(tmp_path.iterdir())) == 1
    disk.free = FLOOR - 1
    with pytest.raises(OSError, match="would be left free"):
        space.require(1)
    assert list(tmp_path.iterdir()) == []
    assert disk.looks == 2
