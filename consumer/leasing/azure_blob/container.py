"""Blobs of one container, each written and removed on conditions; and the native leases on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from azure.core import MatchConditions
from azure.storage.blob import BlobProperties
from azure.storage.blob.aio import BlobLeaseClient, ContainerClient

from consumer.leasing.azure_blob.failures import BLOB_NOT_FOUND, RefusedError, answer_of

PAGE_BLOBS: Final = 5_000
"""Most blobs that Azure lists at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A blob as it was at some moment."""

    name: str
    etag: str
    """Which state of it this is, without quotes; native leases do not change it."""
    metadata: Mapping[str, str]
    """What was set; an empty value of it, or None, is empty."""
    body: bytes | None
    """None: not read, as in listings."""
    is_leased: bool
    """Whether somebody has the native lease."""
    modified_at: datetime
    """When it was written, in whole seconds of Azure's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a write puts in place of all that is there."""

    body: bytes = b""
    metadata: Mapping[str, str]


class BlobContainer:
    """A container, in the words of `consumer.leasing.azure_blob.failures`."""

    def __init__(self, client: ContainerClient, *, page_blobs: int = PAGE_BLOBS) -> None:
        """Use a client.

        Args:
            client: Of the container, which need not exist; stays the caller's.
            page_blobs: Blobs that are listed at a time.
        """
        self._client = client
        self._page_blobs = page_blobs

    async def exists(self) -> bool:
        """Return whether the container is there."""
        return await answer_of(self._client.exists())

    async def create(self) -> bool:
        """Create the container. False if it is there."""
        try:
            await answer_of(self._client.create_container(), writes=True)
        except RefusedError:
            return False
        return True

    async def delete(self) -> None:
        """Remove the container with all that is in it. No error if it is not there."""
        if await self.exists():
            await answer_of(self._client.delete_container(), writes=True)

    async def read(self, name: str) -> Blob | None:
        """Return a blob with its body; None if it is not there."""
        blob = self._client.get_blob_client(name)
        try:
            download = await answer_of(blob.download_blob())
            body = await answer_of(download.readall())
        except RefusedError:
            return None
        return _blob(name, download.properties, body)

    async def show(self, name: str) -> Blob | None:
        """Return a blob without its body; None if it is not there."""
        try:
            properties = await answer_of(self._client.get_blob_client(name).get_blob_properties())
        except RefusedError:
            return None
        return _blob(name, properties, None)

    async def listing(self, prefix: str) -> AsyncIterator[Blob]:
        """Yield blobs without their bodies, in no order that we rely on."""
        found = self._client.list_blobs(
            name_starts_with=prefix, include=["metadata"], results_per_page=self._page_blobs
        )
        pages = found.by_page()
        while True:
            page = await answer_of(anext(pages, None))
            if page is None:
                return
            async for properties in page:
                yield _blob(str(properties.name), properties, None)

    async def put(
        self, name: str, content: Content, *, only_if: str | None, lease_id: str | None = None
    ) -> str:
        """Write a blob.

        Not with Set Blob Metadata: Azurite, for one, ignores there that a blob must not exist.

        Args:
            name: Of the blob.
            content: What it is from now on.
            only_if: The etag that it must have; None: it must not be there.
            lease_id: Of its native lease, if somebody has it.

        Returns:
            Its etag.

        Raises:
            RefusedError: it has another etag, or another lease.
        """
        blob = self._client.get_blob_client(name)
        if only_if is None:
            request = blob.upload_blob(
                content.body, metadata=dict(content.metadata), overwrite=False
            )
        else:
            request = blob.upload_blob(
                content.body,
                metadata=dict(content.metadata),
                overwrite=True,
                **_unchanged(only_if),
                **_leased(lease_id),
            )
        return _plain(str((await answer_of(request, writes=True))["etag"]))

    async def remove(
        self, name: str, *, only_if: str | None = None, lease_id: str | None = None
    ) -> bool:
        """Remove a blob. False if it was not there.

        Args:
            name: Of the blob.
            only_if: The etag that it must have; None: any.
            lease_id: Of its native lease, if somebody has it.

        Raises:
            RefusedError: it has another etag, or another lease.
        """
        blob = self._client.get_blob_client(name)
        conditions = {} if only_if is None else _unchanged(only_if)
        try:
            await answer_of(blob.delete_blob(**conditions, **_leased(lease_id)), writes=True)
        except RefusedError as error:
            if error.code == BLOB_NOT_FOUND:
                return False
            raise
        return True

    async def acquire(self, name: str, lease_id: str, *, seconds: int, only_if: str) -> None:
        """Get the native lease of a blob that nobody leases.

        Raises:
            RefusedError: somebody has it, or the blob has another etag.
        """
        lease = self._lease(name, lease_id)
        await answer_of(lease.acquire(seconds, **_unchanged(only_if)), writes=True)

    async def change(self, name: str, lease_id: str, new_id: str, *, only_if: str) -> None:
        """Get the native lease of a blob from who has it; it lasts as long as a renewed one.

        Raises:
            RefusedError: it has another id, or ended; or the blob has another etag.
        """
        lease = self._lease(name, lease_id)
        await answer_of(lease.change(new_id, **_unchanged(only_if)), writes=True)

    async def renew(self, name: str, lease_id: str) -> None:
        """Let a native lease last from now on.

        Raises:
            RefusedError: it is another's.
        """
        await answer_of(self._lease(name, lease_id).renew(), writes=True)

    async def release(self, name: str, lease_id: str) -> None:
        """Give a native lease back.

        Raises:
            RefusedError: it is another's.
        """
        await answer_of(self._lease(name, lease_id).release(), writes=True)

    async def end_lease(self, name: str) -> None:
        """End a native lease, whoever has it.

        Raises:
            RefusedError: nobody has it.
        """
        blob = self._client.get_blob_client(name)
        await answer_of(BlobLeaseClient(blob).break_lease(0), writes=True)

    def _lease(self, name: str, lease_id: str) -> BlobLeaseClient:
        return BlobLeaseClient(self._client.get_blob_client(name), lease_id=lease_id)


def _blob(name: str, properties: BlobProperties, body: bytes | None) -> Blob:
    metadata: Mapping[str, str | None] = properties.metadata or {}
    return Blob(
        name=name,
        etag=_plain(str(properties.etag)),
        metadata={field.lower(): value or "" for field, value in metadata.items()},
        body=body,
        is_leased=properties.lease.state == "leased",
        modified_at=properties.last_modified,
    )


def _unchanged(etag: str) -> dict[str, Any]:  # Any: arguments of different types.
    return {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}


def _leased(lease_id: str | None) -> dict[str, Any]:  # Any: as above.
    return {} if lease_id is None else {"lease": lease_id}


def _plain(etag: str) -> str:
    """Return an etag as listings show it: without quotes."""
    return etag.strip('"')
