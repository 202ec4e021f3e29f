"""Reading ahead of the player: bounded, and where it will jump to before it is time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.recoverylog.log_feed import AHEAD_BYTES, LINGER_SECONDS, LogFeeds
from broadsheet.consumer.recoverylog.playback import JUMP_BYTES, PlaybackPosition
from broadsheet.consumer.recoverylog.player import Player
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.journals.reader import Reader
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.eventually import eventually
from tests.support.live_logs import NO_HINTS, create_log, recording, recover
from tests.support.recorded_ops import LOG

MIB = 1 << 20
SECOND = "logs/second"
DEAD_MIB = 2 * AHEAD_BYTES // MIB


@pytest.fixture
async def log(journals: JournalClient) -> None:
    """A log of 24 MiB, each of which bears its number."""
    await create_log(journals)
    for number in range(24):
        await journals.append(LOG, bytes([number]) * MIB)


@asynccontextmanager
async def feeds_from(
    journals: JournalClient, position: PlaybackPosition, arrived: asyncio.Event | None = None
) -> AsyncIterator[LogFeeds]:
    """Yield feeds, and end them."""
    async with TaskGroup() as group:
        yield LogFeeds(journals, position, group, (arrived or asyncio.Event()).set)
        group.stop()


@pytest.mark.usefixtures("log")
async def test_feed_reads_ahead_no_more_than_its_bound(journals: JournalClient) -> None:
    """It stops there, and goes on as bytes are taken; all come in order, and then none until more are appended."""
    arrived = asyncio.Event()
    async with feeds_from(journals, PlaybackPosition(LOG, 0), arrived) as feeds:
        feed = feeds.current
        await eventually(lambda: feed.waiting_bytes > AHEAD_BYTES)
        assert feed.waiting_bytes < AHEAD_BYTES + MIB

        content = b""
        while len(content) < 24 * MIB:
            arrived.clear()
            span = feed.take()
            if span is None:
                await arrived.wait()
                continue
            assert span.offset == len(content)
            content += span.content
            assert feed.waiting_bytes < AHEAD_BYTES + MIB
        assert content[::MIB] == bytes(range(24))
        assert feed.take() is None
        arrived.clear()
        await journals.append(LOG, b"more")
        await arrived.wait()
        span = feed.take()
        assert span is not None
        assert (span.offset, span.content) == (24 * MIB, b"more")


@pytest.mark.usefixtures("log")
async def test_jump_that_was_prepared_waits_for_nothing(journals: JournalClient) -> None:
    """What stands there was read meanwhile, within the same bound; the feed before is closed."""
    async with feeds_from(journals, PlaybackPosition(LOG, 0)) as feeds:
        target = PlaybackPosition(LOG, 12 * MIB)
        feeds.prepare(target)
        prepared = feeds.next
        assert prepared is not None
        await eventually(lambda: prepared.waiting_bytes > AHEAD_BYTES)
        feeds.prepare(target)

        feeds.jump(target)
        assert (feeds.current, feeds.next) == (prepared, None)
        span = prepared.take()
        assert span is not None
        assert (span.offset, span.content[:1]) == (12 * MIB, b"\x0c")


@pytest.mark.usefixtures("log")
async def test_part_that_is_live_up_to_the_next_one_is_read_by_two_feeds(
    journals: JournalClient,
) -> None:
    """The hints did not know where it ends. Each byte is read once, but for a span, and all come in order."""
    arrived, taken = asyncio.Event(), list[int]()
    async with feeds_from(journals, PlaybackPosition(LOG, 0), arrived) as feeds:
        feeds.prepare(PlaybackPosition(LOG, 12 * MIB))
        played_to = read_bytes = 0
        while played_to < 24 * MIB:
            arrived.clear()
            span = feeds.take(played_to)
            if span is None:
                await arrived.wait()
                continue
            assert span.offset <= played_to
            played_to = span.end
            read_bytes += len(span.content)
            taken.append(span.content[0])
    assert sorted(taken) == taken
    assert read_bytes < 25 * MIB


@pytest.mark.usefixtures("log")
async def test_jump_elsewhere_drops_what_was_prepared(journals: JournalClient) -> None:
    """And what is near is not prepared, but read by the way."""
    async with feeds_from(journals, PlaybackPosition(LOG, 0)) as feeds:
        feeds.prepare(PlaybackPosition(LOG, 12 * MIB))
        feeds.jump(PlaybackPosition(LOG, 20 * MIB))
        assert (feeds.current.begin.offset, feeds.next) == (20 * MIB, None)
        feeds.prepare(PlaybackPosition(LOG, 20 * MIB + JUMP_BYTES))
        assert feeds.next is None
        await eventually(lambda: feeds.current.waiting_bytes == 4 * MIB)


@pytest.mark.usefixtures("log")
async def test_feed_in_a_hurry_goes_on_where_it_is_told_and_lingers_no_more(
    journals: JournalClient,
) -> None:
    """What was read ahead is read once more, and what was prepared is dropped; a second call changes nothing."""
    arrived = asyncio.Event()
    async with feeds_from(journals, PlaybackPosition(LOG, 0), arrived) as feeds:
        feeds.prepare(PlaybackPosition(LOG, 12 * MIB))
        await eventually(lambda: feeds.current.waiting_bytes > AHEAD_BYTES)

        feeds.hurry(PlaybackPosition(LOG, 23 * MIB))
        hurried = feeds.current
        feeds.hurry(PlaybackPosition(LOG, 0))
        assert (feeds.current, feeds.next, hurried.begin.offset) == (hurried, None, 23 * MIB)
        await eventually(lambda: hurried.waiting_bytes == MIB)
        await journals.append(LOG, b"more")
        await eventually(lambda: hurried.waiting_bytes == MIB + 4)


async def test_feed_of_what_cannot_be_read_tells_why(journals: JournalClient) -> None:
    """When everything before is taken, and as often as it is asked."""
    arrived = asyncio.Event()
    async with feeds_from(journals, PlaybackPosition("logs/none", 0), arrived) as feeds:
        await arrived.wait()
        for _ in range(2):
            with pytest.raises(JournalNotFoundError):
                feeds.current.take()


class Watched(JournalClient):
    """A client that notes where its reads begin, and how far the player was then."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.player: Player | None = None
        self.reads: list[tuple[str, int]] = []
        self.lingers: list[float] = []
        self.played_to: list[int] = []

    def reader(self, journal: str, **parameters: Any) -> Reader:
        """Return a reader."""
        if parameters.get("metadata_only"):
            return super().reader(journal, **parameters)
        assert self.player is not None
        self.reads.append((journal, parameters["offset"]))
        self.lingers.append(parameters["linger_seconds"])
        self.played_to.append(self.player.progress.offset)
        return super().reader(journal, **parameters)


