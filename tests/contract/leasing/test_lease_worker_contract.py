"""Workers over each backend, as two processes: shards are shared, handed over and given back."""

from __future__ import annotations

from allocator.runtime.task_group import TaskGroup
from consumer.leasing.core.position import Position
from consumer.leasing.manager import LeaseManager
from consumer.leasing.store import RecordStore
from consumer.leasing.worker.settings import StealWay, WorkerSettings
from consumer.leasing.worker.worker import LeaseWorker
from tests.support.eventually import eventually
from tests.support.lease_stores import LeaseSubject
from tests.support.memory_stream import MemoryStream
from tests.support.scripted_processor import BlockingProcessor, Script

SHARDS = ("s0", "s1", "s2", "s3")


def _settings(way: StealWay) -> WorkerSettings:
    return WorkerSettings(
        lease_seconds=6.0,
        renew_seconds=0.1,
        take_seconds=0.1,
        sync_seconds=0.2,
        graceful_seconds=5.0,
        steal=way,
        threads=4,
    )


def _worker(
    name: str, store: RecordStore, stream: MemoryStream, script: Script, way: StealWay
) -> LeaseWorker:
    return LeaseWorker(
        name,
        store=store,
        source=stream,
        new_processor=lambda: BlockingProcessor(script),
        settings=_settings(way),
    )


async def test_workers_share_hand_over_and_give_back(
    subject: LeaseSubject, manager: LeaseManager
) -> None:
    """One has all, a second claims its half, and gets what is given back; the first comes again, by hand-offs.

    Their processors block; they prepare and commit.
    """
    stream = MemoryStream(poll_seconds=0.05)
    stream.add(*SHARDS)
    for key in SHARDS:
        stream.put(key, key.encode())
    script = Script()
    first = _worker("w1", subject.store, stream, script, StealWay.CLAIM)
    second = _worker("w2", subject.rival, stream, script, StealWay.CLAIM)
    again = _worker("w1", subject.store, stream, script, StealWay.HAND_OFF)

    async with TaskGroup() as group:
        group.start_soon(first.run(), name="w1")
        await eventually(lambda: _has(first, 4))
        await eventually(lambda: _processed(script, 4))
        group.start_soon(second.run(), name="w2")
        await eventually(lambda: _has(second, 2))
        await eventually(lambda: _has(first, 2))
        for key in SHARDS:
            stream.put(key, key.encode())
        await eventually(lambda: _processed(script, 8))
        first.stop()
        await eventually(lambda: _has(second, 4))
        group.start_soon(again.run(), name="w1 again")
        await eventually(lambda: _has(again, 2))
        await eventually(lambda: _has(second, 2))
        second.stop()
        stream.replace(("s0",), ("s4", "s5"))
        await eventually(lambda: _has(again, 5))
        again.stop()

    assert sorted(script.data) == sorted([key.encode() for key in SHARDS] * 2)
    assert "MainThread" not in script.threads
    left = await manager.list_leases()
    assert {found.record.holder for found in left} == {None}
    checkpoints = {found.record.key: found.record.checkpoint for found in left}
    assert checkpoints["s1"] == stream.positions("s1")[-1]
    assert checkpoints["s4"] == Position("TRIM_HORIZON")


async def _has(worker: LeaseWorker, count: int) -> bool:
    assert len(worker.held) == count, worker.held
    return True


async def _processed(script: Script, count: int) -> bool:
    assert len(script.data) == count, script.data
    return True
