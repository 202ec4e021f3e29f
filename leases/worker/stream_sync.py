"""Synchronisation of leases with a stream's shards: creates missing leases, deletes finished ones."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from broadsheet.leases.errors import BlockedOnParentError, UnreadableLeaseError
from broadsheet.leases.facades.kcl import LeaseListing, LeaseManager
from broadsheet.leases.position import TRIM_HORIZON, Position
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.store import log_unreadable
from broadsheet.leases.worker.lineage import (
    children_of,
    deletable,
    lease_of,
    lone_parents,
    missing_leases,
)
from broadsheet.leases.worker.metrics import WorkerMetrics
from broadsheet.leases.worker.source import RecordSource

_log = structlog.get_logger()


class StreamSync:
    """Synchronises leases with shards. Any number of workers may do so at once, because leases are created only if
    absent and deleted only if unchanged.
    """

    def __init__(
        self,
        source: RecordSource,
        *,
        start: Position,
        manager: LeaseManager,
        metrics: WorkerMetrics,
        on_created: Callable[[], None],
    ) -> None:
        """Configure the synchronisation.

        Args:
            source: The shards.
            start: Where an application begins that was never run.
            manager: Of the leases.
            metrics: The worker's.
            on_created: Called once leases were created, which somebody should take now.
        """
        self._manager = manager
        self._source = source
        self._start = start
        self._metrics = metrics
        self._on_created = on_created
        self._unlisted: frozenset[str] = frozenset()

    async def create_missing(self) -> None:
        """Create the missing leases, older shards first, so that after a failure the rest can still be determined."""
        # List leases first: a shard that ends in between is seen with its lease, or not at all.
        listing = await self._listed()
        records = [found.record for found in listing.leases]
        leased = {record.key for record in records}
        ancestors = {parent for record in records for parent in record.parents}
        shards = await self._source.list_shards()
        # An unreadable row counts as present: creating leases of its parents, which may be finished, would repeat their
        # records.
        ancestors |= {
            parent
            for shard in shards
            if shard.key in listing.unreadable
            for parent in shard.parents
        }
        known = leased | ancestors | listing.unreadable
        created = False
        try:
            for lease in missing_leases(shards, known, start=self._start):
                created |= await self._created(lease)
        finally:
            if created:
                self._on_created()

    async def _created(self, lease: LeaseRecord) -> bool:
        try:
            created = await self._manager.create_lease(lease)
        except UnreadableLeaseError as error:
            log_unreadable(error)  # The row became unreadable since the scan.
            return False
        if created:
            _log.info("leasing.lease_created", key=lease.key, start=self._start.seq)
        return created

    async def _listed(self) -> LeaseListing:
        listing = await self._manager.list_rows()
        self._metrics.on_unreadable(len(listing.unreadable))
        return listing

    async def create_children(self, parent: str) -> None:
        """Create the leases of a shard's children, and note them on its own lease, before its end is committed.

        Raises:
            BlockedOnParentError: a child's other parent has no lease at the moment; try again.
            UnreadableLeaseError: the row of a child cannot be read. Once its parent has ended no worker creates it
                again, so the parent's end waits until an operator has restored or deleted it.
        """
        shards = await self._source.list_shards()
        children = children_of(shards, parent)
        listing = await self._listed()
        leased = {found.record.key for found in listing.leases}
        there = leased | listing.unreadable
        for child in children:
            if child.key in leased:
                continue
            absent = lone_parents(child, there)
            if absent:
                raise BlockedOnParentError(child.key, absent)
            if await self._manager.create_lease(lease_of(child, checkpoint=Position(TRIM_HORIZON))):
                self._on_created()
        await self._manager.note_children(
            parent, children=frozenset(child.key for child in children)
        )

    async def delete_done(self) -> None:
        """Delete the leases that are not needed any more."""
        listing = await self._listed()
        found = {each.record.key: each for each in listing.leases}
        listed = {shard.key for shard in await self._source.list_shards()}
        records = {key: each.record for key, each in found.items()}
        for key in deletable(
            records, listed, now_missing=self._unlisted, unreadable=listing.unreadable
        ):
            await self._delete(found[key])
        self._unlisted = frozenset(records.keys() - listed)

    async def _delete(self, seen: Versioned) -> None:
        try:
            if await self._manager.store.delete(seen.record.key, seen):
                _log.info("leasing.lease_deleted", key=seen.record.key)
        except RecordConflictError:
            # It changed since the scan; the next one decides again.
            _log.debug("leasing.lease_kept", key=seen.record.key)
