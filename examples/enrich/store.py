"""The profiles of a shard's accounts: a row each, in a SQLite file that the shard's recovery log has."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from broadsheet.consumer import Shard
from broadsheet.consumer.stores import SqliteStore
from broadsheet.examples.enrich.messages import Payment

_SCHEMA = """CREATE TABLE IF NOT EXISTS profiles (
    account TEXT PRIMARY KEY, payments INTEGER NOT NULL, cents_total INTEGER NOT NULL,
    cents_max INTEGER NOT NULL, last_country TEXT NOT NULL) WITHOUT ROWID"""
_ADD = """INSERT INTO profiles VALUES (?1, 1, ?2, ?2, ?3) ON CONFLICT (account) DO UPDATE SET
    payments = payments + 1, cents_total = cents_total + ?2, cents_max = max(cents_max, ?2), last_country = ?3"""
_LOOK_UP = """SELECT coalesce(payments, 0), coalesce(cents_total, 0), coalesce(cents_max, 0), coalesce(last_country, '')
    FROM json_each(?) AS wanted LEFT JOIN profiles ON account = wanted.value ORDER BY wanted.key"""

Profile = tuple[int, int, int, str]
"""Payments, cents in total, cents of the largest one, country of the last one."""


class ProfileStore(SqliteStore):
    """Keeps profiles."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, schema=_SCHEMA)

    def add(self, payments: Iterable[Payment]) -> None:
        """Take payments into account within the current transaction."""
        rows = ((one.account, one.cents, one.country) for one in payments)
        self.connection.executemany(_ADD, rows)

    def look_up(self, accounts: Sequence[str]) -> list[Profile]:
        """Return profiles as of the last commit, one for each of `accounts`, in their order."""
        wanted = json.dumps(list(accounts))

        def query(connection: sqlite3.Connection) -> list[Profile]:
            return connection.execute(_LOOK_UP, (wanted,)).fetchall()

        return self.read(query)
