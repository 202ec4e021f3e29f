"""Leaders over real stores, as two processes: one leads, assigns to both, and another goes on after it.

Origins, where a test names one, are in awslabs/amazon-kinesis-client; rewritten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.metrics import LeaseMetrics
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.store import RecordStore
from broadsheet.leases.worker.leader.lock import LEADER_KEY, LeaderLock, taken_row
from broadsheet.leases.worker.leader.roster import Presence, Roster
from broadsheet.leases.worker.settings import Balancing, WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.task_group import TaskGroup
from tests.support.dynamodb_stores import dynamodb_subject
from tests.support.eventually import eventually
from tests.support.lease_stores import EtcdSubject, LeaseSubject, etcd_subject
from tests.support.memory_stream import MemoryStream
from tests.support.scripted_processor import BlockingProcessor, Script
from tests.support.stepping_clock import SteppingClock

SHARDS = ("s0", "s1", "s2", "s3")
LED = WorkerSettings(
    balancing=Balancing.LEADER,
    lease_seconds=6.0,
    renew_seconds=0.1,
    take_seconds=0.1,
    discover_seconds=0.1,
    sync_seconds=5.0,
    graceful_seconds=5.0,
    rebalance_passes=1,
    threads=4,
)


@pytest.fixture(
    params=[
        pytest.param("etcd", marks=pytest.mark.etcd),
        pytest.param("kcl-java", marks=pytest.mark.moto),
    ]
)
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[tuple[LeaseSubject, ...]]:
    """The stores of leases and of the fleet."""
    async with AsyncExitStack() as stack:
        if request.param == "etcd":
            endpoint = request.getfixturevalue("etcd_server").endpoint
            yield (
                await stack.enter_async_context(etcd_subject(endpoint)),
                await stack.enter_async_context(etcd_subject(endpoint)),
            )
        else:
            client = request.getfixturevalue("dynamodb_client")
            yield (
                await stack.enter_async_context(dynamodb_subject(client, request.param)),
                await stack.enter_async_context(dynamodb_subject(client, "native")),
            )


def _worker(
    name: str, leases: RecordStore, fleet: RecordStore, stream: MemoryStream, script: Script
) -> LeaseWorker:
    return LeaseWorker(
        name,
        store=leases,
        fleet=fleet,
        source=stream,
        new_processor=lambda: BlockingProcessor(script),
        settings=LED,
    )


async def _has(worker: LeaseWorker, count: int) -> bool:
    assert len(worker.held) == count, worker.held
    return True


async def _processed(script: Script, count: int) -> bool:
    assert len(script.data) == count, script.data
    return True


def _shown(metrics: LeaseMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"broadsheet_{name}", labels) or 0.0


async def test_leader_assigns_hands_off_and_is_followed(stores: tuple[LeaseSubject, ...]) -> None:
    """One leads and has all; who joins gets half, by hand-offs; when the leader stops, the other leads and has all."""
    leases, fleet = stores
    stream, script = MemoryStream(poll_seconds=0.05), Script()
    stream.add(*SHARDS)
    for key in SHARDS:
        stream.put(key, key.encode())
    first = _worker("w1", leases.store, fleet.store, stream, script)
    second = _worker("w2", leases.rival, fleet.rival, stream, script)

    async with TaskGroup() as group:
        group.start_soon(first.run(), name="w1")
        await eventually(lambda: _has(first, 4))
        await eventually(lambda: _processed(script, 4))
        assert first.leads
        group.start_soon(second.run(), name="w2")
        await eventually(lambda: _has(second, 2))
        await eventually(lambda: _has(first, 2))
        for key in SHARDS:
            stream.put(key, key.encode())
        await eventually(lambda: _processed(script, 8))
        first.stop()
        await eventually(lambda: _has(second, 4))
        assert second.leads
        second.stop()

    assert sorted(script.data) == sorted([key.encode() for key in SHARDS] * 2)
    left = await LeaseManager(leases.store).list_leases()
    assert {found.record.holder for found in left} == {None}
    assert [found.record.key for found in await LeaseManager(fleet.store).list_leases()] == [
        LEADER_KEY
    ]
    assert _shown(first.metrics, "leases_assigned_total", worker="w1", how="hand-off") >= 2
    assert _shown(first.metrics, "leases_left_total", worker="w1", reason="lost") == 0


async def test_worker_discovers_what_was_assigned_until_it_stops(
    stores: tuple[LeaseSubject, ...],
) -> None:
    """DynamoDBLeaseCoordinatorIntegrationTest: testLeaseDiscoveryFutureRuns, testGetAllAssignments,
    stopLeaseTakerCancelsLeaseDiscoveryFuture.

    Another leads. What it assigns is discovered, and shown as held; nothing is after the worker stopped.
    """
    leases, fleet = stores
    stream = MemoryStream(poll_seconds=0.05)
    stream.add(*SHARDS)
    worker = _worker("w1", leases.store, fleet.store, stream, Script())
    manager = LeaseManager(leases.rival)
    await _follow(fleet.rival, "w9")
    await manager.create_store_if_not_exists()
    for key in SHARDS:
        await manager.create_lease(LeaseRecord(key=key, checkpoint=Position("TRIM_HORIZON")))

    async def assign(key: str) -> None:
        seen = await manager.get_lease(key)
        assert seen is not None
        assert await manager.assign(seen, "w1") is not None

    async with TaskGroup() as group:
        running = group.start_soon(worker.run(), name="w1")
        assert worker.held == {}
        await assign("s0")
        await eventually(lambda: _has(worker, 1))
        await assign("s1")
        await eventually(lambda: _has(worker, 2))
        assert worker.held == {"s0": 2, "s1": 2}  # Assigned, then taken.
        worker.stop()
        await running
        await assign("s2")
        await asyncio.sleep(0)
        assert worker.held == {}
        assert not worker.leads


async def _follow(fleet: RecordStore, leader: str) -> None:
    """Let a worker lead that does nothing."""
    manager = LeaseManager(fleet)
    await manager.create_store_if_not_exists()
    await fleet.join(leader)
    assert await taken_row(manager, LEADER_KEY, leader) is not None


def _lock(worker: str, fleet: RecordStore, clock: Clock) -> LeaderLock:
    return LeaderLock(worker, LeaseManager(fleet, clock=clock), lease_seconds=120.0)


async def test_one_leads_on_any_store(subject: LeaseSubject) -> None:
    """And is followed when it steps down; where nobody knows who lives, also when its row stands still for 120 s."""
    clock = SystemClock() if subject.store.tells_who_lives else SteppingClock()
    one, two = _lock("w1", subject.store, clock), _lock("w2", subject.rival, clock)

    assert await one.contend()
    assert not await two.contend()
    await one.step_down()
    assert not one.is_held
    assert await two.contend()
    assert not await one.contend()
    await two.renew()
    if isinstance(clock, SteppingClock):
        assert not await one.contend()
        clock.now_seconds += 120.1
        assert not two.is_held
        assert await one.contend()


async def test_workers_find_each_other_on_any_store(subject: LeaseSubject) -> None:
    """Each by its own row, which it takes away when it leaves."""
    managers = LeaseManager(subject.store), LeaseManager(subject.rival)
    one = Presence("w1", managers[0], LED)
    two = Presence("w2", managers[1], LED)
    roster = Roster(managers[0], LED)

    await one.beat()
    await two.beat()
    assert await roster.living() == {"w1", "w2"}
    await one.beat()
    await two.leave()
    assert await roster.living() == {"w1"}


@pytest.mark.etcd
async def test_etcd_tells_that_a_leader_is_gone(etcd_server: Any) -> None:
    """Its process ended without giving anything back: the row still names it, and nobody waits 120 s."""
    async with AsyncExitStack() as stack:
        subject: EtcdSubject = await stack.enter_async_context(etcd_subject(etcd_server.endpoint))
        await subject.store.create_store()
        clock = SystemClock()
        one, two = _lock("w1", subject.store, clock), _lock("w2", subject.rival, clock)
        assert await one.contend()
        assert not await two.contend()

        await subject.store.__aexit__(None, None, None)

        assert await two.contend()
        row = await LeaseManager(subject.rival).get_lease(LEADER_KEY)
        assert row is not None
        assert row.record.holder == "w2"
