"""Record stores in Azure Blob Storage, as two processes see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from azure.storage.blob.aio import ContainerClient

from broadsheet.leases.stores.azure.eph import EphRecordStore
from broadsheet.leases.stores.azure.event_hubs import EventHubsRecordStore
from broadsheet.leases.stores.azure.native import BlobRecordStore

AzureStore = BlobRecordStore | EphRecordStore | EventHubsRecordStore
SCOPE = "ns.servicebus.windows.net/clicks/$default"
"""What Azure's processors put before the names of their blobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSubject:
    """In a container of its own."""

    container: ContainerClient
    store: AzureStore
    rival: AzureStore
    names: str
    """What names of blobs begin with."""
    history_steps: int = 40
    """Length of random histories: Azurite takes its time."""

    async def spoil(self, key: str) -> None:
        """Write no JSON."""
        await self.container.upload_blob(f"{self.names}{key}", b"{", overwrite=True)


@asynccontextmanager
async def azure_containers(connection_string: str) -> AsyncIterator[list[ContainerClient]]:
    """Two processes' clients of a container that is not there yet; it ends with the server, which is faster."""
    name = f"leases-{uuid4().hex}"
    first = ContainerClient.from_connection_string(connection_string, name)
    second = ContainerClient.from_connection_string(connection_string, name)
    async with first, second:
        yield [first, second]


@asynccontextmanager
async def native_subject(connection_string: str) -> AsyncIterator[AzureSubject]:
    """In the layout of our own."""
    async with azure_containers(connection_string) as containers:
        stores = [
            BlobRecordStore(container, prefix="app/", page_blobs=10) for container in containers
        ]
        yield AzureSubject(container=containers[0], store=stores[0], rival=stores[1], names="app/")


@asynccontextmanager
async def eph_subject(connection_string: str) -> AsyncIterator[AzureSubject]:
    """In that of Event Processor Host."""
    async with azure_containers(connection_string) as containers, AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(EphRecordStore(container, lease_seconds=15))
            for container in containers
        ]
        yield AzureSubject(
            container=containers[0], store=stores[0], rival=stores[1], names="$default/"
        )


@asynccontextmanager
async def event_hubs_subject(connection_string: str) -> AsyncIterator[AzureSubject]:
    """In that of Azure's event processors."""
    async with azure_containers(connection_string) as containers:
        stores = [EventHubsRecordStore(container, scope=SCOPE) for container in containers]
        yield AzureSubject(
            container=containers[0], store=stores[0], rival=stores[1], names=f"{SCOPE}/ownership/"
        )
