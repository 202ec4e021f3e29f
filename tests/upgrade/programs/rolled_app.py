"""The application that is rolled: it counts, and publishes each count, on either release.

It is imported by name from the folder that it is in.
"""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from broadsheet.consumer.stores import JsonFileStore, SqliteStore

# By name, because only the release that runs it has the folder on its path.
found: Any = import_module("doors").found
JsonType = found("JsonType", "broadsheet.journals", "broadsheet.consumer")
MappedJournal = found("MappedJournal", "broadsheet.journals", "broadsheet.consumer")
OUTPUT = MappedJournal("rolled/out", "application/x-ndjson")
_STATE = Path(os.environ["ROLLED_STATE"])
_SCHEMA = "CREATE TABLE IF NOT EXISTS counts (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)"
_COUNT = "INSERT INTO counts VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = n + 1 RETURNING n"

# `Any` in this module: the types that both releases have under other names.


class Rolled:
    """Numbers the messages of each shard, from 1 on: in a JSON file, or in SQLite if the shard's id says so."""

    def new_store(self, shard: Any) -> Any:
        """Open the store; both kinds are kept in recovery logs."""
        if "sqlite" in shard.id:
            return SqliteStore(shard, schema=_SCHEMA)
        return JsonFileStore(shard, _STATE, initial={"n": 0}, state_type=dict[str, int])

    def message_type(self, journal_spec: Any) -> Any:
        """Messages are JSON lines."""
        del journal_spec
        return JsonType()

    def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        """Count the message, and publish its number."""
        if "sqlite" in shard.id:
            (number,) = store.connection.execute(_COUNT).fetchone()
        else:
            number = store.state["n"] = store.state["n"] + 1
        told = {
            "shard": shard.id,
            "key": envelope.message["key"],
            "number": number,
            "at": time.time(),
        }
        publisher.publish_uncommitted(OUTPUT, told, JsonType())

    def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        """Nothing is buffered."""
        del shard, store, publisher
