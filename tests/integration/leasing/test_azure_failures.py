"""What failures of Azure mean for a lease: lost answers, no capacity, no server, and being refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import uuid4

import pytest
from azure.storage.blob.aio import ContainerClient

from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError, InvalidStateError, ThrottlingError
from broadsheet.leases.facades.eph import CheckpointManager
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.azure.eph import EphRecordStore
from broadsheet.leases.stores.azure.event_hubs import EventHubsRecordStore
from broadsheet.leases.stores.azure.native import BlobRecordStore
from tests.support.azure_faults import FaultPolicy, faulty_container, writes
from tests.support.azure_stores import SCOPE

pytestmark = pytest.mark.azurite

STORES: dict[str, Callable[[ContainerClient], object]] = {
    "native": BlobRecordStore,
    "eph": EphRecordStore,
    "eventhubs": lambda container: EventHubsRecordStore(container, scope=SCOPE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    manager: LeaseManager
    checkpoints: CheckpointManager
    faults: FaultPolicy


@pytest.fixture(params=["native", "eph", "eventhubs"])
async def process(request: pytest.FixtureRequest, azurite: str) -> AsyncIterator[_Process]:
    """A process whose connection fails when the test says so."""
    client, faults = faulty_container(azurite, f"leases-{uuid4().hex}")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        store = STORES[request.param](client)
        if isinstance(store, EphRecordStore):
            await stack.enter_async_context(store)
        assert isinstance(store, BlobRecordStore | EphRecordStore | EventHubsRecordStore)
        await store.create_store()
        yield _Process(
            manager=LeaseManager(store), checkpoints=CheckpointManager(store), faults=faults
        )
        await store.delete_store()


async def test_write_whose_answer_is_lost_is_made_once(process: _Process) -> None:
    """Creating, acquiring, committing and releasing: each is found again by its name, and the lease is kept."""
    manager, faults = process.manager, process.faults

    faults.lose_answer_to = writes
    assert await manager.create_lease(LeaseRecord(key="0"))
    seen = await manager.get_lease("0")
    assert seen is not None
    faults.lose_answer_to = writes
    held = await manager.take(seen, "w1")
    assert held is not None
    assert (held.record.epoch, held.record.counter) == (1, 1)
    faults.lose_answer_to = writes
    committed = await manager.update(held, lambda record: rules.commit(record, Position("7")))
    assert committed is not None
    assert committed.record.counter == 2
    assert await manager.get_lease("0") == committed
    faults.lose_answer_to = writes
    evicted = await manager.evict(committed)
    assert evicted is not None
    assert evicted.record.owner is None
    assert faults.lost_answers == 4


async def test_busy_server_is_told_from_a_lost_lease(process: _Process) -> None:
    """Back off and try again: nothing was written, and the lease is held."""
    manager, faults = process.manager, process.faults
    await manager.create_lease(LeaseRecord(key="0"))
    seen = await manager.get_lease("0")
    assert seen is not None
    held = await manager.take(seen, "w1")
    assert held is not None

    faults.answer_busy_to = writes
    with pytest.raises(ThrottlingError):
        await process.checkpoints.update_checkpoint(held, Position("7", offset="7"))
    faults.answer_busy_to = None

    assert await manager.get_lease("0") == held
    committed = await process.checkpoints.update_checkpoint(held, Position("7", offset="7"))
    assert committed.record.checkpoint == Position("7", offset="7")


async def test_native_lease_whose_answer_is_lost_is_acquired(azurite: str) -> None:
    """Free or another's: trying again asks for the same lease id, so that nobody waits for it to end."""
    client, faults = faulty_container(azurite, f"leases-{uuid4().hex}")
    async with client, EphRecordStore(client) as store:
        await store.create_store()
        manager = LeaseManager(store)
        await manager.create_lease(LeaseRecord(key="0"))
        for lost_answers, worker in ((1, "w1"), (2, "w2")):
            seen = await manager.get_lease("0")
            assert seen is not None
            faults.lose_answer_to = lambda request: "comp=lease" in request.url

            held = await manager.take(seen, worker)

            assert faults.lost_answers == lost_answers
            assert held is not None
            assert held.record.owner == worker
            assert await manager.update(held, lambda record: record)
        await store.delete_store()


async def test_failing_update_raises(azurite: str) -> None:
    """Event Processor Host resolves the promise of an update that failed; its caller believes that it is stored."""
    client, _ = faulty_container(azurite, f"leases-{uuid4().hex}")
    async with client, EphRecordStore(client) as store:
        await store.create_store()
        manager = LeaseManager(store)
        await manager.create_lease(LeaseRecord(key="0"))
        seen = await manager.get_lease("0")
        assert seen is not None
        held = await manager.take(seen, "w1")
        assert held is not None
        await store.delete_store()

        with pytest.raises(InvalidStateError, match="create it"):
            await CheckpointManager(store).update_checkpoint(held, Position("7", offset="7"))


async def test_absent_server_is_no_answer() -> None:
    """Of a write it is not known whether it was made: an earlier attempt of the client may have been."""
    client, _ = faulty_container(
        "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=YQ==;BlobEndpoint=http://127.0.0.1:1/a;",
        "leases",
    )
    async with client:
        store = BlobRecordStore(client)

        with pytest.raises(DependencyError) as raised:
            await store.get("0")
        assert (raised.value.retryable, raised.value.outcome_unknown) == (True, False)
        with pytest.raises(DependencyError) as raised:
            await store.create(LeaseRecord(key="0"))
        assert raised.value.outcome_unknown


async def test_wrong_key_is_refused_for_good(azurite: str) -> None:
    """Trying again does not help, and nothing was written."""
    wrong = azurite.replace("AccountKey=E", "AccountKey=F")
    client, _ = faulty_container(wrong, "leases")
    async with client:
        with pytest.raises(InvalidStateError, match="Azure refuses"):
            await BlobRecordStore(client).create(LeaseRecord(key="0"))
