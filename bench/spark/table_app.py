"""Shards that hold many rows: each message says how many more to insert."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from broadsheet.consumer.application import Shard
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import Flags
from broadsheet.wire import journal_pb2

DIRECTORY = "BENCH_TABLES"
"""Environment variable: where the files are."""
SCHEMA = "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, k TEXT, v REAL, s TEXT)"
_INSERT = """
    INSERT INTO rows WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < ?)
    SELECT id, 'key-' || (id % 1000), id + 0.5, 'some text of sixteen' FROM n
"""


class TableApplication:
    """Keeps its rows in files that stay, so that others can read the very same ones."""

    def new_store(self, shard: Shard) -> Any:
        """Open the shard's file."""
        directory = Path(os.environ[DIRECTORY]) / quote(shard.id, safe="")
        return SqliteStore(shard, LocalState(directory), schema=SCHEMA)

    def message_type(self, journal_spec: journal_pb2.JournalSpec) -> MessageType:
        """JSON lines."""
        del journal_spec
        return JsonType()

    def consume_message(
        self, shard: Shard, store: Any, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Insert what the message says."""
        del shard, publisher
        if envelope.flags != Flags.ACK_TXN:
            store.connection.execute(_INSERT, (envelope.message["rows"],))

    def finalize_txn(self, shard: Shard, store: Any, publisher: Publisher) -> None:
        """Nothing is buffered."""
