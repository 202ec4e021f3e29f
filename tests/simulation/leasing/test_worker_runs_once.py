"""When a worker may be run, on virtual time."""

from __future__ import annotations

from random import Random

import pytest

from broadsheet.leases.worker.settings import WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.virtual_loop import VirtualClock, run_virtual, running_loop
from tests.support.eventually import eventually
from tests.support.failing_records import FailingRecords
from tests.support.memory_records import MemoryRecords, MemoryRecordStore
from tests.support.memory_stream import MemoryStream
from tests.support.scripted_processor import Script, ScriptedProcessor


def _worker(store: FailingRecords) -> LeaseWorker:
    stream = MemoryStream(poll_seconds=100.0)
    stream.add("a", "b")
    return LeaseWorker(
        "w1",
        store=store,
        source=stream,
        new_processor=lambda: ScriptedProcessor(Script()),
        settings=WorkerSettings(take_seconds=1.0),
        clock=VirtualClock(running_loop()),
        random=Random(7),
    )


def test_worker_runs_once() -> None:
    """A second run is refused, while the first goes on undisturbed, and after it: its threads are gone then.

    `testSubsequentStarts` of LeaseCleanupManagerTest and LeaseGracefulShutdownHandlerTest, whose second start does
    nothing either; nobody is told there.
    """

    async def play() -> None:
        worker = _worker(FailingRecords(MemoryRecordStore(MemoryRecords())))
        async with TaskGroup() as group:
            group.start_soon(worker.run(), name="w1")
            await eventually(lambda: [*worker.held] == ["a", "b"])

            with pytest.raises(RuntimeError, match=r"worker w1 .*create another"):
                await worker.run()

            assert worker.held == {"a": 1, "b": 1}
            worker.stop()
        with pytest.raises(RuntimeError, match=r"worker w1 .*create another"):
            await worker.run()

    run_virtual(play())


def test_worker_that_was_stopped_before_it_ran_touches_nothing() -> None:
    """KCL `coordinator.Scheduler.run` after `shutdown`: it returns at once, and nothing of it is in the store."""

    async def play() -> None:
        records = MemoryRecords()
        store = FailingRecords(MemoryRecordStore(records))
        worker = _worker(store)
        worker.stop()

        await worker.run()

        assert (store.calls, records.found, worker.held) == ([], None, {})

    run_virtual(play())
