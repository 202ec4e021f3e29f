"""A recorder between a store's thread and the event loop: bounded, and asked for hints while it is busy."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from broadsheet.consumer.errors import RecoveryLogError
from broadsheet.consumer.recoverylog.fsm import FileStateMachine
from broadsheet.consumer.recoverylog.player import Recovered
from broadsheet.consumer.recoverylog.recorder import UNSENT_BYTES_MAX, Recorder
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalUnavailableError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.stores.recorded_log import MirroredFiles
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.live_logs import NO_HINTS, TwinRecorder, create_log, files_in, recording, recover
from tests.support.recorded_ops import LOG

BLOCK = bytes(range(256)) * 4096
"""A MiB."""


@pytest.fixture
async def owner(journals: JournalClient, tmp_path: Path) -> Recovered:
    """The first owner of a log."""
    await create_log(journals)
    return await recover(journals, NO_HINTS, tmp_path / "one", author=1)


def recorder_of(owner: Recovered, appends: AppendService) -> Recorder:
    """Return a recorder with an append service of the test's."""
    return Recorder(owner.fsm, appends, log=LOG, author=owner.author, head=owner.head)


async def test_store_waits_while_the_broker_does_not_take_more(
    journals: JournalClient, owner: Recovered, tmp_path: Path
) -> None:
    """A store records faster than the broker takes it: its thread waits once so many bytes are on their way, and goes
    on when there is room. Memory is bounded, and nothing is lost.
    """
    blocks = 2 * UNSENT_BYTES_MAX // len(BLOCK)

    def store() -> None:
        recorder.create("/a")
        for number in range(blocks):
            recorder.write("/a", number * len(BLOCK), BLOCK)

    appends = AppendService(journals)  # It takes appends, and performs none yet.
    recorder = recorder_of(owner, appends)
    async with TaskGroup() as group:
        storing = group.start_soon(asyncio.to_thread(store), name="store")
        await eventually(lambda: appends.queued_bytes > UNSENT_BYTES_MAX)
        waiting_at = recorder.recorded_bytes
        assert UNSENT_BYTES_MAX < waiting_at < UNSENT_BYTES_MAX + 2 * len(BLOCK)
        assert not storing.done()

        group.start_soon(appends.run(), name="appends")
        await storing
        await asyncio.wrap_future(recorder.barrier())
        assert recorder.recorded_bytes > blocks * len(BLOCK)
        await appends.close()
    recovered = await recover(journals, NO_HINTS, tmp_path / "two")
    assert (recovered.directory / "a").read_bytes() == BLOCK * blocks


async def test_store_that_waits_for_room_goes_on_when_appends_fail(
    journals: JournalClient, owner: Recovered
) -> None:
    """Its thread must end when the shard does, and its commit must fail."""

    def store() -> None:
        recorder.create("/a")
        for number in range(3 * UNSENT_BYTES_MAX // len(BLOCK)):
            recorder.write("/a", number * len(BLOCK), BLOCK)

    appends = AppendService(journals)
    recorder = recorder_of(owner, appends)
    async with TaskGroup() as group:
        storing = group.start_soon(asyncio.to_thread(store), name="store")
        await eventually(lambda: appends.queued_bytes > UNSENT_BYTES_MAX)
        await appends.close()
        await storing
        with pytest.raises(JournalUnavailableError, match="closed"):
            await asyncio.wrap_future(recorder.barrier())


def test_recorder_outlives_its_event_loop(tmp_path: Path) -> None:
    """The process ends while a store's thread still records: nothing waits for ever."""

    async def recorder_of_a_loop_that_ends() -> Recorder:
        async with JournalClient("http://127.0.0.1:1") as nowhere:
            owner = Recovered(FileStateMachine(FSMHints(log=LOG)), tmp_path, LOG, 0, 1)
            return recorder_of(owner, AppendService(nowhere))

    recorder = asyncio.run(recorder_of_a_loop_that_ends())
    recorder.create("/a")
    for number in range(2 * UNSENT_BYTES_MAX // len(BLOCK)):
        recorder.write("/a", number * len(BLOCK), BLOCK)
    with pytest.raises(RecoveryLogError, match="its event loop is closed"):
        recorder.barrier().result(timeout=1)


async def test_hints_are_consistent_while_a_store_is_busy(
    journals: JournalClient, owner: Recovered, tmp_path: Path
) -> None:
    """The loop asks for hints while a thread records: each of them plays, and to the same files."""
    enough = threading.Event()

    def store() -> None:
        while not enough.is_set():
            twin.record(20)
            recorder.barrier().result()

    async with recording(journals, owner) as recorder, TaskGroup() as group:
        twin = TwinRecorder(recorder, MirroredFiles())
        group.start_soon(asyncio.to_thread(store), name="store")
        distinct: dict[bytes, FSMHints] = {}
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(distinct) < 7:
                hints, covered = recorder.snapshot_hints()
                await asyncio.wrap_future(covered)
                distinct[hints.SerializeToString()] = hints
        enough.set()
    for number, hints in enumerate(list(distinct.values())[::3]):
        played = await recover(journals, hints, tmp_path / f"check-{number}")
        twice = await recover(journals, NO_HINTS, tmp_path / f"whole-{number}")
        assert files_in(played.directory) == files_in(twice.directory)


async def test_offsets_of_hints_grow_with_the_log(
    journals: JournalClient, owner: Recovered
) -> None:
    """They are lower bounds, as of the newest append that is known to be there; ends are not known."""
    async with recording(journals, owner) as recorder:
        bounds = []
        for path in ("/a", "/b", "/c"):
            recorder.create(path)
            await asyncio.wrap_future(recorder.barrier())
            bounds.append(await journals.write_head(LOG))
        hints, _ = recorder.snapshot_hints()
    segments = [node.segments[0] for node in hints.live_nodes]
    assert [each.first_offset for each in segments] == [owner.head, *bounds[:2]]
    assert {each.last_offset for each in segments} == {0}
    assert hints.log == LOG


async def test_barrier_that_nobody_waits_for_harms_no_other(
    journals: JournalClient, owner: Recovered
) -> None:
    """Who waits may be cancelled; the recorder goes on."""
    async with recording(journals, owner) as recorder:
        recorder.create("/a")
        first, second = recorder.barrier(), recorder.barrier()
        assert not first.cancel()
        await asyncio.wrap_future(second)
        assert first.result(timeout=1) is None
