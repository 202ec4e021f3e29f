"""The application that is measured: counts and sums `v` by `k`, and publishes the sums that a transaction changed.

State is in SQLite, recorded into the shard's recovery log, which a standby plays; the keys of a shard are few, so they
are in memory too while it is the primary.
"""

from __future__ import annotations

import os

import msgspec

from broadsheet.consumer.application import Shard
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.journals.content.json import NDJSON, JsonStructType, JsonType, Meta
from broadsheet.journals.message.batch import Envelope, MessageBatch, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import Checkpoint

_SCHEMA = "CREATE TABLE IF NOT EXISTS sums (k TEXT PRIMARY KEY, n INTEGER, total INTEGER)"
AT_ONCE_KEYS_MAX = 64
"""Keys whose sums are published as they change: then they travel while the transaction before still commits, in one
append with its acknowledgement. More are published once a transaction, however often they change in it."""
_UPSERT = "INSERT OR REPLACE INTO sums VALUES (?, ?, ?)"


class Record(msgspec.Struct):
    """The fields of a message that are counted."""

    k: str = ""
    """Empty in acknowledgements."""
    v: int = 0


class KeySums(msgspec.Struct):
    """A result: the sums of one key."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    k: str = ""
    n: int = 0
    total: int = 0
    pid: int = 0
    """The process that counted."""


RESULTS = JsonStructType(KeySums)


def sums_journal(rows_journal: str) -> str:
    """Return where the sums of a journal of rows are published."""
    return rows_journal.replace("/rows/", "/sums/")


class SumsStore(SqliteStore):
    """A row a key; changes are written with the transaction that they are of."""

    def __init__(self, shard: Shard) -> None:
        """Create a store in the shard's recovery log."""
        super().__init__(shard, schema=_SCHEMA)
        self.sums: dict[str, list[int]] = {}
        """[n, total] by key."""
        self.unwritten: set[str] = set()
        """Keys whose row is older than their sums."""
        self.unpublished: set[str] = set()

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Load the sums as of the last commit."""
        checkpoint = super().restore_checkpoint(shard)
        rows = self.read(lambda connection: connection.execute("SELECT k, n, total FROM sums"))
        self.sums = {k: [n, total] for k, n, total in rows}
        self.unwritten.clear()
        self.unpublished.clear()
        return checkpoint

    def flush(self) -> None:
        """Write what changed."""
        rows = [(key, *self.sums[key]) for key in self.unwritten]
        self.connection.executemany(_UPSERT, rows)
        self.unwritten.clear()


class KeySumsApplication:
    """Counts and sums."""

    def __init__(self) -> None:
        """Prepare to decode whole batches."""
        self._decode = msgspec.json.Decoder(list[Record]).decode

    def new_store(self, shard: Shard) -> SumsStore:
        """Open what the recovery log replayed to."""
        return SumsStore(shard)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """JSON lines."""
        del journal_spec
        return JsonType()

    def consume_batch(
        self, shard: Shard, store: SumsStore, batch: MessageBatch, publisher: Publisher
    ) -> None:
        """Add a run of rows, and publish at once what changed if that is little."""
        sums, changed = store.sums, set()
        for record in self._decode(b"[" + b",".join(batch.payloads) + b"]"):
            found = sums.get(record.k)
            if found is None:
                sums[record.k] = [1, record.v]
            else:
                found[0] += 1
                found[1] += record.v
            changed.add(record.k)
        if sums.pop("", None):
            changed.discard("")
        store.unwritten |= changed
        store.unpublished |= changed
        if len(changed) <= AT_ONCE_KEYS_MAX:
            _publish_changed(shard, store, publisher)

    def consume_message(
        self, shard: Shard, store: SumsStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Messages come in batches."""
        raise NotImplementedError("consume_batch is used")

    def finalize_txn(self, shard: Shard, store: SumsStore, publisher: Publisher) -> None:
        """Write what changed, and publish what is not yet."""
        store.flush()
        _publish_changed(shard, store, publisher)


def _publish_changed(shard: Shard, store: SumsStore, publisher: Publisher) -> None:
    target = MappedJournal(sums_journal(shard.spec.sources[0].journal), NDJSON)
    for key in store.unpublished:
        n, total = store.sums[key]
        publisher.publish_uncommitted(target, KeySums(Meta(), key, n, total, os.getpid()), RESULTS)
    store.unpublished.clear()


def create() -> KeySumsApplication:
    """Make the application, on an executor."""
    return KeySumsApplication()