async def log_with_gaps(
    journals: JournalClient, directory: Path, *, fork: bool
) -> tuple[FSMHints, list[tuple[str, int]]]:
    """Record three live parts, with much that is dead in between; return hints, and where the parts begin."""
    await create_log(journals)
    await create_log(journals, SECOND)
    owner = await recover(journals, NO_HINTS, directory / "owner", author=1)
    begins = []
    async with recording(journals, owner) as recorder:
        for number in range(3):
            await asyncio.wrap_future(recorder.barrier())
            begins.append((LOG, await journals.write_head(LOG)))
            recorder.create(f"/{number}")
            await asyncio.to_thread(recorder.write, f"/{number}", 0, b"live" * (MIB // 4))
            recorder.create("/dead")
            # More than a feed reads ahead before it is known where the one behind it begins.
            for _ in range(DEAD_MIB):
                await asyncio.to_thread(recorder.write, "/dead", 0, bytes(MIB))
            recorder.remove("/dead")
        hints, covered = recorder.snapshot_hints()
        await asyncio.wrap_future(covered)
    if not fork:
        return hints, begins
    heir = await recover(journals, hints, directory / "heir", author=2)
    async with recording(journals, heir, log=SECOND) as recorder:
        await asyncio.wrap_future(recorder.take_over())
        await asyncio.to_thread(recorder.write, "/1", 0, b"LIVE")
        hints, covered = recorder.snapshot_hints()
        await asyncio.wrap_future(covered)
    return hints, [*begins, (SECOND, 0)]


@pytest.mark.parametrize("fork", [False, True])
async def test_player_reads_the_next_live_part_while_it_plays_the_one_before(
    journals: JournalClient, tmp_path: Path, fork: bool
) -> None:
    """One read for each part, begun before the part ahead of it is played, and no other."""
    hints, begins = await log_with_gaps(journals, tmp_path, fork=fork)
    async with Watched(journals.address) as watched:
        watched.player = player = Player(watched, hints, tmp_path / "played")
        player.stop_at_head()
        recovered = await player.run()

    assert watched.reads == begins
    assert all(
        played_to < begin
        for played_to, (log, begin) in zip(watched.played_to[1:], begins[1:], strict=True)
        if log == LOG
    )
    contents = [(recovered.directory / str(number)).read_bytes() for number in range(3)]
    assert [len(each) for each in contents] == [MIB] * 3
    assert contents[1][:8] == (b"LIVElive" if fork else b"livelive")


async def test_player_lingers_at_the_head_until_it_is_asked_to_end(
    journals: JournalClient, tmp_path: Path
) -> None:
    """It then reads on, without, where it had come to; one that is asked before it begins never lingers."""
    hints, _ = await log_with_gaps(journals, tmp_path, fork=True)
    async with Watched(journals.address) as watched, TaskGroup() as group:
        watched.player = player = Player(watched, hints, tmp_path / "played")
        playing = group.start_soon(player.run(), name="play")
        await player.tailing.wait()
        reads = len(watched.reads)
        assert set(watched.lingers) == {LINGER_SECONDS}
        player.hand_over(3)
        recovered = await playing

        head = player.progress.offset + player.progress.behind_bytes
        assert watched.reads[reads:] == [(SECOND, watched.played_to[-1])]
        assert watched.lingers[reads:] == [0]
        assert recovered.author == 3
        assert head > watched.played_to[-1]

        watched.lingers.clear()
        watched.player = player = Player(watched, hints, tmp_path / "again")
        player.hand_over(4)
        assert (await player.run()).author == 4
        assert set(watched.lingers) == {0}


async def test_player_asked_to_end_at_a_mark_lingers_no_more_before_the_mark_is_there(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Who records the mark rests until it is played, so each millisecond of a delay is one of its keys."""
    hints, _ = await log_with_gaps(journals, tmp_path, fork=True)
    async with Watched(journals.address) as watched, TaskGroup() as group:
        watched.player = player = Player(watched, hints, tmp_path / "played")
        group.start_soon(player.run(), name="play")
        await player.tailing.wait()
        reads = len(watched.reads)
        player.stop_at_mark("/.broadsheet-fork.1")

        await eventually(lambda: len(watched.reads) > reads)

        assert watched.reads[reads:] == [(SECOND, watched.played_to[-1])]
        assert watched.lingers[reads:] == [0]
        group.stop()


async def test_reader_that_would_linger_too_long_is_refused(journals: JournalClient) -> None:
    """The error names the argument and its bounds."""
    with pytest.raises(
        ValidationError, match=r"linger_seconds: expected 0 to 0\.25 seconds, got 0\.3"
    ):
        journals.reader(LOG, linger_seconds=0.3)
