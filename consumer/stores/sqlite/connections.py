"""Connections to a store's SQLite file: readers, and one that writes, whose transactions only the store can end.

We checkpoint the write-ahead log ourselves (`wal_autocheckpoint = 0`), at moments when we know what it copies.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, NoReturn

from consumer.errors import StoreError

_FORBIDDEN_PRAGMAS = frozenset(
    {"journal_mode", "locking_mode", "synchronous", "wal_autocheckpoint"}
)
"""What recording and the fence rest on."""

BEGIN = "BEGIN IMMEDIATE -- of the store"
COMMIT = "COMMIT -- of the store"
ROLLBACK = "ROLLBACK -- of the store"
"""Marked, because a statement that was prepared once is not authorized again: the application's text must differ."""


class TxnConnection(sqlite3.Connection):
    """The connection that an application writes on; it cannot begin or end transactions, or close it."""

    fqn = ""

    def execute_own(self, statement: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Execute a statement of the store's own."""
        self._own = True
        try:
            return self.execute(statement, parameters)
        finally:
            self._own = False

    def close_own(self) -> None:
        """Close it, for the store."""
        self.set_authorizer(None)  # It refers back to us.
        super().close()

    def commit(self) -> NoReturn:
        """Refuse: state commits with its checkpoint."""
        raise self._refused("committed", "its state must commit with its checkpoint")

    def rollback(self) -> NoReturn:
        """Refuse: half a transaction must not commit."""
        raise self._refused("rolled back", "raise an exception to undo a transaction")

    def close(self) -> NoReturn:
        """Refuse: the store closes it."""
        raise self._refused("closed", "the store closes it when it is destroyed")

    _own = False

    def _refused(self, what: str, advice: str) -> StoreError:
        return StoreError(self.fqn, f"the application {what} store.connection; {advice}")

    def authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        """Answer SQLite's question whether a statement may do this."""
        if self._own:
            return sqlite3.SQLITE_OK
        if action in (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_PRAGMA and first is not None:
            name, asks = first.lower(), second is None
            if name == "wal_checkpoint" or (name in _FORBIDDEN_PRAGMAS and not asks):
                return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


def open_writer(path: Path, *, fqn: str, durable: bool, cache_bytes: int) -> TxnConnection:
    """Open the connection that writes.

    Args:
        path: The database; made if it is absent.
        fqn: The shard, for errors.
        durable: Whether a commit must survive a power cut by this file alone. A recorded file need not.
        cache_bytes: Bound of the page cache.
    """
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, factory=TxnConnection
    )
    connection.fqn = fqn
    for pragma in (
        "journal_mode = WAL",
        "wal_autocheckpoint = 0",
        f"synchronous = {'FULL' if durable else 'OFF'}",
        f"cache_size = -{cache_bytes // 1024}",
        "temp_store = MEMORY",
    ):
        connection.execute(f"PRAGMA {pragma}")
    connection.set_authorizer(connection.authorize)
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = ON")
    return connection


def begin_snapshot(connection: sqlite3.Connection) -> None:
    """Have a reader see the last commit and nothing newer from now on."""
    end_snapshot(connection)
    connection.execute("BEGIN")
    # A transaction takes its snapshot with its first read.
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


def end_snapshot(connection: sqlite3.Connection) -> None:
    """Let go of what a reader sees."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
