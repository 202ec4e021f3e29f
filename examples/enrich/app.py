"""The application: spending by account, kept by the shard that reads the account's journal.

enrich/payments/part-000…003 ─► shards enrich/profiles-000…003 ◄── ProfileService.LookUp ── tasks of a Spark job
"""

from __future__ import annotations

import grpc

from broadsheet.consumer import Resolver, Shard
from broadsheet.examples.enrich import api
from broadsheet.examples.enrich.messages import PAYMENTS
from broadsheet.examples.enrich.store import ProfileStore
from broadsheet.journals import Envelope, Flags, JournalSpec, MessageBatch, MessageType, Publisher


class Enrich:
    """Keeps profiles of accounts, and answers queries for them."""

    def new_store(self, shard: Shard) -> ProfileStore:
        """Return the shard's store."""
        return ProfileStore(shard)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return the type of payments; there is no other source."""
        del journal_spec
        return PAYMENTS

    def consume_message(
        self, shard: Shard, store: ProfileStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Take one payment into account."""
        del shard, publisher
        if envelope.flags != Flags.ACK_TXN:
            store.add([envelope.message])

    def consume_batch(
        self, shard: Shard, store: ProfileStore, batch: MessageBatch, publisher: Publisher
    ) -> None:
        """Take a run of payments into account."""
        del shard, publisher
        messages = zip(batch.flags, batch.messages(), strict=True)
        store.add(payment for flags, payment in messages if flags != Flags.ACK_TXN)

    def finalize_txn(self, shard: Shard, store: ProfileStore, publisher: Publisher) -> None:
        """Do nothing, because nothing is cached."""

    def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
        """Serve queries for accounts."""
        api.register(server, resolver)


def create() -> Enrich:
    """Make the application."""
    return Enrich()
