"""What a recorder writes, a player reads: at a real broker, from any hints, while it goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broadsheet.consumer.errors import LogDataLossError, RecoveryLogError
from broadsheet.consumer.recoverylog.hints import decode_hints, encode_hints
from broadsheet.journals.client import JournalClient
from broadsheet.testing.stores.recorded_log import MirroredFiles
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.live_logs import (
    NO_HINTS,
    TwinRecorder,
    create_log,
    files_in,
    recording,
    recover,
    tailing,
)
from tests.support.recorded_ops import LOG, OpChain


@pytest.fixture
async def log(journals: JournalClient) -> None:
    """An empty recovery log."""
    await create_log(journals)


@pytest.mark.usefixtures("log")
async def test_files_follow_from_owner_to_owner(journals: JournalClient, tmp_path: Path) -> None:
    """Each recovers from hints of the one before, changes files at random, and makes hints at several moments. From
    all of them, and from none, the log plays to the same files, which are those of a dictionary.
    """
    hints, files = NO_HINTS, MirroredFiles()
    for author in (11, 22, 33):
        recovered = await recover(journals, hints, tmp_path / f"life-{author}", author=author)
        twin_files = files_in(recovered.directory)
        async with recording(journals, recovered) as recorder:
            twin = TwinRecorder(recorder, files, seed=author)
            assert twin_files == twin.contents
            all_hints = [NO_HINTS, hints]
            for _ in range(4):
                await asyncio.to_thread(twin.record, 40)
                hints, covered = recorder.snapshot_hints()
                await asyncio.wrap_future(covered)
                all_hints.append(decode_hints(encode_hints(hints)))
            await asyncio.to_thread(twin.record, 10)
            await asyncio.wrap_future(recorder.barrier())
        for number, each in enumerate(all_hints):
            played = await recover(journals, each, tmp_path / f"check-{author}-{number}")
            assert files_in(played.directory) == twin.contents
            assert played.head == await journals.write_head(LOG)
            exact = played.fsm.hints(LOG)
            again = await recover(journals, exact, tmp_path / f"exact-{author}-{number}")
            assert files_in(again.directory) == twin.contents


@pytest.mark.usefixtures("log")
async def test_standby_keeps_up_with_a_recorder(journals: JournalClient, tmp_path: Path) -> None:
    """It says that it is at the head, plays what comes, knows how far behind it is, and ends when told to."""
    first = await recover(journals, NO_HINTS, tmp_path / "one", author=1)
    async with (
        recording(journals, first) as recorder,
        tailing(journals, NO_HINTS, tmp_path / "standby") as standby,
    ):
        twin = TwinRecorder(recorder, MirroredFiles())
        progress = standby.player.progress
        await standby.player.tailing.wait()
        assert progress.tailing
        for _ in range(5):
            await asyncio.to_thread(twin.record, 30)
            await asyncio.wrap_future(recorder.barrier())
            head = await journals.write_head(LOG)
            await eventually(lambda head=head: progress.offset >= head)  # type: ignore[misc]
            assert (progress.behind_bytes, progress.behind_seconds) == (0, 0.0)
        assert progress.played_bytes == head
        assert progress.bytes_per_second > 0

        standby.player.stop_at_head()
        recovered = await standby.running
        assert files_in(recovered.directory) == twin.contents
        await asyncio.wrap_future(recorder.barrier())
    assert await journals.write_head(LOG) == head  # It left no trace.


@pytest.mark.usefixtures("log")
async def test_log_without_operations_plays_to_no_files(
    journals: JournalClient, tmp_path: Path
) -> None:
    """A shard's first life."""
    recovered = await recover(journals, NO_HINTS, tmp_path / "one", author=5)

    assert files_in(recovered.directory) == {}
    assert recovered.directory.is_dir()
    assert recovered.fsm.next_seq == 2
    assert recovered.head == await journals.write_head(LOG)


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("garbage", [b"x", b"1234567", b"\x66\x33\x93", b"no operation at all"])
async def test_log_that_ends_in_garbage_is_handed_over(
    journals: JournalClient, tmp_path: Path, garbage: bytes
) -> None:
    """Fewer bytes than a frame begins with, or more: they are no reason to wait."""
    await journals.append(LOG, garbage)
    async with asyncio.timeout(DEADLINE_SECONDS):
        first = await recover(journals, NO_HINTS, tmp_path / "one", author=1)
        async with recording(journals, first) as recorder:
            recorder.create("/a")
            await asyncio.wrap_future(recorder.barrier())
        await journals.append(LOG, garbage)
        second = await recover(journals, NO_HINTS, tmp_path / "two", author=2)
        async with recording(journals, second) as recorder:
            recorder.write("/a", 0, b"a")
            await asyncio.wrap_future(recorder.barrier())
        third = await recover(journals, NO_HINTS, tmp_path / "three")
    assert files_in(third.directory) == {"/a": b"a"}


