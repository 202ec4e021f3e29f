"""The application: an order comes from one topic, its customer's new total goes to another, in the order of the orders.

    topic orders ─► shards kafka-totals/part-000…001 ─► topic totals
                              │
                     table customer_totals, SQL

The total, the place in the topic, and the record that is to be sent are one transaction of the database. Beside the
members runs nothing but etcd.
"""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa

from broadsheet.consumer import KafkaCluster, KafkaOutput, Shard
from broadsheet.consumer.sources import KafkaSource
from broadsheet.consumer.stores import SqlStore
from broadsheet.journals import Envelope, JournalSpec, JsonType, MessageType, Publisher

ORDERS, TOTALS = "orders", "totals"
SERVERS_DEFAULT = "localhost:9092"
DATABASE_DEFAULT = "sqlite:///kafka-totals.db"
_SCHEMA = sa.text(
    "CREATE TABLE IF NOT EXISTS customer_totals"
    " (customer VARCHAR(64) PRIMARY KEY, orders BIGINT NOT NULL, cents BIGINT NOT NULL)"
)
_ADD = sa.text(
    "INSERT INTO customer_totals VALUES (:customer, 1, :cents) ON CONFLICT (customer) DO UPDATE"
    " SET orders = customer_totals.orders + 1, cents = customer_totals.cents + excluded.cents"
    " RETURNING orders, cents"
)


class Totals:
    """Adds orders up by customer."""

    def __init__(self, kafka: dict[str, Any], database: str) -> None:
        """Take the settings of Kafka's client, and the URL of the database."""
        source = KafkaSource(ORDERS, JsonType(), kafka)
        self.read_messages = source.read_messages
        self.replay_range = source.replay_range
        self.read_through = source.read_through
        self._totals = KafkaOutput(TOTALS, KafkaCluster(kafka), key="customer")
        self.record_outputs = (self._totals,)
        self._engine = sa.create_engine(database)

    def new_store(self, shard: Shard) -> SqlStore:
        """Return the shard's checkpoint in the database, beside the totals of all shards."""
        with self._engine.begin() as connection:
            connection.execute(_SCHEMA)
        return SqlStore(shard, self._engine)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return nothing, because no journal is read."""
        raise AssertionError(f"no journal is read, not even {journal_spec.name}")

    def consume_message(
        self, shard: Shard, store: SqlStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Add an order, and tell the new total."""
        del shard
        order = envelope.message
        values = {"customer": order["customer"], "cents": order["cents"]}
        orders, cents = store.connection.execute(_ADD, values).one()
        total = {"customer": order["customer"], "orders": orders, "cents": cents}
        publisher.publish_record(self._totals, total)

    def finalize_txn(self, shard: Shard, store: SqlStore, publisher: Publisher) -> None:
        """Do nothing, because nothing is cached."""


def create() -> Totals:
    """Make the application; `KAFKA_SERVERS` and `TOTALS_DATABASE` say where Kafka and the database are."""
    kafka = {"bootstrap.servers": os.environ.get("KAFKA_SERVERS", SERVERS_DEFAULT)}
    return Totals(kafka, os.environ.get("TOTALS_DATABASE", DATABASE_DEFAULT))
