"""Connections to a store's SQLite file: readers, and a writer whose transactions only the store can end.

We checkpoint the write-ahead log ourselves (`wal_autocheckpoint = 0`), at moments when we know what it copies.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import structlog

from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.runtime.errors import ValidationError

_FORBIDDEN_PRAGMAS = frozenset(
    {"journal_mode", "locking_mode", "synchronous", "wal_autocheckpoint"}
)
"""Pragmas that recording and the fence rely on."""
_WITHOUT_EFFECT = frozenset({"auto_vacuum", "encoding", "foreign_keys", "page_size"})
"""Pragmas that SQLite passes over in silence in a transaction, or once there are tables."""
CONNECTION_PRAGMAS = frozenset(
    {
        "analysis_limit",
        "automatic_index",
        "busy_timeout",
        "cache_spill",
        "case_sensitive_like",
        "cell_size_check",
        "foreign_keys",
        "ignore_check_constraints",
        "legacy_alter_table",
        "mmap_size",
        "recursive_triggers",
        "reverse_unordered_selects",
        "secure_delete",
        "threads",
        "trusted_schema",
    }
)
"""Pragmas that set what a connection does, and write nothing."""
_WORDS = {"on": 1, "yes": 1, "true": 1, "off": 0, "no": 0, "false": 0}
BEGIN = "BEGIN IMMEDIATE -- of the store"
COMMIT = "COMMIT -- of the store"
ROLLBACK = "ROLLBACK -- of the store"
"""Marked, because a statement that was prepared once is not authorized again: the application's text must differ."""


_WRITES = frozenset(
    (
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_SAVEPOINT,
    )
)
"""Actions that begin a transaction where there is none; statements that change the schema insert into it."""


def authorize_in_txn(connection: sqlite3.Connection, action: int) -> int:
    """Answer whether a statement of the application may do this, for its transaction to be ended by the store alone.

    The connection's `isolation_level` must be one that has the driver begin a transaction before it writes outside of
    one: that is refused, also for statements that are compiled already.
    """
    if action == sqlite3.SQLITE_TRANSACTION:
        return sqlite3.SQLITE_DENY
    if action in _WRITES and not connection.in_transaction:
        # The database ended the transaction after an error; what follows would commit by itself.
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


