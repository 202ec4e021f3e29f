"""The application that fails over: keeps filler and a count in a recorded SQLite file, and echoes who answered."""

from __future__ import annotations

import os
from typing import Any

from broadsheet.consumer.application import Shard
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire.journal_pb2 import JournalSpec

SOURCE, OUTPUT = "bench/failover/in", "bench/failover/out"
SCHEMA = "CREATE TABLE IF NOT EXISTS kept (id INTEGER PRIMARY KEY, content BLOB)"


class Echo:
    """Publishes, for each message, its number and the process that consumed it."""

    def new_store(self, shard: Shard) -> SqliteStore:
        """Open what the recovery log replayed to."""
        return SqliteStore(shard, schema=SCHEMA)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """JSON lines."""
        del journal_spec
        return JsonType()

    def consume_message(
        self, shard: Shard, store: SqliteStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Keep what is to be kept, and echo."""
        del shard
        message: dict[str, Any] = envelope.message
        filler = os.urandom(int(message.get("keep_bytes", 0)))
        number = int(message["n"])
        store.connection.execute(
            "INSERT OR REPLACE INTO kept VALUES (?, ?)", (number if filler else 0, filler)
        )
        echo = {"n": number, "pid": os.getpid()}
        publisher.publish_uncommitted(MappedJournal(OUTPUT, NDJSON), echo, JsonType())

    def finalize_txn(self, shard: Shard, store: SqliteStore, publisher: Publisher) -> None:
        """Nothing is buffered."""


def create() -> Echo:
    """Make the application, on an executor."""
    return Echo()
