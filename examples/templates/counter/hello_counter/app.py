"""The application: it counts messages by their key, and publishes each new count."""

from __future__ import annotations

from broadsheet.consumer import Shard
from broadsheet.consumer.stores import JsonFileStore
from broadsheet.journals import (
    NDJSON,
    Envelope,
    Flags,
    JournalSpec,
    JsonType,
    MappedJournal,
    MessageType,
    Publisher,
)

COUNTS = MappedJournal("hello_counter/counts", NDJSON)
"""Where counts are published: whatever the shard, into one journal."""
JSON = JsonType()


class Counter:
    """Counts messages by `key`: state, counts and read position commit together or not at all."""

    def new_store(self, shard: Shard) -> JsonFileStore[dict[str, int]]:
        """Keep the counts of a shard as one JSON value, recorded in the shard's recovery log."""
        return JsonFileStore(shard, initial={}, state_type=dict[str, int])

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Messages are JSON lines."""
        return JSON

    def consume_message(
        self,
        shard: Shard,
        store: JsonFileStore[dict[str, int]],
        envelope: Envelope,
        publisher: Publisher,
    ) -> None:
        """Count one message. An exception fails the shard, which restarts from its last commit."""
        if envelope.flags == Flags.ACK_TXN:
            return  # It ends a transaction of a publisher, and has nothing but a UUID.
        key = str(envelope.message["key"])
        store.state[key] = store.state.get(key, 0) + 1
        publisher.publish_uncommitted(COUNTS, {"key": key, "count": store.state[key]}, JSON)

    def finalize_txn(
        self, shard: Shard, store: JsonFileStore[dict[str, int]], publisher: Publisher
    ) -> None:
        """Do nothing: all is in the store, and published."""
