"""Writes that are durable when they return."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from broadsheet.broker.disk import VECTORS_MAX, Disk

PIECES = [b"%05d " % number for number in range(VECTORS_MAX + 10)]


class _CountingDisk(Disk):
    """Counts calls of their own for syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def sync_data(self, fd: int) -> None:
        """Sync."""
        self.syncs += 1
        super().sync_data(fd)


def _written(disk: Disk, path: Path) -> bytes:
    with path.open("w+b") as file:
        assert disk.write_durably(file.fileno(), [b"", *PIECES], 3) == 3 + 6 * len(PIECES)
    return path.read_bytes()


def test_what_is_written_durably_is_all_there_in_one_call_a_piece(tmp_path: Path) -> None:
    """Without a sync of its own, where the system can do without."""
    disk = _CountingDisk()
    assert _written(disk, tmp_path / "file") == bytes(3) + b"".join(PIECES)
    assert disk.syncs == 0


def test_file_system_that_cannot_sync_in_a_write_is_synced_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once."""
    asked: list[int] = []
    pwritev = os.pwritev

    def refuse_flags(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        if flags:
            asked.append(flags)
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return pwritev(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", refuse_flags)
    disk = _CountingDisk()
    for _ in range(3):
        assert _written(disk, tmp_path / "file") == bytes(3) + b"".join(PIECES)
    assert asked == [os.RWF_DSYNC]
    assert disk.syncs == 3


def test_other_failures_are_the_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that failed must not be tried in another way: what the kernel could not write, it may have forgotten."""

    def fail(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwritev", fail)
    disk = _CountingDisk()
    with pytest.raises(OSError, match="Input/output error"):
        _written(disk, tmp_path / "file")
    assert disk.syncs == 0
