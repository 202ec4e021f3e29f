"""Azure's own consumer clients, whole, over record stores: events, checkpoints, and processors that come and go.

Origins are in azure-event-hubs-node `processor/tests/eph.spec.ts` and azure-sdk-for-js `eventProcessor.spec.ts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from azure.eventhub import EventData
from azure.eventhub.aio import PartitionContext

from broadsheet.leases.errors import InvalidPositionError, ShutdownError
from broadsheet.leases.facades.blocking_event_hubs import SyncRecordCheckpointStore
from broadsheet.leases.facades.event_hubs import RecordCheckpointStore
from broadsheet.leases.store import RecordStore
from broadsheet.leases.stores.azure.event_hubs import EventHubsRecordStore
from broadsheet.leases.stores.sql.store import SqlRecordStore
from broadsheet.runtime.task_group import TaskGroup
from tests.support.azure_stores import azure_containers
from tests.support.eventually import eventually
from tests.support.offline_hub import GROUP, HUB, NAMESPACE, OfflineConsumerClient, OfflineHub

EVENTS = 5


@pytest.fixture
async def blobs(azurite: str) -> AsyncIterator[RecordStore]:
    """The blobs that Azure's own checkpoint store writes, in a container that is there."""
    async with azure_containers(azurite) as containers:
        store = EventHubsRecordStore(containers[0])
        await store.create_store()
        yield store


