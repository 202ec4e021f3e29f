"""A follower that fails: the disk of a standby is full for a while, and what it keeps is made again afterwards."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

from broadsheet.consumer.recoverylog.follower import FollowedFiles
from broadsheet.consumer.recoverylog.fsm import FileStateMachine
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.eventually import eventually

FIRST, SECOND = "/first", "/second"


class SizesOnAFullDisk:
    """Keeps the sizes of files, while there is room for them."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.is_full = True
        self.calls = 0
        self.resets = 0

    def follow(self, files: Path) -> None:
        """Look at each file."""
        self.calls += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.sizes = {each.name: each.stat().st_size for each in files.iterdir()}

    def reset(self) -> None:
        """Forget them."""
        self.resets += 1
        self.sizes = {}

    def stop(self) -> None:
        """Nothing: a look is short."""

    def discard(self) -> None:
        """Nothing is held."""


async def test_follower_that_failed_begins_again_and_catches_up(tmp_path: Path) -> None:
    """One write that fails must not leave a standby without its index for the rest of its life. No caller waits
    for the disk meanwhile, and links of removed files do not keep it full.
    """
    staging, fsm, follower = tmp_path / "staging", FileStateMachine(FSMHints()), SizesOnAFullDisk()
    staging.mkdir()
    followed = FollowedFiles(tmp_path, staging, "log", follower, retry_seconds=0.01)
    (staging / "1").write_bytes(b"12345")
    fsm.links[FIRST] = 1
    await asyncio.to_thread(followed.link, fsm, 10)

    assert not await followed.through(10)
    await eventually(lambda: follower.calls >= 2)
    (staging / "2").write_bytes(b"123")
    fsm.links = {SECOND: 2}
    await asyncio.to_thread(followed.link, fsm, 20)
    await eventually(lambda: not (tmp_path / ".followed" / "first").exists())
    follower.is_full = False

    async def has_caught_up() -> bool:
        return await followed.through(20)

    await eventually(has_caught_up)
    assert follower.sizes == {"second": 3}
    assert follower.resets >= 1
    followed.stop()
    await asyncio.to_thread(followed.end)
