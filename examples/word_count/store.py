"""The store of the second stage's counts; shards of the first stage keep only a checkpoint."""

from __future__ import annotations

import sqlite3

from broadsheet.consumer import Shard
from broadsheet.consumer.stores import SqliteStore

_SCHEMA = "CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count INTEGER NOT NULL)"
_ADD = "INSERT INTO counts VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET count = counts.count + 1"
_TOP = "SELECT word, count FROM counts ORDER BY count DESC, word LIMIT ?"


class CountStore(SqliteStore):
    """A row a word, in a SQLite file that the shard's recovery log has."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, schema=_SCHEMA)

    def add(self, word: str) -> None:
        """Add one to a word's count, within the current transaction."""
        self.connection.execute(_ADD, (word,))

    def counts_of(self, words: list[str]) -> dict[str, int]:
        """Return the counts of words as of the last commit, without words that never came."""

        def look_up(connection: sqlite3.Connection) -> dict[str, int]:
            marks = ",".join("?" * len(words))
            query = f"SELECT word, count FROM counts WHERE word IN ({marks})"  # noqa: S608 - question marks only
            return dict(connection.execute(query, words).fetchall())

        return self.read(look_up)

    def most_frequent(self, limit: int) -> dict[str, int]:
        """Return the counts of the most frequent words as of the last commit, most first."""
        return self.read(lambda connection: dict(connection.execute(_TOP, (limit,)).fetchall()))
