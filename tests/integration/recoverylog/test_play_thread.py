"""The thread that a player works on: one thing after the other, and its end behind all of them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from broadsheet.consumer.recoverylog.standby_files import PlayThread
from tests.support.eventually import eventually


async def test_error_reaches_the_player_and_the_end_comes_all_the_same(tmp_path: Path) -> None:
    """A disk that is full; what was begun is taken away."""
    thread = PlayThread()
    with pytest.raises(FileNotFoundError):
        await thread.run((tmp_path / "gone").unlink)
    await thread.end((tmp_path / "ended").touch)
    assert (tmp_path / "ended").exists()


async def test_end_comes_behind_what_is_under_way(tmp_path: Path) -> None:
    """Even if both are cancelled: files must not appear in a directory that was removed."""
    thread, may_go = PlayThread(), threading.Event()
    done: list[str] = []

    def play() -> None:
        assert may_go.wait(20)
        done.append("played")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await thread.run(play)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await thread.end(lambda: done.append("ended"))
    assert not done
    may_go.set()
    await eventually(lambda: done == ["played", "ended"])
