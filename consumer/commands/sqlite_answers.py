"""Answers in a table of a `SqliteStore`.

CREATE TABLE broadsheet_answers (id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, content BLOB NOT NULL) WITHOUT ROWID
CREATE INDEX broadsheet_answers_at ON broadsheet_answers (at_ms)
"""

from __future__ import annotations

import sqlite3
from weakref import WeakSet

from broadsheet.consumer.commands.answers import KeptAnswer
from broadsheet.consumer.stores.sqlite.store import SqliteStore

_CREATE = (
    "CREATE TABLE IF NOT EXISTS broadsheet_answers "
    "(id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, content BLOB NOT NULL) WITHOUT ROWID"
)
_CREATE_INDEX = "CREATE INDEX IF NOT EXISTS broadsheet_answers_at ON broadsheet_answers (at_ms)"
_GET = "SELECT at_ms, content FROM broadsheet_answers WHERE id = ?"
_KEEP = "INSERT INTO broadsheet_answers VALUES (?, ?, ?)"
_FORGET = (
    "DELETE FROM broadsheet_answers WHERE id IN "
    "(SELECT id FROM broadsheet_answers WHERE at_ms < ? ORDER BY at_ms LIMIT ?)"
)


class SqliteAnswers:
    """Keeps answers in a `SqliteStore`, which it gives a table at first use."""

    def __init__(self) -> None:
        self._prepared: WeakSet[SqliteStore] = WeakSet()

    def get(self, store: SqliteStore, command_id: str) -> KeptAnswer | None:
        """Return the answer of a command; None if there is none."""
        row = self._connection(store).execute(_GET, (command_id,)).fetchone()
        return None if row is None else KeptAnswer(*row)

    def keep(self, store: SqliteStore, command_id: str, answer: KeptAnswer) -> None:
        """Keep an answer in the running transaction."""
        self._connection(store).execute(_KEEP, (command_id, answer.at_ms, answer.content))

    def forget(self, store: SqliteStore, before_ms: int, limit: int) -> int:
        """Remove the oldest answers from before a time."""
        return self._connection(store).execute(_FORGET, (before_ms, limit)).rowcount

    def _connection(self, store: SqliteStore) -> sqlite3.Connection:
        connection = store.connection
        if store not in self._prepared:
            # In the application's transaction: a store whose transaction does not commit is made again, so that no
            # store is taken for prepared whose table was rolled back.
            connection.execute(_CREATE)
            connection.execute(_CREATE_INDEX)
            self._prepared.add(store)
        return connection
