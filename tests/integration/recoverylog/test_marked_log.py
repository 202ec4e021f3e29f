"""A player that ends at a mark while the log's recorder goes on, and a fork that goes on from there in its own log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from broadsheet.consumer.recoverylog.hints import decode_hints, encode_hints
from broadsheet.consumer.recoverylog.player import Player
from broadsheet.consumer.recoverylog.recorder import ANCHOR
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.stores.recorded_log import MirroredFiles
from tests.support.live_logs import (
    NO_HINTS,
    TwinRecorder,
    create_log,
    files_in,
    recording,
    recover,
)
from tests.support.recorded_ops import LOG

MARK, CHILD_LOG = "/.broadsheet-fork.1", "logs/child"


@pytest.mark.parametrize("changes", [0, 1, 60])
async def test_fork_at_a_mark_has_the_files_of_that_moment_and_leaves_the_recorder_alone(
    journals: JournalClient, tmp_path: Path, changes: int
) -> None:
    """What the recorder appends right behind the mark, in the same append even, is no part of the fork. Both logs play
    to their own files afterwards, the fork's from its hints, which span both.
    """
    for log in (LOG, CHILD_LOG):
        await create_log(journals, log)
    parent = await recover(journals, NO_HINTS, tmp_path / "parent", author=1)
    twin_files = MirroredFiles()
    async with recording(journals, parent) as recorder, TaskGroup() as group:
        twin = TwinRecorder(recorder, twin_files)
        await asyncio.to_thread(twin.record, changes)
        await asyncio.wrap_future(recorder.barrier())
        player = Player(journals, NO_HINTS, tmp_path / "follower")
        playing = group.start_soon(player.run(), name="follow")
        await player.tailing.wait()
        player.stop_at_mark(MARK)
        recorder.set_property(MARK, "child")
        # A property is a small file.
        at_mark = {**twin.contents, MARK: b"child"}
        await asyncio.to_thread(twin.record, 20)
        await asyncio.wrap_future(recorder.barrier())
        forked = await playing
        assert files_in(forked.directory) == at_mark
        async with recording(journals, replace(forked, author=3), log=CHILD_LOG) as child:
            await asyncio.wrap_future(child.take_over())
            hints, covered = child.snapshot_hints()
            await asyncio.wrap_future(covered)
            await asyncio.to_thread(twin.record, 5)
            await asyncio.wrap_future(recorder.barrier())
        stored = decode_hints(encode_hints(hints))
        child_files = files_in((await recover(journals, stored, tmp_path / "child")).directory)
        child_files.pop(ANCHOR, None)
        assert child_files == at_mark
        replayed = await recover(journals, NO_HINTS, tmp_path / "again")
        assert files_in(replayed.directory) == {**twin.contents, MARK: b"child"}
        group.stop()
