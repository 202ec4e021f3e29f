"""Specs of journals, as the verbs that shards and journals share list and change them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import InUseError
from broadsheet.cli.journals.selection import listed_journals
from broadsheet.cli.journals.space import (
    format_journal_space,
    read_journal_changes,
    tree_of_listing,
)
from broadsheet.cli.journals.table import JournalTable
from broadsheet.cli.journals.users import NAMED_MAX, describe_users, uses_of
from broadsheet.cli.names import complete_journals
from broadsheet.cli.output.lists import ListColumns, Table
from broadsheet.cli.specs.kind import Change, Specs, Stored
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import BroadsheetError
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec, ListResponse


class _JournalSpecs(Specs[JournalSpec]):
    """Specs of journals, at a broker."""

    noun = "journal"
    batch_size = 0
    complete = staticmethod(complete_journals)
    request = ApplyRequest

    def __init__(self, connection: Connection, client: JournalClient) -> None:
        self._connection = connection
        self._client = client

    @classmethod
    @asynccontextmanager
    async def over(cls, connection: Connection) -> AsyncIterator[_JournalSpecs]:
        async with connection.journals() as client:
            yield cls(connection, client)

    async def listing(self, names: Sequence[str] = (), selector: str = "") -> ListResponse:
        listed = await listed_journals(self._client, names, selector)
        return ListResponse(header=listed.header, journals=listed.journals)

    def table(self, names: Sequence[str], selector: str, columns: ListColumns) -> Table:
        return JournalTable(self._client, names, selector, columns)

    @classmethod
    def stored(cls, listing: ListResponse) -> list[Stored[JournalSpec]]:
        return [Stored(each.spec.name, each.spec, each.mod_revision) for each in listing.journals]

    @classmethod
    def listing_text(cls, listing: ListResponse) -> str:
        return format_journal_space(tree_of_listing(listing.journals))

    async def require_unused(self, names: Sequence[str]) -> None:
        if not names:
            return
        try:
            async with self._connection.shards() as shards:
                listed = (await shards.list()).shards
        except (BroadsheetError, TimeoutError) as error:
            # No answer is no sign that no shard is there.
            problem = f"it cannot be told whether shards use {', '.join(names[:NAMED_MAX])}"
            raise InUseError(f"{problem}: {' '.join(str(error).split())}") from error
        users = [each for shard in listed for each in uses_of(shard.spec)]
        if used := [each for each in users if each.journal in set(names)]:
            raise InUseError(describe_users(used))

    async def apply(self, changes: Sequence[Change[JournalSpec]]) -> int:
        return (await self._client.apply(self._messages(changes))).header.etcd.revision

    @classmethod
    def read(cls, text: str, source: str) -> list[Change[JournalSpec]]:
        return [
            Change(each.delete, None, each.expect_mod_revision, each.delete)
            if each.delete
            else Change(each.upsert.name, each.upsert, each.expect_mod_revision, each.upsert.name)
            for each in read_journal_changes(text, source)
        ]

    @classmethod
    def text(cls, stored: Sequence[Stored[JournalSpec]]) -> str:
        listed = [
            ListResponse.Journal(spec=each.spec, mod_revision=each.revision) for each in stored
        ]
        return cls.listing_text(ListResponse(journals=listed))


JOURNALS: Final = _JournalSpecs
