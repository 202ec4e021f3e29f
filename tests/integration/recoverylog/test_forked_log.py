"""A shard's state goes on in another log: played from both, fenced in both."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broadsheet.consumer.errors import LogFencedError
from broadsheet.consumer.recoverylog.player import Recovered
from broadsheet.consumer.recoverylog.recorder import ANCHOR
from broadsheet.journals.client import JournalClient
from broadsheet.testing.stores.recorded_log import MirroredFiles
from broadsheet.wire.labels import label_set
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.live_logs import (
    NO_HINTS,
    TwinRecorder,
    create_log,
    files_in,
    recording,
    recover,
)
from tests.support.recorded_ops import LOG, OpChain

SECOND, THIRD = "logs/second", "logs/third"


@pytest.fixture
async def logs(journals: JournalClient) -> None:
    """Three logs; the second has been somebody else's, and is longer than the first at first."""
    for name in (LOG, SECOND, THIRD):
        await create_log(journals, name)
    other = OpChain(99)
    content = other.create("/other").framed + other.write(1, 0, bytes(5000)).framed
    await journals.append(SECOND, content, union_registers=label_set(("author", "other")))


async def played(journals: JournalClient, hints: FSMHints, directory: Path) -> dict[str, bytes]:
    """Return the files that a log plays to; an anchor is none."""
    recovered = await recover(journals, hints, directory)
    files = files_in(recovered.directory)
    files.pop(ANCHOR, None)
    return files


def logs_of(hints: FSMHints) -> set[str]:
    """Return the logs in which something is live."""
    return {segment.log or hints.log for node in hints.live_nodes for segment in node.segments}


async def owner_with_files(
    journals: JournalClient, directory: Path, twin_files: MirroredFiles
) -> tuple[Recovered, FSMHints]:
    """Record into the first log, and return its next owner."""
    first = await recover(journals, NO_HINTS, directory / "first", author=1)
    async with recording(journals, first) as recorder:
        await asyncio.to_thread(TwinRecorder(recorder, twin_files).record, 60)
        hints, covered = recorder.snapshot_hints()
        await asyncio.wrap_future(covered)
    return await recover(journals, hints, directory / "second", author=2), hints


@pytest.mark.usefixtures("logs")
async def test_state_goes_on_in_another_log(journals: JournalClient, tmp_path: Path) -> None:
    """And in a third one. Hints of each moment play to the files of then and what came after, though the first ones
    touch nothing in the new log; the old owner is fenced, and so is who wrote into the new log before.
    """
    files = MirroredFiles()
    owner, hints = await owner_with_files(journals, tmp_path, files)
    all_hints = {}
    for number, log in enumerate((SECOND, THIRD)):
        async with recording(journals, owner, log=log) as recorder:
            await asyncio.wrap_future(recorder.take_over())
            twin = TwinRecorder(recorder, files, seed=number)
            for changes in (0, 1, 30):
                await asyncio.to_thread(twin.record, changes)
                hints, covered = recorder.snapshot_hints()
                await asyncio.wrap_future(covered)
                all_hints[log, changes] = hints
            response = await journals.append(log, b"")
            registers = {label.name: label.value for label in response.registers.labels}
            assert registers == {"author": str(number + 2)}
        for (name, changes), each in all_hints.items():
            if name == log:
                directory = tmp_path / f"{number}-{changes}"
                assert await played(journals, each, directory) == twin.contents
        owner = await recover(journals, hints, tmp_path / f"owner-{number}", author=number + 3)
    spanning = [each for each in all_hints.values() if len(logs_of(each)) > 1]
    assert len(spanning) >= 4


@pytest.mark.usefixtures("logs")
async def test_old_owner_of_the_first_log_is_fenced_there(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Who takes over plays the first log to its end, and no further operation of it counts."""
    first = await recover(journals, NO_HINTS, tmp_path / "first", author=1)
    async with recording(journals, first) as old:
        old.create("/a")
        await asyncio.wrap_future(old.barrier())
        second = await recover(journals, NO_HINTS, tmp_path / "second", author=2)
        async with recording(journals, second, log=SECOND) as recorder:
            await asyncio.wrap_future(recorder.take_over())
            hints, covered = recorder.snapshot_hints()
            await asyncio.wrap_future(covered)
        old.create("/late")
        with pytest.raises(LogFencedError):
            await asyncio.wrap_future(old.barrier())
    assert await played(journals, hints, tmp_path / "check") == {"/a": b""}


@pytest.mark.usefixtures("logs")
async def test_log_without_files_goes_on_in_another_one(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Hints without a file would have the new log read from its first byte, where nothing follows."""
    owner = await recover(journals, NO_HINTS, tmp_path / "first", author=1)
    async with recording(journals, owner, log=SECOND) as recorder:
        await asyncio.wrap_future(recorder.take_over())
        before, covered = recorder.snapshot_hints()
        recorder.create("/a")
        recorder.write("/a", 0, b"content")
        await asyncio.wrap_future(covered)
        after, covered = recorder.snapshot_hints()
        await asyncio.wrap_future(covered)

    for number, hints in enumerate((before, after)):
        assert await played(journals, hints, tmp_path / str(number)) == {"/a": b"content"}


@pytest.mark.usefixtures("logs")
async def test_recorder_that_did_not_take_the_new_log_over_is_fenced(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Its registers name somebody else, or nobody."""
    owner = await recover(journals, NO_HINTS, tmp_path / "first", author=1)
    for log in (SECOND, THIRD):
        async with recording(journals, owner, log=log) as recorder:
            recorder.create(f"/{log}")
            with pytest.raises(LogFencedError):
                await asyncio.wrap_future(recorder.barrier())
