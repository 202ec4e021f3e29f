"""The application: the sum of every stream, published once the stream has ended.

The sums are right, and each is published once, whatever happens to the members: `python -m
broadsheet.examples.stream_sum.run` publishes streams in the most confusing ways that are allowed, and checks the sums.
"""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from broadsheet.consumer import Shard
from broadsheet.examples.stream_sum.messages import CHUNKS, SUM_JOURNALS, SUMS
from broadsheet.examples.stream_sum.store import (
    JsonStreamStore,
    SqliteStreamStore,
    SqlStreamStore,
    StreamStore,
)
from broadsheet.journals import (
    Envelope,
    Flags,
    JournalSpec,
    MappedJournal,
    MessageType,
    Publisher,
    modulo_mapping,
)

STORE_VARIABLE = "STREAM_SUM_STORE"
"""`sqlite`, which is the default, `json`, or the URL of a database."""
STATE_DIRECTORY_VARIABLE = "BROADSHEET_STATE_DIR"
"""Directory of files that are in no recovery log; `shardctl dev` sets it."""


class StreamSums:
    """Adds up streams."""

    def __init__(self, store: str = "sqlite", state_directory: Path = Path("stream-sum")) -> None:
        """Choose where open streams are kept.

        Args:
            store: `sqlite`, `json`, or a database URL of SQLAlchemy's.
            state_directory: Holds the files of shards without a recovery log; not used with a database.
        """
        self._store = store
        self._directory = state_directory
        self._engine = None if store in ("json", "sqlite") else _engine_of(store)
        targets = [MappedJournal(journal, SUMS.content_type) for journal in SUM_JOURNALS]
        self._mapping = modulo_mapping(lambda found: str(found.stream).encode(), lambda: targets)

    def new_store(self, shard: Shard) -> StreamStore:
        """Return the shard's store."""
        if self._engine is not None:
            return SqlStreamStore(shard, self._engine)
        if self._store == "json":
            return JsonStreamStore(shard, self._directory)
        return SqliteStreamStore(shard, self._directory)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return the type of chunks; there is no other source."""
        del journal_spec
        return CHUNKS

    def consume_message(
        self, shard: Shard, store: StreamStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Add one chunk to its stream, and publish the sum if it is the last."""
        del shard
        if envelope.flags == Flags.ACK_TXN:
            return
        chunk = envelope.message
        progress = store.progress(chunk.stream).with_chunk(chunk)
        if chunk.eof:
            store.forget(chunk.stream)
            publisher.publish_uncommitted(self._mapping, progress.result(chunk.stream), SUMS)
        else:
            store.keep(chunk.stream, progress)

    def finalize_txn(self, shard: Shard, store: StreamStore, publisher: Publisher) -> None:
        """Do nothing, because nothing is cached."""


def _engine_of(url: str) -> Engine:
    # Each shard uses a connection for its transaction and sometimes one for a read.
    return sa.create_engine(url, max_overflow=60)


def create() -> StreamSums:
    """Make the application as the environment says."""
    directory = os.environ.get(STATE_DIRECTORY_VARIABLE, "stream-sum")
    return StreamSums(os.environ.get(STORE_VARIABLE, "sqlite"), Path(directory))
