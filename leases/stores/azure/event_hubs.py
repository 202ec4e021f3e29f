"""Record store in the blobs of Azure's event processors, shared with running processors in other languages.

Our own writers are fenced from each other. A processor of another program takes leases from us as from its own kind,
and its checkpoints are not fenced, as they never were.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import structlog
from azure.storage.blob.aio import ContainerClient

from broadsheet.leases.errors import LeasingError, UnreadableLeaseError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.store import OnUnreadable, log_unreadable, reading_row
from broadsheet.leases.stores.azure.container import (
    Blob,
    BlobContainer,
    BlobContent,
    BlobRefusedError,
    FencedVersion,
    ObservedContainer,
)
from broadsheet.leases.stores.azure.event_hubs_blobs import (
    CHECKPOINT,
    OWNERSHIP,
    HubNames,
    checkpoint_content,
    commit_of,
    fenced_checkpoint,
    lone_checkpoint,
    merged,
    needs_body,
    ownership_content,
    versioned,
)

REPEATS_MAX: Final = 3
"""Attempts to write a checkpoint over a rival's, which may be a paused worker of ours."""

_log = structlog.get_logger()


class EventHubsRecordStore(ObservedContainer):
    """Implements `broadsheet.leases.store.RecordStore` in the container of Azure's checkpoint stores."""

    def __init__(
        self,
        container: ContainerClient,
        *,
        scope: str | None = None,
    ) -> None:
        """Describe the store; Azure is not asked yet.

        Args:
            container: That of the processors. `delete_store` deletes it. Stays the caller's.
            scope: `namespace/hub/group` in lower case, e.g. `ns.servicebus.windows.net/clicks/$default`; then the key
                of a record is a partition's id. None: all of the container, and keys are
                `namespace/hub/group/partition`, as `broadsheet.leases.facades.event_hubs` has them.

        Raises:
            ValidationError: the scope is none.
        """
        super().__init__(BlobContainer(container))
        self._names = HubNames(scope)

    async def get(self, key: str) -> Versioned | None:
        """Return the present record."""
        ownership = await self._container.read(self._names.name(OWNERSHIP, key))
        # Ownership first: a checkpoint older than the record's may have been repeated since.
        checkpoint = await self._container.show(self._names.name(CHECKPOINT, key))
        with reading_row(key):
            return merged(key, ownership, checkpoint)

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield records, from two listings, one after the other."""
        ownerships = await self._listed(OWNERSHIP)
        checkpoints = await self._listed(CHECKPOINT)
        for key in sorted(ownerships.keys() | checkpoints.keys()):
            try:
                found = await self._shown(key, ownerships.get(key), checkpoints.get(key))
            except UnreadableLeaseError as error:
                on_unreadable(error)
                continue
            if found is not None and owner in (None, found.record.owner):
                yield found

    async def create(self, record: LeaseRecord) -> Versioned:
        """Create the blobs of a record; a checkpoint blob alone counts as an existing record."""
        if await self._container.show(self._names.name(CHECKPOINT, record.key)) is not None:
            raise RecordConflictError(record.key, await self.get(record.key))
        return await self._put(record, only_if="", over="", before=None)

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Replace the ownership blob, and repeat the checkpoint in its own blob.

        A change of only the checkpoint is written to the checkpoint's blob alone, because Azure's own processors take a
        changed ownership blob for another claim.
        """
        version = FencedVersion.parsed(expected.version)
        if version.fence != expected.fence:
            raise RecordConflictError(record.key, await self.get(record.key))
        content = lone_checkpoint(expected.record, record)
        if content is not None:
            return await self._put_checkpoint(record, content, version)
        written = await self._put(
            record,
            only_if=version.etag,
            over=version.checkpoint_etag,
            before=expected.record.checkpoint,
        )
        if record.epoch == expected.record.epoch:
            return written
        return await self._fenced_off(written)

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Delete both blobs, the checkpoint last, so that a failed deletion leaves a checkpoint alone."""
        ownership = self._names.name(OWNERSHIP, key)
        checkpoint = self._names.name(CHECKPOINT, key)
        if expected is None:
            removed = [await self._container.remove(name) for name in (ownership, checkpoint)]
            return any(removed)
        current = await self.get(key)
        if current is None:
            return False
        if current.version != expected.version:
            raise RecordConflictError(key, current)
        version = FencedVersion.parsed(expected.version)
        try:
            if version.etag:
                await self._container.remove(ownership, only_if=version.etag)
            if version.checkpoint_etag:
                await self._container.remove(checkpoint, only_if=version.checkpoint_etag)
        except BlobRefusedError as error:
            raise RecordConflictError(key, await self.get(key)) from error
        return True

    async def _listed(self, kind: str) -> dict[str, Blob]:
        found: dict[str, Blob] = {}
        async for blob in self._container.listing(self._names.prefix(kind)):
            key = self._names.key_of(kind, blob.name)
            if key is not None:
                found[key] = blob
        return found

    async def _shown(
        self, key: str, ownership: Blob | None, checkpoint: Blob | None
    ) -> Versioned | None:
        if ownership is not None and needs_body(ownership):
            return await self.get(key)
        with reading_row(key):
            return merged(key, ownership, checkpoint)

    async def _put(
        self, record: LeaseRecord, *, only_if: str, over: str, before: Position | None
    ) -> Versioned:
        """Write a record.

        Args:
            record: What is written.
            only_if: The ETag that the ownership blob must have; empty: it must not be there.
            over: That of the checkpoint blob that was read with it; empty: there was none.
            before: The checkpoint that was read.
        """
        try:
            etag = await self._container.put(
                self._names.name(OWNERSHIP, record.key),
                ownership_content(record, over=over),
                only_if=only_if or None,
            )
        except BlobRefusedError as error:
            raise RecordConflictError(record.key, await self.get(record.key)) from error
        checkpoint_etag = over
        if record.checkpoint != before:
            checkpoint_etag = await self._repeat_checkpoint(record, over)
        return versioned(record, etag=etag, checkpoint_etag=checkpoint_etag)

    async def _put_checkpoint(
        self, record: LeaseRecord, content: BlobContent, version: FencedVersion
    ) -> Versioned:
        """Write a checkpoint if ownership and checkpoint are as they were read.

        Azure compares only one blob in a request. Another worker of ours that acquires the lease in between writes the
        checkpoint blob, so this write is refused; where no such blob exists yet, the ownership blob is read once more.
        """
        name = self._names.name(CHECKPOINT, record.key)
        if await self._ownership_etag(record.key) != version.etag:
            raise RecordConflictError(record.key, await self.get(record.key))
        try:
            etag = await self._container.put(name, content, only_if=version.checkpoint_etag or None)
        except BlobRefusedError as error:
            raise RecordConflictError(record.key, await self.get(record.key)) from error
        if not version.checkpoint_etag and await self._ownership_etag(record.key) != version.etag:
            # Refused: another worker has written it since, so it is not ours any more.
            with suppress(BlobRefusedError):
                await self._container.remove(name, only_if=etag)
            raise RecordConflictError(record.key, await self.get(record.key))
        return versioned(record, etag=version.etag, checkpoint_etag=etag)

    async def _ownership_etag(self, key: str) -> str:
        found = await self._container.show(self._names.name(OWNERSHIP, key))
        return "" if found is None else found.etag

    async def _fenced_off(self, acquired: Versioned) -> Versioned:
        """Rewrite the checkpoint blob, so that the former holder's write is refused, and return the record."""
        record, version = acquired.record, FencedVersion.parsed(acquired.version)
        name = self._names.name(CHECKPOINT, record.key)
        etag = version.checkpoint_etag
        try:
            for _ in range(REPEATS_MAX):
                found = await self._container.show(name)
                if found is None:
                    etag = ""
                    break
                content, record = fenced_checkpoint(acquired.record, etag, found)
                with suppress(BlobRefusedError):  # It was written since: read it again.
                    etag = await self._container.put(name, content, only_if=found.etag)
                    break
        except LeasingError as error:
            _log.warning("leasing.checkpoint_fence_failed", blob=name, cause=str(error))
            return acquired
        return versioned(record, etag=version.etag, checkpoint_etag=etag)

    async def _repeat_checkpoint(self, record: LeaseRecord, over: str) -> str:
        """Write the checkpoint for other programs, and return its blob's ETag.

        The record holds it already, so after a failure only other programs repeat some records.
        """
        name = self._names.name(CHECKPOINT, record.key)
        content = checkpoint_content(record)
        try:
            if content is None:
                if record.checkpoint is None and over:
                    await self._container.remove(name, only_if=over)
                    return ""
                return over
            for _ in range(REPEATS_MAX):
                try:
                    return await self._container.put(name, content, only_if=over or None)
                except BlobRefusedError:
                    found = await self._container.show(name)
                    over = "" if found is None else found.etag
                    if found is not None and (commit_of(found) or 0) > record.counter:
                        return over
        except (BlobRefusedError, LeasingError) as error:
            _log.warning("leasing.checkpoint_copy_failed", blob=name, cause=str(error))
        return over