PRAGMA_ADVICE = (
    "it has no effect in a transaction, and one is always open: give settings of connections to the store, "
    "pragmas={'foreign_keys': 1}"
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FoldedLog:
    """The outcome of an attempt to copy the write-ahead log into the file."""

    is_empty: bool
    """There is no other reader."""
    is_copied: bool
    """The file has all of it, so that SQLite may begin it again with the next transaction."""


class TxnConnection(sqlite3.Connection):
    """The connection that an application writes on; it cannot begin or end transactions, or close it."""

    fqn = ""

    def execute_own(self, statement: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Execute a statement of the store's own."""
        self._own = True
        try:
            return own_cursor(self).execute(statement, parameters)
        finally:
            self._own = False

    def begin_guard(self) -> None:
        """Refuse from now on what only the store may do."""
        super().set_authorizer(self.authorize)

    def close_own(self) -> None:
        """Close it, for the store."""
        super().set_authorizer(None)  # It refers back to us.
        super().close()

    def set_authorizer(self, authorizer_callback: object) -> NoReturn:
        """Refuse: the store has one."""
        del authorizer_callback
        raise StoreError(
            self.fqn,
            "the application set an authorizer of store.connection; the store relies on its own",
        )

    def commit(self) -> NoReturn:
        """Refuse: state commits with its checkpoint."""
        raise self._refused("committed", "its state must commit with its checkpoint")

    def rollback(self) -> NoReturn:
        """Refuse: half a transaction must not commit."""
        raise self._refused("rolled back", "raise an exception to undo a transaction")

    def close(self) -> NoReturn:
        """Refuse: the store closes it."""
        raise self._refused("closed", "the store closes it when it is destroyed")

    def fold(self, *, wait_seconds: float) -> FoldedLog:
        """Copy the write-ahead log into the file, and empty it unless others read in it.

        Args:
            wait_seconds: Longest wait for others.
        """
        (before,) = self.execute_own("PRAGMA busy_timeout").fetchone()
        self.execute_own(f"PRAGMA busy_timeout = {int(wait_seconds * 1000)}")
        try:
            row = self.execute_own("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self.execute_own(f"PRAGMA busy_timeout = {before}")
        busy, frames, copied = row
        return FoldedLog(is_empty=not busy, is_copied=frames == copied)

    _own = False

    def _refused(self, what: str, advice: str) -> StoreError:
        return StoreError(self.fqn, f"the application {what} store.connection; {advice}")

    def authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        """Answer SQLite's question whether a statement may do this."""
        if self._own:
            return sqlite3.SQLITE_OK
        if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_PRAGMA and first is not None:
            name, asks = first.lower(), second is None
            if name == "wal_checkpoint" or (name in _FORBIDDEN_PRAGMAS and not asks):
                return sqlite3.SQLITE_DENY
            if name in _WITHOUT_EFFECT and not asks and self.in_transaction:
                # The driver's error says no more than "not authorized".
                _log.error(
                    "sqlite.pragma_refused", shard=self.fqn, pragma=name, action=PRAGMA_ADVICE
                )
                return sqlite3.SQLITE_DENY
        return authorize_in_txn(self, action)


def own_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Return a cursor whose rows are tuples, whatever `row_factory` the application gave the connection."""
    return sqlite3.Cursor(connection)


def checked_pragmas(pragmas: Mapping[str, str | int]) -> tuple[tuple[str, str | int], ...]:
    """Return settings of connections by lower-case name.

    Raises:
        ValidationError: one is none of `CONNECTION_PRAGMAS`, or its value is none.
    """
    for name, value in pragmas.items():
        if name.lower() not in CONNECTION_PRAGMAS:
            raise ValidationError(
                f"pragmas.{name}", f"expected one of {', '.join(sorted(CONNECTION_PRAGMAS))}"
            )
        if not re.fullmatch(r"-?\w+", str(value)):
            raise ValidationError(f"pragmas.{name}", f"expected a number or a word, got {value!r}")
    return tuple((name.lower(), value) for name, value in pragmas.items())


def set_pragmas(connection: sqlite3.Connection, pragmas: Iterable[tuple[str, str | int]]) -> None:
    """Set a connection up.

    Raises:
        ValidationError: this SQLite took another value.
    """
    for name, value in pragmas:
        connection.execute(f"PRAGMA {name} = {value}")
        taken = own_cursor(connection).execute(f"PRAGMA {name}").fetchone()
        wanted = _WORDS.get(str(value).lower(), value)
        if taken is not None and isinstance(wanted, int) and taken[0] != wanted:
            raise ValidationError(
                f"pragmas.{name}",
                f"expected a value that this SQLite takes, got {value!r}, of which it made {taken[0]}",
            )


def open_writer(
    path: Path,
    *,
    fqn: str,
    durable: bool,
    cache_bytes: int,
    pragmas: Iterable[tuple[str, str | int]] = (),
) -> TxnConnection:
    """Open the connection that writes.

    Args:
        path: The database; made if it is absent.
        fqn: The shard, for errors.
        durable: Whether a commit must survive a power cut by this file alone. A recorded file need not.
        cache_bytes: Bound of the page cache.
        pragmas: The application's settings, checked.
    """
    connection = sqlite3.connect(
        path, isolation_level="IMMEDIATE", check_same_thread=False, factory=TxnConnection
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
    set_pragmas(connection, pragmas)
    connection.begin_guard()
    return connection


def open_reader(path: Path, pragmas: Iterable[tuple[str, str | int]] = ()) -> sqlite3.Connection:
    """Open a connection that cannot write, with the application's settings."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    set_pragmas(connection, pragmas)
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


ResultT = TypeVar("ResultT")


class CommittedReaders:
    """Runs queries on the last *durable* commit, while the writer goes on with the next one and that is recorded.

    One reader is at the newest durable commit. Moving on opens another one, or takes an idle one; readers that queries
    still use stay where they are until the queries end. A checkpoint needs all of them gone for a moment (`pause`).
    """

    def __init__(self, fqn: str, path: Path, pragmas: Iterable[tuple[str, str | int]] = ()) -> None:
        """Create them; queries can be run after the first `advance`.

        Args:
            fqn: The shard, for errors.
            path: The database.
            pragmas: Settings of each connection, checked.
        """
        self._fqn = fqn
        self._pragmas = tuple(pragmas)
        self._path = path
        self._changed = threading.Condition()
        """Guards all that follows; notified when a query or a pause ends."""
        self._paused = False
        self._current: _Reader | None = None
        self._old: set[_Reader] = set()
        self._idle: list[_Reader] = []

    def advance(self) -> None:
        """Have queries that begin from now on see everything committed so far.

        Requires:
            No transaction commits meanwhile.
        """
        with self._changed:
            before = self._current
            reader = (
                self._idle.pop() if self._idle else _Reader(open_reader(self._path, self._pragmas))
            )
            begin_snapshot(reader.connection)
            self._current = reader
            if before is not None:
                self._old.add(before)
                self._retire(before)

    def read(self, function: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        """Return `function(connection)`, on the newest snapshot.

        Raises:
            StoreClosedError: there is none: the store is not restored, or is destroyed.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._paused)
            reader = self._current
            if reader is None:
                raise StoreClosedError(self._fqn)
            reader.users += 1
        try:
            with reader.lock:
                try:
                    return function(reader.connection)
                finally:
                    # The next query is another one, and relies on what a new connection does.
                    reader.connection.row_factory, reader.connection.text_factory = None, str
        finally:
            with self._changed:
                reader.users -= 1
                self._retire(reader)
                self._changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[HeldReader]:
        """Keep the newest snapshot for the block, for a read of many steps; queries go on in between.

        Raises:
            StoreClosedError: there is none: the store is not restored, or is destroyed.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._paused)
            reader = self._current
            if reader is None:
                raise StoreClosedError(self._fqn)
            reader.users += 1
            reader.holders += 1
        try:
            yield HeldReader(reader)
        finally:
            with self._changed:
                reader.users -= 1
                reader.holders -= 1
                self._retire(reader)
                self._changed.notify_all()

    @contextmanager
    def pause(self, *, wait_seconds: float, interrupt: bool) -> Iterator[bool]:
        """Keep queries out of the block; False if those under way do not end in time.

        Args:
            wait_seconds: Longest wait for queries under way; new ones wait until the block ends.
            interrupt: End queries under way: they fail with `sqlite3.OperationalError: interrupted`.

        Requires:
            Everything committed is durable: queries go on with the last commit.
        """
        with self._changed:
            self._paused = True
            if interrupt:
                self._interrupt()
            # Not waited for, because a held snapshot lasts long, and waiting would block every commit.
            patience = wait_seconds if interrupt or not self._is_held() else 0.0
            quiet = self._changed.wait_for(self._is_quiet, patience)
            if quiet and self._current is not None:
                end_snapshot(self._current.connection)
        try:
            yield quiet
        finally:
            with self._changed:
                if quiet and self._current is not None:
                    begin_snapshot(self._current.connection)
                self._paused = False
                self._changed.notify_all()

    def close(self) -> None:
        """End all queries, and close. Idempotent."""
        with self._changed:
            self._interrupt()
            readers = self._all()
            self._current = None
            self._old.clear()
            self._idle.clear()
        for reader in readers:
            with reader.lock:
                reader.connection.close()

    def _all(self) -> list[_Reader]:
        return [*self._old, *self._idle, *([self._current] if self._current else [])]

    def _is_quiet(self) -> bool:
        return all(reader.users == 0 for reader in self._all())

    def _is_held(self) -> bool:
        return any(reader.holders for reader in self._all())

    def _interrupt(self) -> None:
        for reader in self._all():
            reader.connection.interrupt()

    def _retire(self, reader: _Reader) -> None:
        """End an old reader's transaction once it has no users, so that it no longer holds the log back."""
        if reader.users == 0 and reader in self._old:
            end_snapshot(reader.connection)
            self._old.remove(reader)
            self._idle.append(reader)


class _Reader:
    """A connection in a read transaction, and how many queries use it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.users = 0
        self.holders = 0
        """Of the users, those that take many steps."""


class HeldReader:
    """A snapshot that is held; for one thread."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader

    def run(self, function: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        """Return `function(connection)`, with exclusive use of the connection.

        A statement that is not finished between two calls counts as running: an interrupt reaches it.
        """
        with self._reader.lock:
            return function(self._reader.connection)