@pytest.mark.usefixtures("log")
async def test_operation_without_an_end_is_told_not_waited_for(
    journals: JournalClient, tmp_path: Path
) -> None:
    """The write of a file lacks its last bytes, and would take our own operation for them. The log cannot be handed
    over, because nothing else may stand for the content of a file.
    """
    chain = OpChain(9)
    write = chain.create("/a").framed, chain.write(1, 0, bytes(1000)).framed[:-900]
    await journals.append(LOG, b"".join(write))

    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(RecoveryLogError, match=r"what stands at \d+ has no end"):
            await recover(journals, NO_HINTS, tmp_path / "one", author=1)
    assert not (tmp_path / "one").exists()


@pytest.mark.usefixtures("log")
async def test_foreign_bytes_at_the_end_of_a_log_are_completed_by_its_hand_over(
    journals: JournalClient, tmp_path: Path
) -> None:
    """A stranger appended something that looks like a long write, of no file that there is. The hand-over brings the
    rest of it along, and all that play the log find the hand-over and what is recorded then.
    """
    first = await recover(journals, NO_HINTS, tmp_path / "one", author=1)
    async with recording(journals, first) as recorder:
        recorder.create("/a")
        await asyncio.wrap_future(recorder.barrier())
    await journals.append(LOG, OpChain(9).write(1, 0, bytes(1000)).framed[:-900])

    async with asyncio.timeout(DEADLINE_SECONDS):
        second = await recover(journals, NO_HINTS, tmp_path / "two", author=2)
    async with recording(journals, second) as recorder:
        recorder.write("/a", 0, b"content")
        await asyncio.wrap_future(recorder.barrier())

    await recover(journals, NO_HINTS, tmp_path / "three")
    assert files_in(tmp_path / "three") == {"/a": b"content"}


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("lost", ["all", "some"])
async def test_log_that_ends_before_its_hints_is_loss(
    journals: JournalClient, tmp_path: Path, lost: str
) -> None:
    """The journal was deleted and made again, or its broker lost the end of it: nothing is recovered, the directory is
    removed, and the error says what to do.
    """
    first = await recover(journals, NO_HINTS, tmp_path / "one", author=1)
    async with recording(journals, first) as recorder:
        recorder.create("/a")
        await asyncio.wrap_future(recorder.barrier())
    head = await journals.write_head(LOG)
    played = await recover(journals, NO_HINTS, tmp_path / "two")
    hints = played.fsm.hints(LOG)
    segment = hints.live_nodes[0].segments[0]
    if lost == "all":
        segment.first_offset, segment.last_offset = head, 0
    else:
        segment.last_offset = head + 1

    with pytest.raises(
        LogDataLossError, match=rf"{LOG}: it ends at {head}.*shardctl shards rewind"
    ):
        await recover(journals, hints, tmp_path / "three", author=3)
    assert not (tmp_path / "three").exists()
    assert await journals.write_head(LOG) == head


@pytest.mark.usefixtures("log")
async def test_hints_of_operations_that_never_came_are_loss(
    journals: JournalClient, tmp_path: Path
) -> None:
    """A recorder's hints know no end; the log is read to its head, and what they name is not there."""
    first = await recover(journals, NO_HINTS, tmp_path / "one", author=1)
    async with recording(journals, first) as recorder:
        recorder.create("/a")
        await asyncio.wrap_future(recorder.barrier())
        hints, covered = recorder.snapshot_hints()
        await asyncio.wrap_future(covered)
    hints.live_nodes[0].segments[0].last_seq_no += 1

    with pytest.raises(LogDataLossError, match=r"before .* of the hints"):
        await recover(journals, hints, tmp_path / "two", author=2)


@pytest.mark.usefixtures("log")
async def test_cancelled_player_leaves_nothing(journals: JournalClient, tmp_path: Path) -> None:
    """A standby that is taken away removes its files before it is gone."""
    first = await recover(journals, NO_HINTS, tmp_path / "one", author=1)
    async with recording(journals, first) as recorder:
        recorder.create("/a")
        await asyncio.wrap_future(recorder.barrier())
    async with tailing(journals, NO_HINTS, tmp_path / "standby") as standby:
        await standby.player.tailing.wait()
        assert (tmp_path / "standby").exists()
    assert not (tmp_path / "standby").exists()


async def test_log_that_does_not_exist_is_told(journals: JournalClient, tmp_path: Path) -> None:
    """By its name, and at once."""
    with pytest.raises(Exception, match="logs/none"):
        await recover(journals, FSMHints(log="logs/none"), tmp_path / "one", author=1)
