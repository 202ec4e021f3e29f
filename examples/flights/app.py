"""The application: totals of every aircraft, and an alert for every arrival more than two hours late.

Serve it on Spark with `broadsheet.spark_bridge.cluster.ShardCluster`, or without it: `shardctl serve
broadsheet.examples.flights.app:create`.
"""

from __future__ import annotations

import os

import grpc
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from broadsheet.consumer import Resolver, Shard
from broadsheet.examples.flights import api
from broadsheet.examples.flights.aircraft import Aircraft
from broadsheet.examples.flights.messages import ALERT_JOURNALS, ALERTS, FLIGHTS, Flight
from broadsheet.examples.flights.store import FlightStore
from broadsheet.journals import (
    Envelope,
    Flags,
    JournalSpec,
    MappedJournal,
    MessageBatch,
    MessageType,
    Publisher,
    modulo_mapping,
)

DATABASE_VARIABLE = "FLIGHTS_DATABASE_URL"
DATABASE_DEFAULT = "sqlite:///flights-{shard}.db"


class FlightsApplication:
    """Consumes flights; implements `broadsheet.consumer.application.Application` with its batch and service
    extensions.
    """

    def __init__(self, database_url: str) -> None:
        """Keep state in a database.

        Args:
            database_url: SQLAlchemy's. `{shard}` in it stands for the shard's id: SQLite lets one transaction write a
                file at a time, so each shard should have its own.
        """
        self._database_url = database_url
        self._engine_by_url: dict[str, Engine] = {}
        targets = [MappedJournal(journal, ALERTS.content_type) for journal in ALERT_JOURNALS]
        self._alert_mapping = modulo_mapping(
            lambda alert: str(alert.aircraft).encode(), lambda: targets
        )

    def close(self) -> None:
        """Close the connections to databases, for a program that goes on without the application."""
        for engine in self._engine_by_url.values():
            engine.dispose()

    def new_store(self, shard: Shard) -> FlightStore:
        """Return the shard's store."""
        url = self._database_url.format(shard=shard.id)
        engine = self._engine_by_url.get(url)
        if engine is None:
            # Each shard uses a connection for its transaction and sometimes one for a read.
            engine = self._engine_by_url.setdefault(url, sa.create_engine(url, max_overflow=60))
        return FlightStore(shard, engine)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return the type of flights; there is no other source."""
        del journal_spec
        return FLIGHTS

    def consume_message(
        self, shard: Shard, store: FlightStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Take one flight into account."""
        del shard
        if envelope.flags != Flags.ACK_TXN:
            self._consume(store, envelope.message, publisher)

    def consume_batch(
        self, shard: Shard, store: FlightStore, batch: MessageBatch, publisher: Publisher
    ) -> None:
        """Take a run of flights into account."""
        del shard
        for flags, flight in zip(batch.flags, batch.messages(), strict=True):
            if flags != Flags.ACK_TXN:
                self._consume(store, flight, publisher)

    def finalize_txn(self, shard: Shard, store: FlightStore, publisher: Publisher) -> None:
        """Write what changed: each aircraft once a transaction, however many of its flights were in it."""
        del shard, publisher
        store.flush()

    def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
        """Serve queries for aircraft."""
        api.register(server, resolver)

    def _consume(self, store: FlightStore, flight: Flight, publisher: Publisher) -> None:
        aircraft = store.aircraft.get(flight.aircraft)
        if aircraft is None:
            aircraft = store.aircraft[flight.aircraft] = Aircraft()
        store.changed(flight.aircraft)
        alert = aircraft.add(flight)
        if alert is not None:
            publisher.publish_uncommitted(self._alert_mapping, alert, ALERTS)


def create() -> FlightsApplication:
    """Make the application with the database that `FLIGHTS_DATABASE_URL` names; SQLite files here if it is not set."""
    return FlightsApplication(os.environ.get(DATABASE_VARIABLE, DATABASE_DEFAULT))
