"""How a process keeps native leases alive, on a real Azurite, with a clock and rounds that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from azure.storage.blob.aio import BlobLeaseClient, ContainerClient

from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.stores.azure.eph import EphRecordStore
from tests.support.azure_faults import faulty_container
from tests.support.azure_stores import azure_containers
from tests.support.stepping_clock import SteppingClock

pytestmark = pytest.mark.azurite

LEASE_SECONDS = 15


class _Rounds:
    """Sleeps until the test lets a round begin."""

    def __init__(self) -> None:
        self._asleep = asyncio.Event()
        self._go = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        assert seconds == LEASE_SECONDS / 3
        self._asleep.set()
        await self._go.wait()
        self._go.clear()

    async def run_one(self) -> None:
        """Let one round run from its beginning to its end."""
        await self._asleep.wait()
        self._asleep.clear()
        self._go.set()
        await self._asleep.wait()


@pytest.fixture
def clock() -> SteppingClock:
    """That of the process."""
    return SteppingClock(1_000.0)


@pytest.fixture
def rounds() -> _Rounds:
    """Those of the process."""
    return _Rounds()


@pytest.fixture
async def containers(azurite: str) -> AsyncIterator[list[ContainerClient]]:
    """Two processes' clients of a container that is there."""
    async with azure_containers(azurite) as containers:
        await containers[0].create_container()
        yield containers


@pytest.fixture
async def store(
    containers: list[ContainerClient], clock: SteppingClock, rounds: _Rounds
) -> AsyncIterator[EphRecordStore]:
    """The store of w1's process."""
    async with EphRecordStore(
        containers[0], lease_seconds=LEASE_SECONDS, clock=clock, sleep=rounds.sleep
    ) as store:
        yield store


@asynccontextmanager
async def _another_process(container: ContainerClient) -> AsyncIterator[LeaseManager]:
    async with EphRecordStore(container) as store:
        yield LeaseManager(store)


async def _held(manager: LeaseManager, worker: str = "w1") -> Versioned:
    await manager.create_lease(LeaseRecord(key="0"))
    seen = await manager.get_lease("0")
    assert seen is not None
    held = await manager.take(seen, worker)
    assert held is not None
    return held


async def test_held_lease_is_renewed(
    store: EphRecordStore, clock: SteppingClock, rounds: _Rounds
) -> None:
    """Each round moves the deadline, which is measured from before the request: nobody can have taken it until then."""
    await _held(LeaseManager(store))
    assert store.deadline_monotonic_seconds == clock.now_seconds + LEASE_SECONDS
    clock.now_seconds += LEASE_SECONDS / 3

    await rounds.run_one()

    assert store.deadline_monotonic_seconds == clock.now_seconds + LEASE_SECONDS


async def test_lease_that_azure_ended_is_dropped(
    store: EphRecordStore, containers: list[ContainerClient], rounds: _Rounds
) -> None:
    """Renewing it is refused, and it is free for others."""
    held = await _held(LeaseManager(store))
    await BlobLeaseClient(containers[1].get_blob_client("$default/0")).break_lease(0)

    await rounds.run_one()

    assert store.deadline_monotonic_seconds is None
    assert await LeaseManager(store).renew(held) is None


async def test_lease_that_was_not_renewed_in_time_is_never_renewed(
    store: EphRecordStore, containers: list[ContainerClient], clock: SteppingClock, rounds: _Rounds
) -> None:
    """Azure would renew what nobody took, but our holder may have stopped: then nobody would process."""
    await _held(LeaseManager(store))
    clock.now_seconds += LEASE_SECONDS

    await rounds.run_one()
    await rounds.run_one()

    assert store.deadline_monotonic_seconds is None
    properties = await containers[1].get_blob_client("$default/0").get_blob_properties()
    assert properties.lease.state == "leased"  # By Azure's clock, on which no time has passed.


async def test_assigned_lease_is_adopted(
    store: EphRecordStore,
    containers: list[ContainerClient],
    clock: SteppingClock,
    rounds: _Rounds,
) -> None:
    """Another process got it for our worker; from the next round on it is renewed here, and fenced as any."""
    await store.join("w1")
    async with _another_process(containers[1]) as leader:
        held = await _held(leader, "w2")
        assigned = await leader.assign(held, "w1")
        assert assigned is not None

        await rounds.run_one()

    assert store.deadline_monotonic_seconds == clock.now_seconds + LEASE_SECONDS
    assert await LeaseManager(store).renew(assigned) == assigned


async def test_lease_of_an_earlier_life_is_not_adopted(
    store: EphRecordStore, containers: list[ContainerClient], azurite: str, rounds: _Rounds
) -> None:
    """A worker that starts again under its name does not know what it had: its old leases must end."""
    client, faults = faulty_container(azurite, containers[1].container_name)
    async with client, EphRecordStore(client) as earlier:
        await _held(LeaseManager(earlier))
        faults.answer_busy_to = lambda _: True  # It dies, and gives nothing back.

    await store.join("w1")
    await rounds.run_one()

    assert store.deadline_monotonic_seconds is None


async def test_passed_on_lease_is_not_renewed(
    store: EphRecordStore, containers: list[ContainerClient], rounds: _Rounds
) -> None:
    """After a hand-off it is the other process's, with an id of its own."""
    manager = LeaseManager(store)
    handed = await manager.assign(await _held(manager), "w2", graceful=True)
    assert handed is not None
    assert _keeps(store)

    passed = await manager.assign(handed, "w2")

    assert passed is not None
    assert not _keeps(store)
    await rounds.run_one()
    assert not _keeps(store)
    async with _another_process(containers[1]) as other:
        assert await other.renew(passed) == passed


def _keeps(store: EphRecordStore) -> bool:
    return store.deadline_monotonic_seconds is not None
