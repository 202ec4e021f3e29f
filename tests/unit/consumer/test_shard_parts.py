"""The small parts of a shard: statuses, worker thread, input queue, progress, checkpoints."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future

import pytest

from broadsheet.consumer.errors import ShardStoppedError
from broadsheet.consumer.shard.progress import Progress
from broadsheet.consumer.shard.replica_status import (
    ERROR_LENGTH_MAX,
    ERRORS_MAX,
    TRUNCATED,
    failed_status,
    reduced,
    truncated,
)
from broadsheet.consumer.shard.worker import ShardThread
from broadsheet.journals.message.checkpoint import build_checkpoint, read_through_of, start_offset
from broadsheet.wire.shard_pb2 import Checkpoint, ReplicaStatus


def test_reduced_status_keeps_the_further_code() -> None:
    """A late STANDBY does not hide that the replica is PRIMARY."""
    primary = ReplicaStatus(code=ReplicaStatus.PRIMARY)
    standby = ReplicaStatus(code=ReplicaStatus.STANDBY)

    assert reduced(primary, standby) == primary
    assert reduced(standby, primary) == primary


def test_reduced_status_keeps_new_errors_first_and_few() -> None:
    """Etcd holds every status in each member's memory; the newest cause is the one to read."""
    existing = failed_status([f"old {n}" for n in range(20)])

    status = reduced(existing, failed_status(["new", "old 0"]))

    assert status.code == ReplicaStatus.FAILED
    assert list(status.errors[:3]) == ["new", "old 0", "old 1"]
    assert len(status.errors) == ERRORS_MAX


def test_truncated_counts_code_points_and_marks() -> None:
    """Text at the bound stays; one more is cut, and says so."""
    assert truncated("ü" * ERROR_LENGTH_MAX) == "ü" * ERROR_LENGTH_MAX
    assert truncated("ü" * (ERROR_LENGTH_MAX + 1)) == "ü" * ERROR_LENGTH_MAX + TRUNCATED


def test_start_offset_is_the_later_of_checkpoint_and_bound() -> None:
    """A bound raised by the operator skips; a checkpoint never goes back. Asking inserts nothing."""
    checkpoint = Checkpoint()
    checkpoint.sources["in/a"].read_through = 10

    assert start_offset(checkpoint, "in/a", 5) == 10
    assert start_offset(checkpoint, "in/a", 15) == 15
    assert start_offset(checkpoint, "in/b", 5) == 5
    assert read_through_of(checkpoint) == {"in/a": 10}


def test_build_checkpoint_holds_sources_and_intents() -> None:
    """What the sequencer and the publisher give is what the store gets."""
    source = Checkpoint.Source(read_through=7)

    checkpoint = build_checkpoint({"in/a": source}, {"out/a": b"ack"})

    assert checkpoint == Checkpoint(sources={"in/a": source}, ack_intents={"out/a": b"ack"})


async def test_worker_runs_calls_in_order_on_one_thread() -> None:
    """Callbacks of a shard never overlap."""
    worker = ShardThread("shard-1")
    seen: list[tuple[int, int]] = []
    for number in range(100):
        worker.submit(lambda number: seen.append((number, threading.get_ident())), number)
    await worker.run(lambda: None)
    worker.close()

    assert [number for number, _ in seen] == list(range(100))
    assert len({thread for _, thread in seen}) == 1
    assert await worker.join(timeout_seconds=20)
    with pytest.raises(ShardStoppedError):
        worker.submit(lambda: None)


async def test_worker_hands_errors_to_the_caller_and_lives_on() -> None:
    """A failing call fails its caller only."""
    worker = ShardThread("shard-1")

    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 / 0)

    assert await worker.run(lambda: 2) == 2
    worker.close()


async def test_worker_join_tells_of_a_stuck_call() -> None:
    """A callback that never returns must not keep the process from stopping."""
    worker = ShardThread("shard-1")
    released = threading.Event()
    call: Future[bool] = worker.submit(released.wait, 30)
    worker.close()

    assert not await worker.join(timeout_seconds=0.05)
    released.set()
    assert call.result(20)
    assert await worker.join(timeout_seconds=20)


