"""The application: a visit is a message, and a shard keeps its pages and answers queries."""

from __future__ import annotations

import grpc
import msgspec
from broadsheet.consumer import Resolver, Shard
from broadsheet.journals import (
    Envelope,
    JournalSpec,
    JsonStructType,
    MessageType,
    Meta,
    Publisher,
)

from hello_sqlite.query import query_handler
from hello_sqlite.store import PageStore


class Visit(msgspec.Struct):
    """A message. Each field has a default, because an acknowledgement has nothing but a UUID."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    page: str = ""
    milliseconds: int = 0


VISITS = JsonStructType(Visit)


class Visits:
    """Keeps visits by page, each once."""

    def new_store(self, shard: Shard) -> PageStore:
        """Return the store of a shard."""
        return PageStore(shard)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Messages are JSON lines, checked as `Visit`."""
        return VISITS

    def consume_message(
        self, shard: Shard, store: PageStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Add one visit."""
        visit: Visit = envelope.message
        if visit.page:
            store.add(visit.page, visit.milliseconds)

    def finalize_txn(self, shard: Shard, store: PageStore, publisher: Publisher) -> None:
        """Do nothing: all is in the store."""

    def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
        """Answer queries on each member's port."""
        server.add_generic_rpc_handlers((query_handler(resolver),))
