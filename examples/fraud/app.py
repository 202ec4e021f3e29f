"""The application: the shard of a card scores its purchases, and counts them, in one transaction.

FraudService.Score ─► fraud/commands/part-000…003 ─► shards fraud/scores-000…003 ─► answer, once that is durable
"""

from __future__ import annotations

import grpc

from broadsheet.consumer import Resolver, Shard
from broadsheet.consumer.commands import CommandRefusedError, Commands, SqliteAnswers
from broadsheet.consumer.stores import SqliteStore
from broadsheet.examples.fraud import api
from broadsheet.examples.fraud.rules import Profile, Purchase, Score, score
from broadsheet.journals import Envelope, JournalSpec, MessageType, Publisher
from broadsheet.runtime import ValidationError

COMMANDS = "fraud/commands"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS cards (card TEXT PRIMARY KEY, purchases INTEGER NOT NULL, "
    "cents_total INTEGER NOT NULL, last_country TEXT NOT NULL, last_at_ms INTEGER NOT NULL)"
)
_GET = "SELECT purchases, cents_total, last_country, last_at_ms FROM cards WHERE card = ?"
_PUT = "INSERT OR REPLACE INTO cards VALUES (?, ?, ?, ?, ?)"


class Fraud:
    """Scores purchases by what their cards did before."""

    def __init__(self) -> None:
        self.commands = Commands(COMMANDS, Purchase, Score, answers=SqliteAnswers())

    def new_store(self, shard: Shard) -> SqliteStore:
        """Return the shard's store: a row a card, and the answers of the last hour."""
        return SqliteStore(shard, schema=_SCHEMA)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return the encoding of commands; there is no other source."""
        encoding = self.commands.message_type(journal_spec)
        if encoding is None:
            raise ValidationError("sources", f"{journal_spec.name} is not below {COMMANDS}/")
        return encoding

    def consume_message(
        self, shard: Shard, store: SqliteStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Score a purchase and count it, unless that was done before."""
        del publisher
        self.commands.consume(shard, store, envelope, lambda purchase: _score(store, purchase))

    def finalize_txn(self, shard: Shard, store: SqliteStore, publisher: Publisher) -> None:
        """Do nothing, because nothing is cached."""

    def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
        """Serve purchases."""
        api.register(server, resolver, self.commands)


def create() -> Fraud:
    """Make the application."""
    return Fraud()


def _score(store: SqliteStore, purchase: Purchase) -> Score:
    if purchase.cents <= 0:
        raise CommandRefusedError(f"cents: expected a positive number, got {purchase.cents}")
    found = store.connection.execute(_GET, (purchase.card,)).fetchone()
    after, answer = score(Profile(*found) if found else Profile(), purchase)
    store.connection.execute(
        _PUT,
        (
            purchase.card,
            after.purchases,
            after.cents_total,
            after.last_country,
            after.last_at_ms,
        ),
    )
    return answer
