"""Shards and journals, as far as their specs are listed and changed alike.

Messages of the two kinds have the same fields under other names, and no common type; `Stored` and `Change` stand for
both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

import click
from google.protobuf import text_format

from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.cli.connection import Connection, complete_journals, complete_shards
from broadsheet.cli.journal_space import format_journal_space, tree_of_listing
from broadsheet.cli.journals import listed_journals, read_journal_changes
from broadsheet.cli.shard_space import format_shard_space, push_down, space_of_listing
from broadsheet.cli.shards import listed_shards, places_of, read_shard_changes
from broadsheet.cli.specs_file import errors_name_places
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.client.log_journals import create_log_journals, missing_log_journals
from broadsheet.journals.client import JournalClient
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec, ListResponse
from broadsheet.wire.shard_pb2 import (
    ApplyRequest as ShardApplyRequest,
    ListResponse as ShardListResponse,
    ShardSpec,
)

SpecT = TypeVar("SpecT", bound=ShardSpec | JournalSpec)


@dataclass(frozen=True, slots=True)
class Stored(Generic[SpecT]):
    """A spec that the cluster has."""

    name: str
    spec: SpecT
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Change(Generic[SpecT]):
    """A change of one spec."""

    name: str
    spec: SpecT | None
    """The spec to write; None: delete it."""
    revision: int
    """The revision that the spec must have; 0: it must not exist, -1: any."""
    place: str = ""
    """Where in its file the change is, for error messages."""


@dataclass(frozen=True, slots=True)
class Document(Generic[SpecT]):
    """The changes of one file."""

    source: str
    changes: Sequence[Change[SpecT]]


class Specs(ABC, Generic[SpecT]):
    """A connection to the servers of shards, or of journals; the class stands for the kind."""

    noun: ClassVar[str]
    batch_size: ClassVar[int]
    """Changes per transaction where a whole file is in one; 0: all."""
    complete: ClassVar[staticmethod[[click.Context, click.Parameter, str], list[str]]]
    """Completes a name on the command line."""
    request: ClassVar[Any]  # two types of messages without a common one
    """The message that applies changes."""

    @classmethod
    @abstractmethod
    def over(cls, connection: Connection) -> AbstractAsyncContextManager[Specs[SpecT]]:
        """Connect."""

    @abstractmethod
    async def listed(self, names: Sequence[str] = (), selector: str = "") -> list[Stored[SpecT]]:
        """Return the specs of these names, or those that match; all if neither is given."""

    @abstractmethod
    async def apply(self, changes: Sequence[Change[SpecT]]) -> int:
        """Apply changes in one transaction; return its revision."""

    async def missing_logs(self, documents: Sequence[Document[SpecT]]) -> Sequence[JournalSpec]:
        """Return the recovery logs that changes name, and that are not there."""
        return ()

    async def create_logs(self, logs: Sequence[JournalSpec]) -> None:
        """Create recovery logs."""

    async def verify(
        self, documents: Sequence[Document[SpecT]], planned: Sequence[JournalSpec]
    ) -> None:
        """Check what changes refer to, which may be planned."""

    @classmethod
    @abstractmethod
    def read(cls, text: str, source: str) -> list[Change[SpecT]]:
        """Return the changes of a file.

        Raises:
            ValidationError: the file is wrong.
        """

    @classmethod
    @abstractmethod
    def text(cls, stored: Sequence[Stored[SpecT]]) -> str:
        """Return the file of what is stored."""

    @classmethod
    def request_text(cls, changes: Sequence[Change[SpecT]]) -> str:
        """Return the request that applies changes, in protobuf's text format."""
        return text_format.MessageToString(cls.request(changes=cls._messages(changes)))

    @classmethod
    def _messages(cls, changes: Sequence[Change[SpecT]]) -> Any:
        return [
            cls.request.Change(
                expect_mod_revision=each.revision,
                upsert=each.spec,
                delete=each.name if each.spec is None else "",
            )
            for each in changes
        ]


Kind: TypeAlias = type[Specs[SpecT]]


class _ShardSpecs(Specs[ShardSpec]):
    """Specs of shards, at their members."""

    noun = "shard"
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

    async def listed(
        self, names: Sequence[str] = (), selector: str = ""
    ) -> list[Stored[ShardSpec]]:
        listing = await listed_shards(self._client, names, selector)
        return [Stored(each.spec.id, each.spec, each.mod_revision) for each in listing.shards]

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


class _JournalSpecs(Specs[JournalSpec]):
    """Specs of journals, at a broker."""

    noun = "journal"
    batch_size = 0
    complete = staticmethod(complete_journals)
    request = ApplyRequest

    def __init__(self, client: JournalClient) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def over(cls, connection: Connection) -> AsyncIterator[_JournalSpecs]:
        async with connection.journals() as client:
            yield cls(client)

    async def listed(
        self, names: Sequence[str] = (), selector: str = ""
    ) -> list[Stored[JournalSpec]]:
        listing = await listed_journals(self._client, names, selector)
        return [Stored(each.spec.name, each.spec, each.mod_revision) for each in listing.journals]

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
        return format_journal_space(tree_of_listing(listed))


SHARDS: Final = _ShardSpecs
JOURNALS: Final = _JournalSpecs
