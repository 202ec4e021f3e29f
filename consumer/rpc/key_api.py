"""The Key service: the table from keys to shards, once and as a stream.

A watch has a position and no queue, as `watch_api` has: the table is computed from the newest state, so a slow caller
skips states in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from broadsheet.allocator.model import ItemId
from broadsheet.consumer.elastic.journal_split import left_behind
from broadsheet.consumer.elastic.key_table import ServedShard, key_table_of
from broadsheet.consumer.registry.key_space import is_selected, process_of, shard_of
from broadsheet.consumer.resolver.decision import primary_of
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.rpc.shard_listing import (
    ROWS_PER_TURN,
    Listing,
    ShardChangeLog,
    selections_of,
)
from broadsheet.consumer.rpc.watch_api import LOOK_SECONDS, PROGRESS_SECONDS
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.clock import Clock
from broadsheet.wire import keys_pb2_grpc
from broadsheet.wire.alphabet import require
from broadsheet.wire.journal_pb2 import Header
from broadsheet.wire.keys_pb2 import (
    GetKeyTableRequest,
    GetKeyTableResponse,
    KeyTable,
    WatchKeyTableRequest,
    WatchKeyTableResponse,
)
from broadsheet.wire.labels import LabelMatcher
from broadsheet.wire.shard_pb2 import ShardSpec
from broadsheet.wire.validation_terms import validate_selector

JOURNALS_MAX = 65_536
"""Journals of one request."""

# `Any`: grpc.aio passes each servicer method its context.
Context = Any
_Request = GetKeyTableRequest | WatchKeyTableRequest


class KeyApi(keys_pb2_grpc.KeyServiceServicer):
    """The `broadsheet.v1.KeyService` of one member."""

    def __init__(
        self,
        membership: LocalMember,
        changes: ShardChangeLog,
        journals: JournalClient,
        *,
        stopping: asyncio.Event,
        clock: Clock,
    ) -> None:
        """Create the service.

        Args:
            membership: Of this process; its key space is shown.
            changes: Of that key space.
            journals: Tells which journals were divided, and into which parts.
            stopping: Set once this process leaves.
            clock: Measures silence.
        """
        self._membership = membership
        self._key_space = membership.key_space
        self._changes = changes
        self._journals = journals
        self._looked_up: set[str] = set()
        """Divided journals that are sources no more, and whose origins were looked up."""
        self._stopping = stopping
        self._clock = clock

    async def GetKeyTable(  # noqa: N802 - gRPC's name
        self, request: GetKeyTableRequest, context: Context
    ) -> GetKeyTableResponse:
        """Return the table of the selected shards."""
        selections = self._selections(request, context)
        header = self._membership.unrouted_header()
        return GetKeyTableResponse(
            header=header, table=await self._table(request, selections, header)
        )

    async def WatchKeyTable(  # noqa: N802 - gRPC's name
        self, request: WatchKeyTableRequest, context: Context
    ) -> AsyncIterator[WatchKeyTableResponse]:
        """Stream the table, and each later one that differs."""
        require(
            request.known_version >= 0,
            "known_version",
            f"expected 0 or a version, got {request.known_version}",
        )
        selections = self._selections(request, context)
        async with aclosing(self._follow(request, selections)) as responses:
            async for response in responses:
                yield response

    def _selections(self, request: _Request, context: Context) -> Sequence[LabelMatcher]:
        validate_selector(request.selector, "selector")
        require(
            len(request.journals) <= JOURNALS_MAX,
            "journals",
            f"expected at most {JOURNALS_MAX}, got {len(request.journals)}",
        )
        return selections_of(request.selector, claims_of(context).selector)

    async def _follow(
        self, request: WatchKeyTableRequest, selections: Sequence[LabelMatcher]
    ) -> AsyncGenerator[WatchKeyTableResponse, None]:
        is_known = request.known_cluster_id == self._key_space.header.cluster_id
        position = request.known_version if is_known else 0
        shown: KeyTable | None = None
        told_seconds = float("-inf")
        while not self._stopping.is_set():
            header = self._membership.unrouted_header()
            response = WatchKeyTableResponse(header=header)
            if self._concerns(position, selections):
                table = await self._table(request, selections, header)
                # A status or another label of a shard changes no row.
                if shown is None or not _same(table, shown):
                    response.table.CopyFrom(table)
                    shown = table
            now_seconds = self._clock.monotonic_seconds()
            if response.HasField("table") or now_seconds - told_seconds >= PROGRESS_SECONDS:
                yield response
                told_seconds = now_seconds
            position = header.etcd.revision
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._key_space.wait_for_update(position)

    def _concerns(self, position: int, selections: Sequence[LabelMatcher]) -> bool:
        """Report whether a selected shard may have changed since a revision; 0 or a future one: it may."""
        if not 0 < position <= self._key_space.header.revision:
            return True
        touched = self._changes.since(position)
        if touched is None:
            return True
        listing = Listing(self._key_space, selections)
        return any(self._sees(listing, item_id, before) for item_id, before in touched.items())

    def _sees(self, listing: Listing, item_id: ItemId, before: Sequence[ShardSpec]) -> bool:
        item = self._key_space.items.get(item_id)
        return any(map(listing.sees, before)) or (
            item is not None and listing.sees(shard_of(item).spec)
        )

    async def _table(
        self, request: _Request, selections: Sequence[LabelMatcher], header: Header
    ) -> KeyTable:
        # Taken at once, because ranges of one revision cover all keys, and of two may not.
        seen = [
            (item, primary_of(self._key_space.assignments_of(item_id)))
            for item_id, item in self._key_space.items.items()
        ]
        members = {
            member_id: process_of(member) for member_id, member in self._key_space.members.items()
        }
        shards: list[ServedShard] = []
        for number, (item, primary) in enumerate(seen, 1):
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
            spec = shard_of(item).spec
            if not all(is_selected(spec, each) for each in selections):
                continue
            process = members.get(primary) if primary is not None else None
            if process is None:
                shards.append(ServedShard(spec=spec))
                continue
            shards.append(
                ServedShard(
                    spec=spec,
                    primary=str(primary),
                    endpoint=process.process_spec.endpoint,
                    admin_endpoint=process.admin_endpoint,
                )
            )
        origins = await self._origins([one.spec for one in shards])
        table = key_table_of(shards, request.rule, request.journals, origins=origins)
        table.version = header.etcd.revision
        table.cluster_id = header.etcd.cluster_id
        return table

    async def _origins(self, specs: Sequence[ShardSpec]) -> Mapping[str, str]:
        """Return the journal that each part is a part of, if a part was divided in turn and is a source no more.

        Raises:
            EndpointError: no broker could be reached.
        """
        behind = {name.partition(";")[0] for spec in specs for name in left_behind(spec)}
        if not behind:
            return {}
        if not behind <= self._looked_up:
            await self._journals.learn_divided()
            self._looked_up |= behind
        return self._journals.divided.origins


def _same(one: KeyTable, other: KeyTable) -> bool:
    """Report whether two tables say the same of keys."""
    unversioned = KeyTable()
    unversioned.CopyFrom(one)
    unversioned.version = other.version
    return unversioned == other
