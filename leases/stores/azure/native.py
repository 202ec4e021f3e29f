"""Record store in Azure Blob Storage, in our native layout: one blob for each record, as JSON.

    {prefix}{key}    body: the record; metadata: record = the same in base64, so that a listing shows it

Azure does not show here which workers live, so observers watch the counters. The version is the blob's ETag.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Final

from azure.storage.blob.aio import ContainerClient

from broadsheet.leases.codec import decode, encode
from broadsheet.leases.errors import UnreadableLeaseError
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.store import OnUnreadable, log_unreadable
from broadsheet.leases.stores.azure.container import (
    NAME_CHARACTERS_MAX,
    PAGE_BLOBS,
    Blob,
    BlobContainer,
    BlobContent,
    BlobRefusedError,
    FencedVersion,
    ObservedContainer,
    decoded,
    encoded,
)
from broadsheet.runtime.errors import ValidationError

RECORD_METADATA: Final = "record"
RECORD_METADATA_BYTES_MAX: Final = 6_000
"""Azure accepts 8 KiB of metadata; a longer record is read from the body."""
IN_BODY: Final = "-"
"""Marks a record that is too long for metadata; it is not valid base64, so no record encodes to it."""


class BlobRecordStore(ObservedContainer):
    """Implements `broadsheet.leases.store.RecordStore` in one container, which is the store."""

    def __init__(
        self, container: ContainerClient, *, prefix: str = "", page_blobs: int = PAGE_BLOBS
    ) -> None:
        """Describe the store; Azure is not asked yet.

        Args:
            container: It need not exist; `delete_store` deletes it. Stays the caller's.
            prefix: What the names of blobs begin with, for several applications in one container.
            page_blobs: Blobs that a scan lists at a time.
        """
        super().__init__(BlobContainer(container, page_blobs=page_blobs))
        self._prefix = checked_prefix(prefix)

    async def get(self, key: str) -> Versioned | None:
        """Return the present record."""
        blob = await self._container.read(self._name(key))
        return None if blob is None else versioned(key, blob)

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield records; each page of Azure's listing is a snapshot."""
        for key, blob in await listed(self._container, self._prefix):
            try:
                found = await self._shown(key, blob)
            except UnreadableLeaseError as error:
                on_unreadable(error)
                continue
            if found is not None and owner in (None, found.record.owner):
                yield found

    async def create(self, record: LeaseRecord) -> Versioned:
        """Create a blob."""
        return await self._put(record, only_if=None)

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Replace the blob that has the expected ETag."""
        version = FencedVersion.parsed(expected.version)
        if version.fence != expected.fence:
            raise RecordConflictError(record.key, await self.get(record.key))
        return await self._put(record, only_if=version.etag)

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Delete a blob."""
        etag = None if expected is None else FencedVersion.parsed(expected.version).etag
        try:
            return await self._container.remove(self._name(key), only_if=etag)
        except BlobRefusedError as error:
            current = await self.get(key)
            if current is None:
                return False
            raise RecordConflictError(key, current) from error

    def _name(self, key: str) -> str:
        return self._prefix + encoded(key)

    async def _put(self, record: LeaseRecord, *, only_if: str | None) -> Versioned:
        content = BlobContent(body=encode(record).encode(), metadata=record_metadata(record))
        try:
            etag = await self._container.put(self._name(record.key), content, only_if=only_if)
        except BlobRefusedError as error:
            raise RecordConflictError(record.key, await self.get(record.key)) from error
        return fenced(record, etag)

    async def _shown(self, key: str, blob: Blob) -> Versioned | None:
        """Return the record of a listed blob; None if it has been deleted since."""
        if blob.metadata.get(RECORD_METADATA, IN_BODY) == IN_BODY:
            return await self.get(key)
        return fenced(decode(record_in(blob), key=key), blob.etag)


async def listed(container: BlobContainer, prefix: str) -> list[tuple[str, Blob]]:
    """List the blobs below a prefix with their keys, in key order, which differs from the order of names."""
    found = [
        (decoded(blob.name.removeprefix(prefix)), blob)
        async for blob in container.listing(prefix)
        if "/" not in blob.name.removeprefix(prefix)
    ]
    return sorted(found, key=lambda each: each[0])


def versioned(key: str, blob: Blob) -> Versioned:
    """Return the record in the body of a blob.

    Raises:
        UnreadableLeaseError: there is none.
    """
    return fenced(decode(blob.body or b"", key=key), blob.etag)


def fenced(record: LeaseRecord, etag: str) -> Versioned:
    """Return a record whose fence is its epoch, because blobs do not show which workers live."""
    fence = 0 if record.holder is None else record.epoch + 1
    return Versioned(
        record=record, version=FencedVersion(etag=etag, fence=fence).text(), fence=fence
    )


def record_metadata(record: LeaseRecord) -> dict[str, str]:
    """Return the metadata that shows a record in listings."""
    text = base64.b64encode(encode(record).encode()).decode()
    return {RECORD_METADATA: text if len(text) <= RECORD_METADATA_BYTES_MAX else IN_BODY}


def record_in(blob: Blob) -> bytes:
    """Return the JSON of a record in metadata; empty, which is no record, if it cannot be read."""
    try:
        return base64.b64decode(blob.metadata[RECORD_METADATA], validate=True)
    except ValueError:  # Neither base64 nor ASCII.
        return b""


def checked_prefix(prefix: str) -> str:
    """Validate a prefix of blob names.

    Raises:
        ValidationError: it is none.
    """
    if prefix and (not prefix.endswith("/") or prefix.startswith("/")):
        raise ValidationError(
            "prefix", f"expected nothing or a/path/ with a slash at its end, got {prefix!r:.80}"
        )
    # Keys of 255 characters need at most three times as many, except unprintable ones.
    if len(prefix) > NAME_CHARACTERS_MAX // 4:
        raise ValidationError("prefix", f"expected at most {NAME_CHARACTERS_MAX // 4} characters")
    return prefix
