"""A log changes hands while its old recorder writes on, loses its registers, or its broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.errors import LogFencedError
from broadsheet.consumer.recoverylog.fence import author_text, fence_of
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.stores.recorded_log import MirroredFiles
from broadsheet.wire.journal_pb2 import AppendResponse
from broadsheet.wire.labels import label_set
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
from tests.support.recorded_ops import LOG


@pytest.fixture
async def log(journals: JournalClient) -> None:
    """An empty recovery log."""
    await create_log(journals)


class Busy:
    """A recorder at full speed, until it is told that it is fenced."""

    def __init__(self, recorder: Recorder, *, seed: int = 1) -> None:
        self._recorder = recorder
        self._twin = TwinRecorder(recorder, MirroredFiles(), seed=seed)
        self.states: list[dict[str, bytes]] = [{}]
        """The files at each barrier."""
        self.durable = 0
        """Index of the newest state that is known to be in the log."""

    async def run(self) -> LogFencedError:
        """Record until fenced, with two barriers under way at a time."""
        under_way: list[tuple[int, asyncio.Future[None]]] = []
        while True:
            await asyncio.to_thread(self._twin.record, 3)
            self.states.append(self._twin.contents)
            barrier = asyncio.wrap_future(self._recorder.barrier())
            under_way.append((len(self.states) - 1, barrier))
            if len(under_way) > 1:
                index, oldest = under_way.pop(0)
                try:
                    await oldest
                except LogFencedError as error:
                    for _, later in under_way:
                        with pytest.raises(LogFencedError):
                            await later
                    return error
                self.durable = index


async def registers_of(journals: JournalClient) -> dict[str, str]:
    """Return the log's registers."""
    response = await journals.append(LOG, b"")
    return {label.name: label.value for label in response.registers.labels}


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("seed", range(3))
async def test_log_is_taken_from_a_recorder_at_full_speed(
    journals: JournalClient, tmp_path: Path, seed: int
) -> None:
    """The new owner's attempts race with what the old one writes. Whatever the old one was told to be durable is
    recovered, and nothing after it that is not whole. Its barriers fail at once. Standbys that read along come to the
    same files, and go on with the new owner.
    """
    old = await recover(journals, NO_HINTS, tmp_path / "old", author=1)
    async with AsyncExitStack() as stack, asyncio.timeout(DEADLINE_SECONDS):
        busy = Busy(await stack.enter_async_context(recording(journals, old)), seed=seed)
        standbys = [
            await stack.enter_async_context(tailing(journals, NO_HINTS, tmp_path / f"standby-{n}"))
            for n in range(2)
        ]
        group = await stack.enter_async_context(TaskGroup())
        running = group.start_soon(busy.run(), name="busy")
        await eventually(lambda: busy.durable >= 10)

        new = await recover(journals, NO_HINTS, tmp_path / "new", author=2)
        fenced = await running
        assert LOG in str(fenced)
        assert await registers_of(journals) == {"author": author_text(2)}
        recovered = files_in(new.directory)
        assert recovered in busy.states[busy.durable :]

        async with recording(journals, new) as recorder:
            await asyncio.to_thread(recorder.create, "/of-the-new-owner")
            await asyncio.wrap_future(recorder.barrier())
        for standby in standbys:
            standby.player.stop_at_head()
            played = await standby.running
            assert files_in(played.directory) == recovered | {"/of-the-new-owner": b""}
            assert played.fsm.next_seq == new.fsm.next_seq
            assert played.fsm.next_checksum == new.fsm.next_checksum


class Overtaken(JournalClient):
    """A client whose first append that sets registers comes late: something else is appended before."""

    def __init__(
        self, address: str, before: Callable[[], Awaitable[None]], *, tells_fence: bool = True
    ) -> None:
        super().__init__(address)
        self._before = before
        self._tells_fence = tells_fence
        self.attempts = 0

    async def append(
        self, journal: str, content: bytes | Sequence[bytes | memoryview], **parameters: Any
    ) -> AppendResponse:
        """Append, the first time behind what comes before, and perhaps without telling of the fence."""
        if "union_registers" not in parameters:
            return await super().append(journal, content, **parameters)
        self.attempts += 1
        if self.attempts > 1:
            return await super().append(journal, content, **parameters)
        await self._before()
        response = await super().append(journal, content, **parameters)
        if not self._tells_fence:
            response.ClearField("registers")
        return response


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("tells_fence", "attempts"), [(True, 1), (False, 2)])
async def test_hand_over_that_others_come_before_recovers_what_they_wrote(
    journals: JournalClient, tmp_path: Path, tells_fence: bool, attempts: int
) -> None:
    """The old owner's operation takes our operation's number, and another player the log. We have the fence behind
    both: all that stands before it is recovered, and only we own the log. If we cannot know of it, we try again.
    """
    old = await recover(journals, NO_HINTS, tmp_path / "old", author=1)
    async with recording(journals, old) as recorder:

        async def record_and_take_over() -> None:
            recorder.create("/in-time")
            await asyncio.wrap_future(recorder.barrier())
            other = await recover(journals, NO_HINTS, tmp_path / "other", author=8)
            async with recording(journals, other) as others:
                others.create("/of-another")
                await asyncio.wrap_future(others.barrier())

        async with Overtaken(
            journals.address, record_and_take_over, tells_fence=tells_fence
        ) as late:
            new = await recover(late, NO_HINTS, tmp_path / "new", author=2)
            assert late.attempts == attempts
        recorder.create("/late")
        with pytest.raises(LogFencedError):
            await asyncio.wrap_future(recorder.barrier())
    assert files_in(new.directory) == {"/in-time": b"", "/of-another": b""}
    assert await registers_of(journals) == {"author": author_text(2)}
    async with recording(journals, new) as ours:
        ours.create("/ours")
        await asyncio.wrap_future(ours.barrier())
    final = await recover(journals, NO_HINTS, tmp_path / "final")
    assert files_in(final.directory) == {"/in-time": b"", "/of-another": b"", "/ours": b""}
    assert final.fsm.next_seq == new.fsm.next_seq


