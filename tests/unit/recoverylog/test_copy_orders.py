"""Copies of what is played: made when enough is, and not at all once the player has other things to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broadsheet.consumer.errors import RecoveryLogError
from broadsheet.consumer.recoverylog.fsm import FileStateMachine, Fnode
from broadsheet.consumer.recoverylog.playback import CreateFile, FileChange, WriteFile
from broadsheet.consumer.recoverylog.standby_files import (
    CopyOrders,
    LiveFiles,
    PlayedFiles,
    PlayThread,
    copy_files,
)
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.recorded_op_pb2 import FSMHints

LOG = "test/log"


class Played:
    """A player's files, with one of them, and copies of them."""

    def __init__(self, directory: Path) -> None:
        self.files = PlayedFiles(directory / "played", LOG)
        self.files.prepare()
        self.thread = PlayThread()
        self.fsm = FileStateMachine(FSMHints(log=LOG))
        self.fsm.fnodes[1] = Fnode("/state.db")
        self.fsm.properties["/IDENTITY"] = "x"
        self.ordered = asyncio.Event()
        self.orders = CopyOrders(self.files, on_order=self.ordered.set)

    async def write(self, content: bytes) -> None:
        """Play what makes the file."""
        changes: list[FileChange] = [CreateFile(1), WriteFile(1, 0, memoryview(content))]
        await self.thread.run(lambda: self.files.apply(changes))


async def test_copy_is_made_once_enough_is_played_and_has_all_of_it(tmp_path: Path) -> None:
    """The player's own files stay as they are."""
    played = Played(tmp_path)
    await played.write(b"content")
    async with TaskGroup() as group:
        copying = group.start_soon(played.orders.order(tmp_path / "copy", through=100), name="copy")
        await played.ordered.wait()

        await played.orders.make(played.thread, played.fsm, played_to=99)
        assert not copying.done()
        await played.orders.make(played.thread, played.fsm, played_to=100)

        assert await copying
    assert (tmp_path / "copy" / "state.db").read_bytes() == b"content"
    assert (tmp_path / "copy" / "IDENTITY").read_text() == "x"
    await played.thread.end(played.files.close)


async def test_copy_is_refused_when_the_player_must_end(tmp_path: Path) -> None:
    """A promotion waits for nobody who reads: neither those that wait are served, nor those that come."""
    played = Played(tmp_path)
    async with TaskGroup() as group:
        waiting = group.start_soon(played.orders.order(tmp_path / "copy", through=100), name="copy")
        await played.ordered.wait()

        played.orders.refuse()

        assert not await waiting
        assert not await played.orders.order(tmp_path / "copy", through=0)
        await played.orders.make(played.thread, played.fsm, played_to=100)
    assert not (tmp_path / "copy").exists()
    await played.thread.end(played.files.close)


async def test_copy_that_fails_is_told_and_playing_goes_on(tmp_path: Path) -> None:
    """A full disk, or whatever it is, is the matter of whoever wants the copy."""
    played = Played(tmp_path)
    (tmp_path / "copy").mkdir()

    async def order() -> None:
        with pytest.raises(FileExistsError):
            await played.orders.order(tmp_path / "copy", through=0)

    async with TaskGroup() as group:
        group.start_soon(order(), name="copy")
        await played.ordered.wait()

        await played.orders.make(played.thread, played.fsm, played_to=0)
    await played.write(b"goes on")
    await played.thread.end(played.files.close)


@pytest.mark.parametrize("path", ["/../outside", "/", "/a\0b"])
def test_copy_of_a_path_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    """A log says which paths its files have, and may have been written by anybody."""
    (tmp_path / "1").write_bytes(b"")

    with pytest.raises(RecoveryLogError, match="is no file below"):
        _copied(tmp_path, path, lambda: True)


def test_copy_ends_at_the_next_chunk_once_nobody_wants_it(tmp_path: Path) -> None:
    """A large file must not hold a promotion up; unless its blocks are shared, which takes no time."""
    (tmp_path / "1").write_bytes(b"x" * 100)

    whole = _copied(tmp_path, "/state.db", lambda: False)

    copied = tmp_path / "copy" / "state.db"
    assert whole == (copied.stat().st_size == 100)


def _copied(directory: Path, path: str, is_wanted: Callable[[], bool]) -> bool:
    live = LiveFiles({1: (path,)}, {})
    return copy_files(live, directory, directory / "copy", log=LOG, is_wanted=is_wanted)