@pytest.fixture
async def rows(tmp_path: Path) -> AsyncIterator[RecordStore]:
    """A table that is there."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/leases.db")
    store = SqlRecordStore(engine)
    await store.create_store()
    yield store
    engine.dispose()


class _Run:
    """A client that receives, and what its handler saw."""

    def __init__(self, hub: OfflineHub, store: RecordStore) -> None:
        self.client = OfflineConsumerClient(hub, RecordCheckpointStore(store))
        self.seen: list[str] = []
        self.contexts: dict[str, PartitionContext] = {}

    async def on_event(self, context: PartitionContext, event: EventData | None) -> None:
        assert event is not None
        self.contexts[context.partition_id] = context
        await context.update_checkpoint(event)
        self.seen.append(event.body_as_str())


@asynccontextmanager
async def _running(hub: OfflineHub, store: RecordStore) -> AsyncIterator[_Run]:
    """Receive until the end of the block, and give everything back."""
    run = _Run(hub, store)
    async with TaskGroup() as group:
        group.start_soon(run.client.receive(run.on_event, starting_position="-1"), name="processor")
        yield run
        await run.client.close()
        group.stop()


def _all_events(hub: OfflineHub) -> set[str]:
    return {event.body_as_str() for events in hub.events.values() for event in events}


async def _numbers(store: RecordStore) -> list[int]:
    found = await RecordCheckpointStore(store).list_checkpoints(NAMESPACE, HUB, GROUP)
    return [each["sequence_number"] for each in found]


@pytest.mark.azurite
async def test_restarted_client_goes_on_from_its_checkpoints(blobs: RecordStore) -> None:
    """`receive from the checkpointed offset`, `has a checkpoint`: the starting position counts once only."""
    hub = OfflineHub(3)
    for partition in hub.partition_ids:
        hub.send(partition, EVENTS)
    async with _running(hub, blobs) as first:
        await eventually(lambda: len(first.seen) == 3 * EVENTS)
    assert await _numbers(blobs) == [EVENTS - 1] * 3
    for partition in hub.partition_ids:
        hub.send(partition, 2)

    async with _running(hub, blobs) as second:
        await eventually(lambda: len(second.seen) == 3 * 2)

    assert not set(first.seen) & set(second.seen)
    assert set(first.seen) | set(second.seen) == _all_events(hub)


async def _owners(rows: RecordStore) -> dict[str, str]:
    """Return who owns each partition."""
    listed = await RecordCheckpointStore(rows).list_ownership(NAMESPACE, HUB, GROUP)
    return {each["partition_id"]: each["owner_id"] for each in listed}


async def _moved(rows: RecordStore, before: dict[str, str]) -> str | None:
    """Return a partition that has another owner than before, if there is one."""
    now = await _owners(rows)
    return next((each for each, owner in now.items() if owner and owner != before[each]), None)


async def test_multiple_clients_share_the_partitions(rows: RecordStore) -> None:
    """`multiple eph`: a second client takes over half; each event is processed, and who lost a partition is fenced."""
    hub = OfflineHub(2)
    async with _running(hub, rows) as first:
        for partition in hub.partition_ids:
            hub.send(partition, 1)
        await eventually(lambda: len(first.seen) == 2)
        owners = await _owners(rows)
        async with _running(hub, rows) as second:
            stolen = await eventually(lambda: _moved(rows, owners)) or ""
            for partition in hub.partition_ids:
                hub.send(partition, EVENTS)
            await eventually(lambda: set(first.seen) | set(second.seen) == _all_events(hub))
            await eventually(lambda: len(second.seen) >= EVENTS)

            late = hub.events[stolen][-1]
            with pytest.raises(ShutdownError):
                await first.contexts[stolen].update_checkpoint(late)

    assert await _numbers(rows) == [EVENTS, EVENTS]


async def test_checkpoint_that_fails_is_told_to_the_error_handler(rows: RecordStore) -> None:
    """Python `test_partition_processor_process_update_checkpoint_error`: of that partition, of no other."""
    hub = OfflineHub(2)
    for partition in hub.partition_ids:
        hub.send(partition, 1)
    await RecordCheckpointStore(rows).update_checkpoint(
        {
            "fully_qualified_namespace": NAMESPACE,
            "eventhub_name": HUB,
            "consumer_group": GROUP,
            "partition_id": "1",
            "sequence_number": 99,
            "offset": "-1",  # To go back to: the hub was made again.
        }
    )
    run = _Run(hub, rows)
    failed: list[tuple[str, Exception]] = []

    async def on_error(context: PartitionContext | None, error: Exception) -> None:
        assert context is not None
        failed.append((context.partition_id, error))

    async with TaskGroup() as group:
        group.start_soon(
            run.client.receive(run.on_event, on_error=on_error, starting_position="-1"),
            name="processor",
        )
        await eventually(lambda: bool(failed) and run.seen == ["0/0"])
        await run.client.close()
        group.stop()

    assert {partition for partition, _ in failed} == {"1"}
    assert all(isinstance(error, InvalidPositionError) for _, error in failed)
    assert await _numbers(rows) == [0, 99]


def test_sync_store_has_the_same_answers(tmp_path: Path) -> None:
    """The class that Azure's client without a loop takes."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/{uuid4().hex}.db")
    rows = SqlRecordStore(engine)
    names = {
        "fully_qualified_namespace": NAMESPACE,
        "eventhub_name": HUB,
        "consumer_group": GROUP,
        "partition_id": "0",
    }
    place = names | {"sequence_number": 7, "offset": "1:7"}
    asyncio.run(rows.create_store())
    with SyncRecordCheckpointStore(lambda: nullcontext(rows)) as store:
        [claimed] = store.claim_ownership([names | {"owner_id": "w1"}])
        [listed] = store.list_ownership(NAMESPACE, HUB, GROUP)
        age_seconds = abs(listed.pop("last_modified_time") - claimed["last_modified_time"])
        assert (listed | {"last_modified_time": claimed["last_modified_time"]}) == claimed
        assert age_seconds < 1
        store.update_checkpoint(place)
        assert list(store.list_checkpoints(NAMESPACE, HUB, GROUP)) == [place]
        [stolen] = store.claim_ownership([claimed | {"owner_id": "w2"}])
        assert list(store.claim_ownership([claimed])) == []
        assert stolen["owner_id"] == "w2"
    engine.dispose()
