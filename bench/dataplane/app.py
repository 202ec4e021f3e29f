"""The applications under measurement: keyed count and sum by each API, in each store.

What a transaction adds is folded in memory, and written to the store before it commits, once a key. `key-…` messages
publish nothing; for each `probe-…` message its number is published, so that its latency can be seen among them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from bench.dataplane.sums import (
    COLUMNS,
    SCHEMA,
    UPSERT,
    Record,
    Sums,
    add_batches,
    add_into,
    add_record,
    add_table,
    decode_record,
    rows_of,
)
from broadsheet.consumer.application import Shard, Store
from broadsheet.consumer.stores.aggregate import Aggregates, AggregateStore, Count, Sum
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.journals.content.arrow import ArrowType
from broadsheet.journals.content.json import NDJSON, JsonStructType, JsonType, Meta
from broadsheet.journals.message.batch import Envelope, MessageBatch, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import Checkpoint

STORE_VARIABLE = "DATAPLANE_STORE"
FEW = 64
"""Messages up to which decoding them one by one takes less than setting up Arrow's plan, which starts a thread."""
SUMS = struct.Struct("<qq")
"""The value of a key in RocksDB."""


class SumsStore(Store, Protocol):
    """A store of sums."""

    pending: Sums
    """What the transaction under way adds."""

    def flush(self) -> None:
        """Write what is pending."""
        ...


class SqliteSums(SqliteStore):
    """A row a key, upserted."""

    pending: Sums

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, schema=SCHEMA)

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Begin with nothing pending."""
        self.pending = {}
        return super().restore_checkpoint(shard)

    def flush(self) -> None:
        """Add to the rows of the keys."""
        if self.pending:
            self.connection.executemany(UPSERT, rows_of(self.pending))
            self.pending = {}


class JsonSums(JsonFileStore[Sums]):
    """An object of all keys."""

    pending: Sums

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, initial={}, state_type=dict[str, list[int]])

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Begin with nothing pending."""
        self.pending = {}
        return super().restore_checkpoint(shard)

    def flush(self) -> None:
        """Add to the entries of the keys."""
        add_into(self.state, self.pending)
        self.pending = {}


class RocksDbSums(RocksDbStore):
    """A value a key."""

    pending: Sums

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Begin with nothing pending."""
        self.pending = {}
        return super().restore_checkpoint(shard)

    def flush(self) -> None:
        """Read, add and put each key."""
        for key, (n, total) in self.pending.items():
            name = key.encode()
            before = self.get(name)
            if before is not None:
                n_before, total_before = SUMS.unpack(before)
                n, total = n + n_before, total + total_before
            self.put(name, SUMS.pack(n, total))
        self.pending = {}


class AggregateSums(AggregateStore):
    """The same as declared aggregates, which take runs of rows and nothing else."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, Aggregates(key="k", n=Count(), total=Sum("v")))

    def flush(self) -> None:
        """Do nothing, because a commit groups what is held back."""


STORES: Mapping[str, Callable[[Shard], Any]] = {
    "sqlite": SqliteSums,
    "json": JsonSums,
    "rocksdb": RocksDbSums,
    "aggregate": AggregateSums,
}


class Seen(msgspec.Struct):
    """The message published for a probe."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    k: str = ""


SEEN: MessageType = JsonStructType(Seen)
RECORDS: MessageType = JsonStructType(Record)


def probes_journal(rows_journal: str) -> str:
    """Return where the probes among a journal's rows are published."""
    return rows_journal.replace("/rows/", "/probes/")


class _Application:
    """The parts that all have in common."""

    def __init__(self) -> None:
        self._new_store = STORES[os.environ.get(STORE_VARIABLE, "sqlite")]

    def new_store(self, shard: Shard) -> Any:
        """The store that the environment names, in the shard's recovery log."""
        return self._new_store(shard)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """JSON lines."""
        del journal_spec
        return JsonType()

    def consume_message(
        self, shard: Shard, store: SumsStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Messages come in batches."""
        raise NotImplementedError("consume_batch is used")

    def finalize_txn(self, shard: Shard, store: SumsStore, publisher: Publisher) -> None:
        """Write what is pending."""
        store.flush()


class MessageApplication(_Application):
    """`consume_message`."""

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """JSON lines."""
        del journal_spec
        return RECORDS

    def consume_message(
        self, shard: Shard, store: SumsStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count one message."""
        add_record(store.pending, envelope.message)


class BatchApplication(_Application):
    """`consume_batch` of JSON lines."""

    def consume_batch(
        self, shard: Shard, store: SumsStore, batch: MessageBatch, publisher: Publisher
    ) -> None:
        """Count a run of messages, and publish the probes among them."""
        if isinstance(store, AggregateSums):
            store.update(batch)
        elif len(batch) < FEW:
            for payload in batch.payloads:
                add_record(store.pending, decode_record(payload))
        else:
            add_table(store.pending, batch.to_arrow(COLUMNS))


class ProbedApplication(BatchApplication):
    """The same, and probes among the rows are published."""

    def consume_batch(
        self, shard: Shard, store: SumsStore, batch: MessageBatch, publisher: Publisher
    ) -> None:
        """Count a run of messages, and publish the probes among them."""
        super().consume_batch(shard, store, batch, publisher)
        probes = [key for key in store.pending if key.startswith("probe-")]
        if probes:
            target = MappedJournal(probes_journal(shard.spec.sources[0].journal), NDJSON)
            for key in probes:
                del store.pending[key]
                publisher.publish_uncommitted(target, Seen(Meta(), key), SEEN)


class ArrowApplication(_Application):
    """`consume_batch` of Arrow messages."""

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Arrow batches under one UUID."""
        del journal_spec
        return ArrowType()

    def consume_batch(
        self, shard: Shard, store: SumsStore, batch: MessageBatch, publisher: Publisher
    ) -> None:
        """Count the rows of a run of messages."""
        if isinstance(store, AggregateSums):
            store.update(batch)
            return
        rows = [message.rows for message in batch.messages() if message.rows is not None]
        add_batches(store.pending, rows)


APPLICATIONS = {
    "message": "bench.dataplane.app:MessageApplication",
    "batch": "bench.dataplane.app:BatchApplication",
    "arrow": "bench.dataplane.app:ArrowApplication",
    "probed": "bench.dataplane.app:ProbedApplication",
}
