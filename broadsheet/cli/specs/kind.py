"""Shards and journals, as far as their specs are listed and changed alike.

Messages of the two kinds have the same fields under other names, and no common type; `Stored` and `Change` stand for
both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import click
from google.protobuf import text_format

from broadsheet.cli.connection import Connection
from broadsheet.cli.output.lists import ListColumns, Table
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import ShardSpec

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
    is_shards: ClassVar[bool] = False
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
    async def listing(self, names: Sequence[str] = (), selector: str = "") -> Any:
        """Return the servers' list of these names, or of those that match; of all if neither is given."""

    @abstractmethod
    def table(self, names: Sequence[str], selector: str, columns: ListColumns) -> Table:
        """Return the same as rows for people."""

    @classmethod
    @abstractmethod
    def stored(cls, listing: Any) -> list[Stored[SpecT]]:
        """Return the specs of a list."""

    @classmethod
    @abstractmethod
    def listing_text(cls, listing: Any) -> str:
        """Return the file that, applied at once, would change nothing; what all specs share is stated once."""

    async def listed(self, names: Sequence[str] = (), selector: str = "") -> list[Stored[SpecT]]:
        """Return the specs of these names, or those that match; all if neither is given."""
        return self.stored(await self.listing(names, selector))

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

    async def require_unused(self, names: Sequence[str]) -> None:
        """Refuse to delete what is in use.

        Raises:
            InUseError: something is, or that cannot be told.
        """

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
