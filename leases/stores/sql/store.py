"""Record store in an SQL database: PostgreSQL, or a SQLite file shared by processes of one machine.

The database does not know which workers live: observers watch the counters that holders move. Its advantage is that a
checkpoint can be part of another transaction (`broadsheet.leases.stores.sql.records.SqlRecords`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from broadsheet.consumer.stores.sql_dialect import dialect_of
from broadsheet.leases.errors import ThrottlingError, UnreadableLeaseError
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import OnUnreadable, log_unreadable
from broadsheet.leases.stores.sql.records import TABLE_NAME, SqlRecords, translated

T = TypeVar("T")

PAGE_ROWS = 500
"""Rows that a scan reads at a time."""


class SqlRecordStore:
    """Implements `broadsheet.leases.store.RecordStore`. Every call is one transaction on a thread of
    asyncio's pool.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table_name: str = TABLE_NAME,
        lock_wait_seconds: float = 5.0,
        page_rows: int = PAGE_ROWS,
    ) -> None:
        """Describe the store; the database is not asked yet.

        Args:
            engine: PostgreSQL or SQLite (a file). Stays the application's own.
            table_name: Of the table; one for each application that shares the database.
            lock_wait_seconds: Longest wait for the lock of a record, after which a call raises `ThrottlingError`.
            page_rows: Rows that a scan reads at a time.

        Raises:
            ValidationError: the engine's database is none that this store knows.
        """
        self._engine = engine
        # The store never takes over other connections, because no transaction holds a record lock for long.
        self._dialect = dialect_of(
            engine, lock_wait_seconds=lock_wait_seconds, takeover_seconds=lock_wait_seconds
        )
        self._page_rows = page_rows
        self._lock_wait_seconds = lock_wait_seconds
        self._is_postgresql = engine.dialect.name == "postgresql"
        self._turn = threading.Lock()
        self.records = SqlRecords(table_name)
        """The same table, for transactions of the caller's."""

    @property
    def tells_who_lives(self) -> bool:
        """False, because a row does not show whether its owner lives."""
        return False

    async def exists(self) -> bool:
        """Return whether the table is there."""
        return await self._read(self._has_table)

    async def create_store(self) -> bool:
        """Create the table, serialised among processes; return False if it exists."""
        created = False

        def create(connection: Connection) -> None:
            nonlocal created
            created = not self._has_table(connection)
            self.records.table.create(connection, checkfirst=True)

        def prepare() -> None:
            with translated():
                self._dialect.prepare(create)

        await asyncio.to_thread(prepare)
        return created

    async def delete_store(self) -> None:
        """Drop the table."""
        await self._write(lambda connection: self.records.table.drop(connection, checkfirst=True))

    async def get(self, key: str) -> Versioned | None:
        """Return the last committed record."""
        return await self._read(lambda connection: self.records.get(connection, key))

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield records; each page is a snapshot."""
        after = ""
        while True:
            rows = await self._read(
                lambda connection, after=after: self.records.page(  # type: ignore[misc]
                    connection, after=after, owner=owner, limit=self._page_rows
                )
            )
            for row in rows:
                try:
                    found = row.read()
                except UnreadableLeaseError as error:
                    on_unreadable(error)
                    continue
                yield found
            if len(rows) < self._page_rows:
                return
            after = rows[-1].key

    async def create(self, record: LeaseRecord) -> Versioned:
        """Insert a record."""
        return await self._write(lambda connection: self.records.create(connection, record))

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Update a record; this is the most frequent operation of holders."""
        if self._is_postgresql:
            return await asyncio.to_thread(self._replace_alone, record, expected)
        return await self._write(
            lambda connection: self.records.replace(connection, record, expected)
        )

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Delete a record."""
        return await self._write(lambda connection: self.records.delete(connection, key, expected))

    async def join(self, worker: str) -> None:
        """Do nothing, because a worker is alive while its counters move."""

    def _has_table(self, connection: Connection) -> bool:
        return sa.inspect(connection).has_table(self.records.table.name)

    async def _read(self, read: Callable[[Connection], T]) -> T:
        def run() -> T:
            with translated(), self._dialect.begin_read() as connection:
                return read(connection)

        return await asyncio.to_thread(run)

    async def _write(self, write: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._in_turn(), translated(), self._dialect.begin_write() as connection:
                written = write(connection)
                with translated(outcome_unknown=True):
                    connection.commit()
                return written

        return await asyncio.to_thread(run)

    def _replace_alone(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Update a record in a single statement, because each further one costs a round trip.

        Where the server's default is not READ COMMITTED, a rival's write is a failed call instead of a conflict.
        """
        with (
            translated(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            return self.records.replace(
                connection,
                record,
                expected,
                lock_wait_milliseconds=int(self._lock_wait_seconds * 1000),
            )

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Serialise writing threads in SQLite, which would make the waiting ones sleep for too long."""
        if self._is_postgresql:
            yield
            return
        if not self._turn.acquire(timeout=self._lock_wait_seconds):
            raise ThrottlingError("other threads of this process write to the file")
        try:
            yield
        finally:
            self._turn.release()
