"""The store: a table of pages in SQLite, recorded in the shard's recovery log."""

from __future__ import annotations

import sqlite3

from broadsheet.consumer import Shard
from broadsheet.consumer.stores import SqliteStore

SCHEMA = """
CREATE TABLE IF NOT EXISTS pages (
    page TEXT PRIMARY KEY,
    visits INTEGER NOT NULL,
    milliseconds INTEGER NOT NULL
)
"""
ADD = """
INSERT INTO pages VALUES (?, 1, ?) ON CONFLICT (page) DO UPDATE SET
    visits = visits + 1,
    milliseconds = milliseconds + excluded.milliseconds
"""
TOP = "SELECT page, visits, milliseconds FROM pages ORDER BY visits DESC, page LIMIT ?"


class PageStore(SqliteStore):
    """One row a page. What a method changes commits with the messages that it came from."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, schema=SCHEMA)

    def add(self, page: str, milliseconds: int) -> None:
        """Add a visit, in the running transaction."""
        self.connection.execute(ADD, (page, milliseconds))

    def top(self, limit: int) -> list[dict[str, object]]:
        """Return the pages with most visits, as of the last commit; on any thread."""

        def look(connection: sqlite3.Connection) -> list[dict[str, object]]:
            rows = connection.execute(TOP, (limit,)).fetchall()
            return [dict(zip(("page", "visits", "milliseconds"), row, strict=True)) for row in rows]

        return self.read(look)
