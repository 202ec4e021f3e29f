"""The open streams of a shard, in a store of the user's choice.

json                     one file: good for some hundred open streams
sqlite                   a table of the shard's own
postgresql://…           a table that all shards share, or any other URL of SQLAlchemy's

The first two are in the shard's recovery log if it has one, else in files that stay where they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite as sqlite_dialect
from sqlalchemy.engine import Engine

from broadsheet.consumer import Checkpoint, Shard, Store
from broadsheet.consumer.stores import (
    JsonFileStore,
    LocalState,
    SqliteStore,
    SqlStore,
    directory_name,
)
from broadsheet.examples.stream_sum.messages import Progress


class StreamStore(Store, Protocol):
    """Keeps the progress of streams that have not ended."""

    def progress(self, stream: str) -> Progress:
        """Return what was read of a stream; nothing, if it is not known."""
        ...

    def keep(self, stream: str, progress: Progress) -> None:
        """Write a stream's progress within the current transaction."""
        ...

    def forget(self, stream: str) -> None:
        """Remove a stream within the current transaction."""
        ...


class JsonStreamStore(JsonFileStore[dict[str, Progress]]):
    """Streams in a JSON file, or in the shard's recovery log."""

    def __init__(self, shard: Shard, directory: Path) -> None:
        super().__init__(shard, directory, initial={}, state_type=dict[str, Progress])

    def progress(self, stream: str) -> Progress:
        """Return what was read of a stream."""
        return self.state.get(stream, Progress())

    def keep(self, stream: str, progress: Progress) -> None:
        """Put it in the state."""
        self.state[stream] = progress

    def forget(self, stream: str) -> None:
        """Take it from the state."""
        self.state.pop(stream, None)


class SqliteStreamStore(SqliteStore):
    """Streams in a SQLite file of the shard's own, or in its recovery log."""

    def __init__(self, shard: Shard, directory: Path) -> None:
        super().__init__(
            shard,
            LocalState(directory.absolute() / directory_name(shard.id)),
            schema="CREATE TABLE IF NOT EXISTS streams (stream TEXT PRIMARY KEY, next_index INTEGER, sum INTEGER)",
        )

    def progress(self, stream: str) -> Progress:
        """Read the stream's row."""
        query = "SELECT next_index, sum FROM streams WHERE stream = ?"
        row = self.connection.execute(query, (stream,)).fetchone()
        return Progress(*row) if row else Progress()

    def keep(self, stream: str, progress: Progress) -> None:
        """Write the stream's row."""
        values = (stream, progress.next_index, progress.sum)
        self.connection.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", values)

    def forget(self, stream: str) -> None:
        """Delete the stream's row."""
        self.connection.execute("DELETE FROM streams WHERE stream = ?", (stream,))


_METADATA = sa.MetaData()
_STREAMS = sa.Table(
    "stream_sum_streams",
    _METADATA,
    sa.Column("stream", sa.String(255), primary_key=True),
    sa.Column("next_index", sa.BigInteger, nullable=False),
    sa.Column("sum", sa.BigInteger, nullable=False),
)
_CREATE_LOCK = 0x73756D
"""Key of the advisory lock under which PostgreSQL's table is created; any fixed number."""


class SqlStreamStore(SqlStore):
    """Streams in a table that the shards share; each stream belongs to one shard."""

    def __init__(self, shard: Shard, engine: Engine) -> None:
        super().__init__(shard, engine)
        self._engine = engine

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Fence older holders, and see that the table is there."""
        checkpoint = super().restore_checkpoint(shard)
        with self._engine.begin() as connection:
            if self._engine.dialect.name == "postgresql":
                # Creating a table "if not exists" fails when two do it at once.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATE_LOCK)))
            _METADATA.create_all(connection)
        return checkpoint

    def progress(self, stream: str) -> Progress:
        """Read the stream's row."""
        query = sa.select(_STREAMS.c.next_index, _STREAMS.c.sum).where(_STREAMS.c.stream == stream)
        row = self.connection.execute(query).one_or_none()
        return Progress(*row) if row else Progress()

    def keep(self, stream: str, progress: Progress) -> None:
        """Write the stream's row."""
        is_postgresql = self._engine.dialect.name == "postgresql"
        insert = (postgresql.insert if is_postgresql else sqlite_dialect.insert)(_STREAMS)
        values = {"next_index": progress.next_index, "sum": progress.sum}
        self.connection.execute(
            insert.values(stream=stream, **values).on_conflict_do_update(
                index_elements=[_STREAMS.c.stream], set_=values
            )
        )

    def forget(self, stream: str) -> None:
        """Delete the stream's row."""
        self.connection.execute(sa.delete(_STREAMS).where(_STREAMS.c.stream == stream))
