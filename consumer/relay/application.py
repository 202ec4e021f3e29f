"""The relay of journals: each shard carries its sources' messages to what its labels name, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import UnsupportedSpecError
from broadsheet.consumer.relay.outlet import Outlet
from broadsheet.consumer.relay.sink_labels import SINK_FROM, Sink, SinkKind, sink_of
from broadsheet.journals.content.registry import content_of
from broadsheet.journals.message.batch import (
    Envelope,
    MessageBatch,
    MessageType,
    payload_sizes,
)
from broadsheet.journals.message.publisher import Publisher
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.libraries import needing
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, value_of

TXN_BYTES_MAX: Final = 16 * 2**20
"""Payloads of one transaction: what follows waits for the next, so that none is open for long."""


class CarriesOut:
    """The parts that relays of journals and of topics share."""

    def new_store(self, shard: Shard) -> Outlet:
        """Return the store of the system that the shard's labels name.

        Raises:
            UnsupportedSpecError: a label is missing, or says what cannot be done.
        """
        try:
            return _outlet_of(shard, self._sink_of(shard))
        except ValidationError as error:
            # Only another spec helps: the shard waits for it.
            raise UnsupportedSpecError(error.field_path, error.problem) from error

    def consume_message(
        self, shard: Shard, store: Outlet, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Never called: relays consume batches."""
        raise AssertionError("relays consume batches")

    def consume_batch(
        self, shard: Shard, store: Outlet, batch: MessageBatch, publisher: Publisher
    ) -> int | None:
        """Take as many messages as the transaction has room for."""
        del shard, publisher
        sizes = payload_sizes(batch)
        room = TXN_BYTES_MAX - store.pending_bytes
        count = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
        if not count and not store.pending_bytes:
            count = 1  # One that is larger than a transaction is a transaction.
        taken = batch.span(0, count)
        if count:
            store.take(taken)
            store.pending_bytes += int(sizes[:count].sum())
        return count

    def finalize_txn(self, shard: Shard, store: Outlet, publisher: Publisher) -> None:
        """Nothing is left to do: the store has all records."""

    def next_txn_after(self, shard: Shard, store: Outlet) -> float | None:
        """Return after how long an idle shard commits, so that the other system does not forget it."""
        del shard
        return store.idle_seconds

    def _sink_of(self, shard: Shard) -> Sink:
        raise NotImplementedError


class Relay(CarriesOut):
    """Carries journals out. Serve it with `shardctl serve broadsheet.consumer.relay:Relay`."""

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return the type that the journal's labels name."""
        content = content_of(value_of(journal_spec.labels, CONTENT_TYPE), journal=journal_spec.name)
        return content.message_type(journal_spec.labels, None)

    def _sink_of(self, shard: Shard) -> Sink:
        sink = sink_of(shard.spec.labels)
        if sink.from_topic:
            raise ValidationError(
                f"labels[{SINK_FROM}]",
                "expected none: topics are read by broadsheet.consumer.relay:TopicRelay",
            )
        return sink


def _outlet_of(shard: Shard, sink: Sink) -> Outlet:
    return _OUTLETS[sink.kind](shard, sink)


def _kafka(shard: Shard, sink: Sink) -> Outlet:
    with needing("the relay to Kafka", extra="kafka"):
        from broadsheet.consumer.relay.kafka_outlet import KafkaOutlet

    return KafkaOutlet(shard, sink)


def _table(shard: Shard, sink: Sink) -> Outlet:
    with needing(f"the relay to {sink.kind.name.title()}", extra=sink.kind.value):
        from broadsheet.consumer.relay.table_outlet import TableOutlet

    return TableOutlet(shard, sink)


_OUTLETS: Final[dict[SinkKind, Callable[[Shard, Sink], Outlet]]] = {
    SinkKind.KAFKA: _kafka,
    SinkKind.DELTA: _table,
    SinkKind.ICEBERG: _table,
}
