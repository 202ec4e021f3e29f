"""What a host of Azure's Event Processor Host does to its blobs, request by request, as another program would.

Source: Azure/azure-event-hubs-node processor/lib/azureBlob.ts, blobLeaseManager.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from azure.storage.blob.aio import BlobClient, BlobLeaseClient, ContainerClient

LEASE_SECONDS = 15


class EphHost:
    """A host of one name."""

    def __init__(self, container: ContainerClient, name: str) -> None:
        self._container = container
        self._name = name
        self.token = ""
        """Of the lease that it got last."""

    def blob(self, partition: str) -> BlobClient:
        """Return a partition's blob."""
        return self._container.get_blob_client(f"$default/{partition}")

    async def fields(self, partition: str) -> dict[str, Any]:
        """Return what stands in a blob."""
        return dict(json.loads(await (await self.blob(partition).download_blob()).readall()))

    async def create(self, partition: str, **fields: object) -> None:
        """Make a blob that nobody has leased."""
        body = {
            "partitionId": partition,
            "owner": "",
            "epoch": -1,
            "token": "",
            "sequenceNumber": 0,
        }
        await self.blob(partition).upload_blob(json.dumps(body | fields))

    async def acquire(self, partition: str) -> None:
        """Get the lease, from whoever has it, and write so."""
        fields = await self.fields(partition)
        new = str(uuid4())
        if (await self.blob(partition).get_blob_properties()).lease.state == "leased":
            await BlobLeaseClient(self.blob(partition), lease_id=fields["token"]).change(new)
        else:
            await BlobLeaseClient(self.blob(partition), lease_id=new).acquire(LEASE_SECONDS)
        self.token = new
        await self.update(partition, owner=self._name, token=new, epoch=fields["epoch"] + 1)

    async def update(self, partition: str, **changes: object) -> None:
        """Write fields under its lease; of those there it keeps the ones that it knows."""
        fields = await self.fields(partition)
        fields.pop("record", None)
        await self.blob(partition).upload_blob(
            json.dumps(fields | changes),
            overwrite=True,
            lease=BlobLeaseClient(self.blob(partition), lease_id=self.token),
            metadata={"owninghost": self._name},
        )
