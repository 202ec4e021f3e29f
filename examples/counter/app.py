"""The smallest application: it counts messages by key, exactly once."""

from __future__ import annotations

import os
from pathlib import Path

from broadsheet.consumer import Shard
from broadsheet.consumer.stores import JsonFileStore
from broadsheet.journals import Envelope, Flags, JournalSpec, JsonType, MessageType, Publisher

STATE_DIRECTORY_VARIABLE = "BROADSHEET_STATE_DIR"
"""Environment variable that names where shards keep their files; `shardctl dev` sets it."""


class Counter:
    """Counts messages by their `key`."""

    def __init__(self, state_directory: Path | None = None) -> None:
        self._directory = state_directory or Path(
            os.environ.get(STATE_DIRECTORY_VARIABLE, "counter-state")
        )

    def new_store(self, shard: Shard) -> JsonFileStore[dict[str, int]]:
        """Keep the counts in a local file, one directory a shard."""
        return JsonFileStore(shard, self._directory, initial={}, state_type=dict[str, int])

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Messages are JSON lines."""
        return JsonType()

    def consume_message(
        self,
        shard: Shard,
        store: JsonFileStore[dict[str, int]],
        envelope: Envelope,
        publisher: Publisher,
    ) -> None:
        """Count one message."""
        if envelope.flags == Flags.ACK_TXN:
            return  # It ends a publisher's transaction, and has nothing but a UUID.
        key = str(envelope.message["key"])
        store.state[key] = store.state.get(key, 0) + 1

    def finalize_txn(
        self, shard: Shard, store: JsonFileStore[dict[str, int]], publisher: Publisher
    ) -> None:
        """Do nothing, because nothing is cached."""
