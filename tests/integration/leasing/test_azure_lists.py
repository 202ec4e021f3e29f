"""Listings of blobs: one that fails is not empty, and what is empty in one is nothing.

Event Processor Host (Azure/azure-event-hubs-node `processor/lib`) reports that a listing failed, and goes on as if no
blob were there.
"""

from __future__ import annotations

import pytest

from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.store import RecordStore
from broadsheet.leases.stores.azure.eph import EphRecordStore
from broadsheet.leases.stores.azure.event_hubs import EventHubsRecordStore
from broadsheet.leases.stores.azure.native import BlobRecordStore
from tests.support.azure_stores import azure_containers

pytestmark = pytest.mark.azurite


@pytest.mark.parametrize("layout", ["native", "eph", "event hubs"])
async def test_list_that_fails_is_not_empty(azurite: str, layout: str) -> None:
    """`getAllLeases`: the container is gone; who lists, or looks whether there is any, is told."""
    async with azure_containers(azurite) as containers:
        stores: dict[str, RecordStore] = {
            "native": BlobRecordStore(containers[0]),
            "eph": EphRecordStore(containers[0]),
            "event hubs": EventHubsRecordStore(containers[0]),
        }
        manager = LeaseManager(stores[layout])

        for ask in (manager.list_leases, manager.is_empty, lambda: manager.list_leases_of("w1")):
            with pytest.raises(InvalidStateError, match="create it"):
                await ask()


async def test_text_of_no_letters_is_none(azurite: str) -> None:
    """Azure's client shows an empty text in metadata as nothing if it lists, and as it is if it is asked for one."""
    async with azure_containers(azurite) as containers:
        store = EventHubsRecordStore(containers[0])
        await store.create_store()
        for name, metadata in (
            ("ns/hub/group/checkpoint/1", {"sequencenumber": "7", "offset": ""}),
            ("ns/hub/group/ownership/0", {"ownerid": ""}),
        ):
            await containers[0].get_blob_client(name).upload_blob(b"", metadata=metadata)
        shown = [each.metadata async for each in containers[0].list_blobs(include=["metadata"])]
        assert shown == [{"sequencenumber": "7", "offset": None}, {"ownerid": None}]

        read = [await store.get(f"ns/hub/group/{partition}") for partition in ("0", "1")]
        listed = [found async for found in store.scan()]

        assert listed == read
        released, checkpoint = listed
        assert (released.record.owner, released.fence) == (None, 0)
        assert checkpoint.record.checkpoint == Position("7")
        assert checkpoint.record.checkpoint.offset is None
        await store.delete_store()
