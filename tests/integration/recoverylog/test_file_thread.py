"""Files that are changed beside the decoder: in order, within bounds, and with errors that reach the player."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from consumer.recoverylog.file_changes import CreateFile, FileChange, RemoveFile, WriteFile
from consumer.recoverylog.file_thread import WAITING_BYTES_MAX, FileThread
from consumer.recoverylog.played_files import STAGING, PlayedFiles
from tests.support.eventually import eventually
from tests.support.recorded_ops import LOG

BLOCK = bytes(1 << 20)


class SlowFiles(PlayedFiles):
    """A disk that is held up."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, LOG)
        self.may_go = threading.Event()
        self.batches: list[int] = []

    def apply(self, changes: Sequence[FileChange]) -> None:
        """Perform changes, when it may."""
        assert self.may_go.wait(20)
        self.batches.append(len(changes))
        super().apply(changes)


def block(number: int) -> WriteFile:
    """Return a write of a MiB."""
    return WriteFile(1, number * len(BLOCK), memoryview(BLOCK))


async def test_player_waits_for_a_slow_disk_at_a_bound(tmp_path: Path) -> None:
    """What comes while the disk is busy is one batch, and at some point nothing more comes."""
    files = SlowFiles(tmp_path / "files")
    thread = FileThread(files)
    await thread.run(files.prepare)
    await thread.write([CreateFile(1)])
    written = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            while True:
                await thread.write([block(written)])
                written += 1
    assert written == WAITING_BYTES_MAX // len(BLOCK)
    files.may_go.set()
    await thread.drain()
    assert files.batches == [1, written + 1]
    assert (tmp_path / "files" / STAGING / "1").stat().st_size == (written + 1) * len(BLOCK)
    await thread.end(files.discard)


async def test_parts_without_changes_wait_for_nothing(tmp_path: Path) -> None:
    """A player passes over what is dead, however much of it there is."""
    files = PlayedFiles(tmp_path / "files", LOG)
    thread = FileThread(files)
    await thread.run(files.prepare)
    async with asyncio.timeout(5):
        for _ in range(100):
            await thread.write([])
        await thread.drain()
    await thread.end(files.discard)


async def test_error_of_the_disk_reaches_the_player(tmp_path: Path) -> None:
    """At its next call; nothing is performed after it, and what was begun is taken away."""
    files = PlayedFiles(tmp_path / "files", LOG)
    thread = FileThread(files)
    await thread.run(files.prepare)
    await thread.write([RemoveFile(9)])
    with pytest.raises(FileNotFoundError):
        await thread.drain()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            await thread.write([CreateFile(1)])
    await thread.end(files.discard)
    assert not (tmp_path / "files").exists()


async def test_end_comes_behind_what_is_under_way(tmp_path: Path) -> None:
    """Even if it is cancelled: files must not appear in a directory that was removed."""
    files = SlowFiles(tmp_path / "files")
    thread = FileThread(files)
    await thread.run(files.prepare)
    await thread.write([CreateFile(1)])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await thread.end(files.discard)
    assert (tmp_path / "files").exists()
    files.may_go.set()
    await eventually(lambda: not (tmp_path / "files").exists())
    assert files.batches == [1]
