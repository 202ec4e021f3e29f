"""Specs of shards, as the verbs that shards and journals share list and change them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import complete_shards
from broadsheet.cli.output.lists import ListColumns, Table
from broadsheet.cli.shards.selection import listed_shards
from broadsheet.cli.shards.space import (
    format_shard_space,
    places_of,
    push_down,
    read_shard_changes,
    space_of_listing,
)
from broadsheet.cli.shards.table import ShardListTable
from broadsheet.cli.specs.files import errors_name_places
from broadsheet.cli.specs.kind import Change, Document, Specs, Stored
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.client.log_journals import create_log_journals, missing_log_journals
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import (
    ApplyRequest as ShardApplyRequest,
    ListResponse as ShardListResponse,
    ShardSpec,
)


class _ShardSpecs(Specs[ShardSpec]):
    """Specs of shards, at their members."""

    noun = "shard"
    is_shards = True
    batch_size = TXN_OPERATIONS_MAX
    complete = staticmethod(complete_shards)
    request = ShardApplyRequest

    def __init__(self, connection: Connection, client: ShardClient) -> None:
        self._connection = connection
        self._client = client

    @classmethod
    @asynccontextmanager
    async def over(cls, connection: Connection) -> AsyncIterator[_ShardSpecs]:
        async with connection.shards() as client:
            yield cls(connection, client)

    async def listing(self, names: Sequence[str] = (), selector: str = "") -> ShardListResponse:
        return await listed_shards(self._client, names, selector)

    def table(self, names: Sequence[str], selector: str, columns: ListColumns) -> Table:
        return ShardListTable(self._connection, self._client, names, selector, columns)

    @classmethod
    def stored(cls, listing: ShardListResponse) -> list[Stored[ShardSpec]]:
        return [Stored(each.spec.id, each.spec, each.mod_revision) for each in listing.shards]

    @classmethod
    def listing_text(cls, listing: ShardListResponse) -> str:
        return format_shard_space(space_of_listing(listing.shards))

    async def apply(self, changes: Sequence[Change[ShardSpec]]) -> int:
        answer = await self._client.apply(self._messages(changes), batch_size=0)
        return answer.header.etcd.revision

    async def missing_logs(self, documents: Sequence[Document[ShardSpec]]) -> Sequence[JournalSpec]:
        changes = [change for each in documents for change in each.changes]
        async with self._connection.journals() as journals:
            return await missing_log_journals(self._messages(changes), journals)

    async def create_logs(self, logs: Sequence[JournalSpec]) -> None:
        async with self._connection.journals() as journals:
            await create_log_journals(logs, journals)

    async def verify(
        self, documents: Sequence[Document[ShardSpec]], planned: Sequence[JournalSpec]
    ) -> None:
        async with self._connection.journals() as journals:
            for each in documents:
                with errors_name_places(each.source, [change.place for change in each.changes]):
                    changes = self._messages(each.changes)
                    await self._client.verify_referenced_journals(
                        changes, journals, planned=planned
                    )

    @classmethod
    def read(cls, text: str, source: str) -> list[Change[ShardSpec]]:
        read = read_shard_changes(text, source)
        return [
            Change(each.delete, None, each.expect_mod_revision, place)
            if each.delete
            else Change(each.upsert.id, each.upsert, each.expect_mod_revision, place)
            for each, place in zip(read, places_of(read), strict=True)
        ]

    @classmethod
    def text(cls, stored: Sequence[Stored[ShardSpec]]) -> str:
        space = space_of_listing(
            ShardListResponse.Shard(spec=each.spec, mod_revision=each.revision) for each in stored
        )
        # Nothing is shared by one shard.
        return format_shard_space(push_down(space) if len(stored) == 1 else space)


SHARDS: Final = _ShardSpecs