@pytest.mark.usefixtures("log")
async def test_log_goes_to_one_of_several_who_want_it(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Two players take over at the same time. Both believe to have it, one after the other; only the last one's
    commits are durable, and they are on top of all that the log holds.
    """
    async with TaskGroup() as group:
        attempts = [
            group.start_soon(
                recover(journals, NO_HINTS, tmp_path / str(author), author=author), name="take over"
            )
            for author in (1, 2)
        ]
    owners = sorted((each.result() for each in attempts), key=lambda each: each.head)
    outcomes: list[BaseException | None] = []
    for owner in owners:
        async with recording(journals, owner) as recorder:
            recorder.create(f"/of-{owner.author}")
            barrier = asyncio.wrap_future(recorder.barrier())
            outcomes.append((await asyncio.gather(barrier, return_exceptions=True))[0])

    assert isinstance(outcomes[0], LogFencedError)
    assert outcomes[1] is None
    final = await recover(journals, NO_HINTS, tmp_path / "final")
    assert files_in(final.directory) == {f"/of-{owners[1].author}": b""}


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("taken", [False, True])
async def test_lost_registers_fence_the_recorder(
    journals: JournalClient, tmp_path: Path, taken: bool
) -> None:
    """A journal without registers takes everybody's appends. The recorder notices that it is named no more, or that
    somebody else is, says so, and sends nothing more.
    """
    owner = await recover(journals, NO_HINTS, tmp_path / "one", author=1)
    async with recording(journals, owner) as recorder:
        recorder.create("/a")
        await asyncio.wrap_future(recorder.barrier())
        await journals.append(
            LOG,
            b"!",
            subtract_registers=fence_of(1),
            union_registers=label_set(("author", "other")) if taken else None,
        )
        recorder.write("/a", 0, b"x")
        told = "another recorder took over" if taken else "no longer name author 1"
        with pytest.raises(LogFencedError, match=told):
            await asyncio.wrap_future(recorder.barrier())
        head = await journals.write_head(LOG)

        for _ in range(3):
            recorder.write("/a", 1, b"y")
            with pytest.raises(LogFencedError, match=told):
                await asyncio.wrap_future(recorder.barrier())
        _, covered = recorder.snapshot_hints()
        with pytest.raises(LogFencedError):
            await asyncio.wrap_future(covered)
        assert await journals.write_head(LOG) == head


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[EmbeddedBrokerProcess]:
    """A broker in a process of its own."""
    with EmbeddedBrokerProcess(tmp_path / "broker" / "data") as process:
        yield process


@pytest.mark.e2e
async def test_recorder_and_standby_survive_a_killed_broker(
    broker_process: EmbeddedBrokerProcess, tmp_path: Path
) -> None:
    """Kill -9 under load. What was appended when the answer was lost may stand in the log twice; the files are those
    of a dictionary. A standby that is to take over while the broker is away does so once it is back.
    """
    async with JournalClient(
        broker_process.address, policy=TransportPolicy(patience_seconds=0.2)
    ) as journals:
        await create_log(journals)
        owner = await recover(journals, NO_HINTS, tmp_path / "one", author=1)
        async with (
            recording(journals, owner) as recorder,
            tailing(journals, NO_HINTS, tmp_path / "standby") as standby,
            TaskGroup() as group,
        ):
            twin = TwinRecorder(recorder, MirroredFiles())
            for round_ in range(60):
                await asyncio.to_thread(twin.record, 5)
                barrier = asyncio.wrap_future(recorder.barrier())
                if round_ in (20, 40):
                    group.start_soon(asyncio.to_thread(broker_process.restart), name="restart")
                await barrier
            broker_process.kill()
            standby.player.hand_over(2)
            group.start_soon(asyncio.to_thread(broker_process.start), name="start")
            taken = await standby.running
            assert files_in(taken.directory) == twin.contents
            again = await recover(journals, NO_HINTS, tmp_path / "again")
            assert files_in(again.directory) == twin.contents
            with pytest.raises(LogFencedError):
                await asyncio.wrap_future(recorder.barrier())