async def test_progress_wakes_waiters_and_tells_of_the_end() -> None:
    """A reader waits for offsets, and learns if they will never come."""
    progress = Progress(["in/a"])
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async with asyncio.TaskGroup() as group:
        reached = group.create_task(progress.wait_for({"in/a": 10}, ended=ended))
        never = group.create_task(progress.wait_for({"in/a": 99}, ended=ended))
        await asyncio.sleep(0)
        progress.update({"in/a": 5}, {})
        await asyncio.sleep(0)
        assert not reached.done()
        progress.update({"in/a": 10}, {"out/a": 3})
        assert await reached
        ended.set_result(None)

    assert not never.result()
    assert progress.copies() == ({"in/a": 10}, {"out/a": 3})


class _CountedProgress(Progress):
    """Counts how often requests look whether they may go on."""

    looks = 0

    def has_read(self, offsets: Mapping[str, int]) -> bool:
        """Count, and answer."""
        self.looks += 1
        return super().has_read(offsets)


async def test_progress_wakes_only_those_who_may_go_on() -> None:
    """Thousands of Stats that wait for a far offset must cost a transaction nothing: when each of them looked again
    after every transaction, 16,384 of them took a member's loop, and with it its lease.
    """
    progress = _CountedProgress(["in/a", "in/b"])
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def wait(**offsets: int) -> Coroutine[object, object, bool]:
        asked = {name.replace("_", "/"): offset for name, offset in offsets.items()}
        return progress.wait_for(asked, ended=ended)

    async with asyncio.TaskGroup() as group:
        far = [group.create_task(wait(in_a=1_000_000 + number)) for number in range(2_000)]
        near = group.create_task(wait(in_a=10, in_b=7))
        await asyncio.sleep(0)
        before = progress.looks
        for offset in range(100):
            progress.update({"in/a": offset}, {})
            await asyncio.sleep(0)
        progress.update({"in/b": 7}, {})
        assert await near
        assert progress.looks - before < 10
        for each in far[:1_500]:
            each.cancel()
        await asyncio.sleep(0)
        progress.update({"in/a": 1_001_500}, {})
        assert await far[1_500]
        ended.set_result(None)

    assert [each.result() for each in far[1_501:]] == [False] * 499


def _futures() -> int:
    """Return the futures of this process; each request waits for one."""
    gc.collect()
    return sum(type(each) is asyncio.Future for each in gc.get_objects())


@pytest.mark.parametrize("awaits", [(), ("rollback",)], ids=["read", "held"])
async def test_progress_forgets_requests_that_gave_up(awaits: tuple[str, ...]) -> None:
    """Stats with deadlines come again and again for what does not move, also while the attempt still awaits something:
    each left a few hundred bytes for as long as the attempt lasted.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()
    progress = Progress(["in/a", "in/b"], awaits=awaits)

    def wait(journal: str) -> asyncio.Task[bool]:
        return loop.create_task(progress.wait_for({journal: 1_000_000}, ended=ended))

    staying = [wait("in/a") for _ in range(50)]
    await asyncio.sleep(0)
    before = _futures()
    for _ in range(500):
        asked = [wait("in/a"), wait("in/b")]
        await asyncio.sleep(0)
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)

    assert _futures() - before < 100
    ended.set_result(None)
    assert [await each for each in staying] == [False] * 50


async def test_nobody_is_let_through_before_it_is_known_where_publications_end() -> None:
    """Offsets that a checkpoint has read are no answer yet: who reads on downstream would miss some."""
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    progress = Progress(["in/a"], awaits=("one", "other"))
    progress.update({"in/a": 10}, {})
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(progress.wait_for({"in/a": 5}, ended=ended))
        assert await progress.wait_for({}, ended=ended), "who asks for nothing need not wait"
        progress.told("one")
        progress.told("one")
        await asyncio.sleep(0)
        assert not waiting.done()
        progress.update({}, {"out/a": 7})
        progress.told("other")

    assert waiting.result()
    assert progress.copies() == ({"in/a": 10}, {"out/a": 7})
    ended.set_result(None)
    assert not await Progress(["in/a"], awaits=("one",)).wait_for({"in/a": 1}, ended=ended)
