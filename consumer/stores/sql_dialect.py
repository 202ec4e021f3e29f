"""The databases that `SqlStore` supports: beginning of transactions, locks of the fence's row, upserts of runs.

Both begin a transaction such that its fence cannot be raised by others while it is open: SQLite by taking the file's
only write lock, PostgreSQL by locking the row. An old primary therefore learns *before* it does any work that it is
fenced.

The price is that an old primary which was stopped in mid-transaction blocks its successor. PostgreSQL's successor ends
that connection after a moment; SQLite's must wait, because only the kernel releases the lock of a process.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from broadsheet.consumer.stores.settled_files import settle
from broadsheet.consumer.stores.sqlite.connections import authorize_in_txn
from broadsheet.consumer.stores.sqlite.tables import execute_in_runs
from broadsheet.runtime.errors import ValidationError

MODE_RETRY_SECONDS_MAX = 0.02
"""Longest wait before another attempt to set WAL mode, which takes others a few milliseconds."""
SetClause: TypeAlias = Callable[[Any], Mapping[str, Any]]
"""Returns, given the columns of a new row, what to set in the old one that has its key. `Any`: SQL expressions."""


class RowRun:
    """Rows to insert into a table, or to update it with."""

    def __init__(
        self, table: sa.Table, columns: Mapping[str, list[Any]], set_: SetClause | None
    ) -> None:
        """Check that the columns belong to the table.

        Args:
            table: It has a primary key.
            columns: By name, of one length.
            set_: None: a row that is there gets all new values.

        Raises:
            ValidationError: the table has no such column, or one of its key is missing.
        """
        self.table, self.columns = table, columns
        self.key = [column.name for column in table.primary_key]
        self.count = len(next(iter(columns.values()), ()))
        self._set = set_
        for name in columns:
            if name not in table.c:
                raise ValidationError(
                    f"rows.{name}",
                    f"expected a column of {table.name}: {', '.join(table.c.keys())}",
                )
        if not self.key or not set(self.key) <= columns.keys():
            raise ValidationError(
                "rows",
                f"expected the primary key of {table.name}: {', '.join(self.key) or 'it has none'}",
            )

    def resolved(self, insert: Any) -> Any:
        """Return an insert with what it does to rows whose key is there. `Any`: a dialect's own insert."""
        new = insert.excluded
        changes = (
            {name: new[name] for name in self.columns if name not in self.key}
            if self._set is None
            else self._set(new)
        )
        if not changes:
            return insert.on_conflict_do_nothing(index_elements=self.key)
        return insert.on_conflict_do_update(index_elements=self.key, set_=dict(changes))

    def parts_of_distinct_keys(self) -> Iterator[Mapping[str, list[Any]]]:
        """Yield the columns in parts, in none of which a key occurs twice; done in order they do what the run does."""
        keys = list(zip(*(self.columns[name] for name in self.key), strict=True))
        if len(set(keys)) == len(keys):
            yield self.columns
        elif self._set is None:
            yield self._rows(sorted(dict(zip(keys, range(len(keys)), strict=True)).values()))
        else:
            seen: Counter[tuple[Any, ...]] = Counter()
            rounds: list[list[int]] = []
            for row, key in enumerate(keys):
                if seen[key] == len(rounds):
                    rounds.append([])
                rounds[seen[key]].append(row)
                seen[key] += 1
            yield from map(self._rows, rounds)

    def _rows(self, rows: list[int]) -> Mapping[str, list[Any]]:
        return {name: [column[row] for row in rows] for name, column in self.columns.items()}


class TxnGuard(Protocol):
    """Keeps a transaction from being ended by statements and driver calls of the application."""

    def release(self) -> None:
        """Let the commit through that follows."""
        ...

    def close(self) -> None:
        """Leave the connection as others expect it; it is not used in the transaction any more. Idempotent."""
        ...


class SqlDialect(Protocol):
    """The differences between databases."""

    bounds_text: bool
    """Whether a column refuses text that is longer than is declared."""

    def begin_write(self) -> Connection:
        """Return a connection in a new transaction that may write."""
        ...

    def begin_read(self) -> Connection:
        """Return a connection in a new transaction that sees one committed snapshot."""
        ...

    def lock_rows(self, query: sa.Select[int, int]) -> sa.Select[int, int]:
        """Return `query` such that its rows cannot be changed by others before our transaction ends."""
        ...

    def is_open(self, connection: Connection) -> bool:
        """Tell whether the database still has the transaction that `begin_write` began."""
        ...

    def guard(self, connection: Connection) -> TxnGuard:
        """Have the database refuse whatever would end the transaction before the store does."""
        ...

    def txn_mark(self) -> sa.ColumnElement[int]:
        """Return what the database calls the transaction in which it is asked; another one has another mark."""
        ...

    def prepare(self, create: Callable[[Connection], None]) -> None:
        """Set the database up, and run `create` alone among all processes that do so."""
        ...

    def can_use(self, connection: Connection, table_name: str) -> bool:
        """Tell whether a table is there, and this user may read, insert and delete its rows."""
        ...

    def settle(self, connection: Connection) -> None:
        """Make durable what earlier processes committed and may not have synced; for a transaction that may write."""
        ...

    def taking_over(self, connection: Connection) -> AbstractContextManager[None]:
        """Return a context in which a statement of `connection` gets past older holders of its locks."""
        ...

    def upsert(self, connection: Connection, run: RowRun) -> None:
        """Insert a run's rows, in order; those whose key is there update it."""
        ...


def dialect_of(engine: Engine, *, lock_wait_seconds: float, takeover_seconds: float) -> SqlDialect:
    """Return the dialect of the engine's database.

    Raises:
        ValidationError: this store does not support the database, or it is not persistent.
    """
    if engine.dialect.name == "postgresql":
        return PostgresqlDialect(
            engine, lock_wait_seconds=lock_wait_seconds, takeover_seconds=takeover_seconds
        )
    if engine.dialect.name == "sqlite":
        return SqliteDialect(engine, lock_wait_seconds=lock_wait_seconds)
    raise ValidationError(
        "engine", f"expected a PostgreSQL or SQLite engine, got {engine.dialect.name}"
    )


def _is_locked(error: BaseException) -> bool:
    return isinstance(error, sa.exc.OperationalError) and "locked" in str(error.orig)


class SqliteDialect:
    """SQLite files, in WAL mode so that committed reads never wait."""

    bounds_text = False

    def __init__(self, engine: Engine, *, lock_wait_seconds: float) -> None:
        if engine.url.database in (None, "", ":memory:"):
            raise ValidationError(
                "engine", "expected a SQLite file; a memory database keeps nothing"
            )
        self._engine = engine
        self._lock_wait_milliseconds = int(lock_wait_seconds * 1000)

    def begin_write(self) -> Connection:
        """Take the file's write lock at once; with the driver's own BEGIN it would come with the first write."""
        return self._begin("BEGIN IMMEDIATE")

    def begin_read(self) -> Connection:
        """Begin a transaction that reads the last commit, also while others write."""
        return self._begin("BEGIN")

    def lock_rows(self, query: sa.Select[int, int]) -> sa.Select[int, int]:
        """Do nothing, because the write lock excludes other writers already."""
        return query

    def is_open(self, connection: Connection) -> bool:
        """Ask the driver: a full disk, or `ON CONFLICT ROLLBACK`, ends it behind SQLAlchemy's back."""
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection), "SQLAlchemy's default driver for SQLite"
        return driver.in_transaction

    def guard(self, connection: Connection) -> TxnGuard:
        """Authorize statements."""
        return _SqliteGuard(connection)

    def txn_mark(self) -> sa.ColumnElement[int]:
        """Return a constant: where the guard lets nothing begin, an open transaction is the one that we began."""
        return sa.literal_column("0", sa.Integer)

    def prepare(self, create: Callable[[Connection], None]) -> None:
        """Set WAL mode, and run `create` under the write lock."""
        # Where two processes prepare a new file, SQLite refuses one of them at once, whatever its lock wait is.
        for attempt in Retrying(
            retry=retry_if_exception(_is_locked),
            stop=stop_after_delay(self._lock_wait_milliseconds / 1000),
            wait=wait_random(0.001, MODE_RETRY_SECONDS_MAX),
            reraise=True,
        ):
            with attempt, self._connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        with self.begin_write() as connection:
            create(connection)
            connection.commit()

    def can_use(self, connection: Connection, table_name: str) -> bool:
        """Return True, because permission to write the file covers all of its tables."""
        return sa.inspect(connection).has_table(table_name)

    def settle(self, connection: Connection) -> None:
        """Write the write-ahead log again: commits behind pages that a failed sync left out would be lost with them.

        The write lock keeps others from changing it meanwhile.
        """
        files = {row.name: row.file for row in connection.exec_driver_sql("PRAGMA database_list")}
        if (wal := Path(f"{files['main']}-wal")).exists():
            settle(wal)

    @contextmanager
    def taking_over(self, connection: Connection) -> Iterator[None]:
        """Wait as usual: only the kernel releases the lock of another process."""
        del connection
        yield

    def upsert(self, connection: Connection, run: RowRun) -> None:
        """Send many rows with each statement, unless it has parameters of its own."""
        names = list(run.columns)
        insert = run.resolved(sqlite.insert(run.table).values(dict.fromkeys(names)))
        compiled = insert.compile(dialect=connection.dialect)
        if compiled.positiontup != names:
            rows = zip(*run.columns.values(), strict=True)
            each = [dict(zip(names, row, strict=True)) for row in rows]
            connection.execute(run.resolved(sqlite.insert(run.table)), each)
            return
        one, text = f"({', '.join('?' * len(names))})", str(compiled)
        columns = [
            _bound(values, run.table.c[name].type, connection)
            for name, values in run.columns.items()
        ]
        execute_in_runs(
            lambda count: text.replace(one, ", ".join([one] * count), 1),
            columns,
            connection.exec_driver_sql,
            connection.exec_driver_sql,
        )

    def _begin(self, statement: str) -> Connection:
        connection = self._connect()
        try:
            connection.exec_driver_sql(statement)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> Connection:
        # The driver's own transactions begin with the first write, which is too late: we begin them by hand.
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {self._lock_wait_milliseconds}")
            # Acknowledgements follow a commit at once, so it must survive a power cut too.
            connection.exec_driver_sql("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


class _SqliteGuard:
    """Has SQLite ask us about each statement that it compiles, the driver's own included.

    After an error that ends the transaction (a full disk, `ON CONFLICT ROLLBACK`) each further row would commit by
    itself. Therefore the driver is told to begin a transaction before such a row, which is refused, too.
    """

    def __init__(self, connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection), "SQLAlchemy's default driver for SQLite"
        self._driver = driver
        self._released = False
        driver.isolation_level = "IMMEDIATE"
        # Also has statements compiled again that others, in transactions of their own, left in the driver's cache.
        driver.set_authorizer(self._authorize)

    def release(self) -> None:
        """Allow everything."""
        self._released = True

    def close(self) -> None:
        """Take the authorizer away; SQLAlchemy resets the driver's isolation level."""
        with suppress(sqlite3.ProgrammingError):  # The connection is closed already.
            self._driver.set_authorizer(None)

    def _authorize(self, action: int, *_: object) -> int:
        if self._released:
            return sqlite3.SQLITE_OK
        return authorize_in_txn(self._driver, action)


class PostgresqlDialect:
    """PostgreSQL, at READ COMMITTED whatever the engine's default: the fence relies on re-evaluated predicates."""

    bounds_text = True

    def __init__(
        self, engine: Engine, *, lock_wait_seconds: float, takeover_seconds: float
    ) -> None:
        self._engine = engine
        self._lock_wait_milliseconds = int(lock_wait_seconds * 1000)
        self._takeover_seconds = takeover_seconds

    def begin_write(self) -> Connection:
        """Begin a transaction that does not wait for locks for ever."""
        connection = self._engine.connect().execution_options(isolation_level="READ COMMITTED")
        try:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {self._lock_wait_milliseconds}")
        except BaseException:
            connection.close()
            raise
        return connection

    def begin_read(self) -> Connection:
        """Begin a transaction that reads one snapshot."""
        return self._engine.connect().execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    def lock_rows(self, query: sa.Select[int, int]) -> sa.Select[int, int]:
        """Lock the rows against every writer."""
        return query.with_for_update()

    def is_open(self, connection: Connection) -> bool:
        """After an error it takes no statement any more, so what is left open is whole."""
        return connection.in_transaction()

    def guard(self, connection: Connection) -> TxnGuard:
        """Open a cursor that outlives the transaction, and whose query fails when a COMMIT completes it."""
        return _PostgresqlGuard(connection)

    def txn_mark(self) -> sa.ColumnElement[int]:
        """Return the transaction's id, which the server already gave it for the lock of the fence's row."""
        return sa.func.txid_current(type_=sa.BigInteger)

    def prepare(self, create: Callable[[Connection], None]) -> None:
        """Run `create` under an advisory lock."""
        with self.begin_write() as connection:
            # CREATE TABLE IF NOT EXISTS fails if two do it at once.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATE_LOCK)))
            create(connection)
            connection.commit()

    def can_use(self, connection: Connection, table_name: str) -> bool:
        """Ask for the privileges: a statement that lacks one would end the transaction."""
        if not sa.inspect(connection).has_table(table_name):
            return False
        quoted = connection.dialect.identifier_preparer.quote(table_name)
        needed = (sa.func.has_table_privilege(quoted, each) for each in _ROW_PRIVILEGES)
        return bool(connection.scalar(sa.select(sa.and_(*needed))))

    def settle(self, connection: Connection) -> None:
        """Do nothing: a server whose sync fails restarts, and recovers from what is on the disk."""
        del connection

    @contextmanager
    def taking_over(self, connection: Connection) -> Iterator[None]:
        """End the connections that block ours for long."""
        backend: int = connection.scalar(sa.select(sa.func.pg_backend_pid())) or 0
        done = threading.Event()
        helper = threading.Thread(
            target=self._end_blockers, args=(backend, done), name="take over", daemon=True
        )
        helper.start()
        try:
            yield
        finally:
            done.set()
            helper.join()

    def upsert(self, connection: Connection, run: RowRun) -> None:
        """Send the columns as arrays, because a statement a row takes five times as long here, and twice there."""
        table, names = run.table, list(run.columns)
        for columns in run.parts_of_distinct_keys():
            arrays = []
            for name, values in columns.items():
                type_ = postgresql.ARRAY(table.c[name].type)
                arrays.append(sa.cast(sa.bindparam(None, values, type_), type_))
            rows = sa.func.unnest(*arrays).table_valued(*names).render_derived()
            insert = postgresql.insert(table).from_select(
                names, sa.select(*(rows.c[name] for name in names))
            )
            connection.execute(run.resolved(insert))

    def _end_blockers(self, backend: int, done: threading.Event) -> None:
        """End the connections of the older holder, which may be a stopped process that will never end them itself."""
        blocker = sa.func.unnest(sa.func.pg_blocking_pids(backend)).column_valued("blocker")
        while not done.wait(self._takeover_seconds):
            try:
                with self._engine.connect() as connection:
                    connection.execute(sa.select(sa.func.pg_terminate_backend(blocker)))
            except sa.exc.DBAPIError:
                # Not allowed to, or no connection left: the statement then fails by its lock timeout and says so.
                return


class _PostgresqlGuard:
    """Makes every COMMIT fail until the cursor is closed, by any way: SQL text, the driver, a procedure.

    A cursor WITH HOLD is read to its end by the COMMIT of its transaction, and an error of its query then aborts the
    transaction (postgresql.org/docs, DECLARE). Needs no table and no privilege. A ROLLBACK closes it, which the
    checkpoint's own statement notices by the transaction's mark.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.exec_driver_sql(_DECLARE_GUARD)

    def release(self) -> None:
        """Close the cursor."""
        self._connection.exec_driver_sql(f"CLOSE {_GUARD}")

    def close(self) -> None:
        """Do nothing: the cursor ends with its transaction."""


_GUARD = "broadsheet_store_commits"
# The text of the error is all that an application sees. random() keeps the planner from evaluating it beforehand.
_DECLARE_GUARD = (
    f"DECLARE {_GUARD} NO SCROLL CURSOR WITH HOLD FOR SELECT CAST("
    "'the application committed store.connection; its state must commit with its checkpoint' "
    "|| left(CAST(random() AS text), 0) AS integer)"
)
_ROW_PRIVILEGES = ("SELECT", "INSERT", "DELETE")
_CREATE_LOCK = 0x62726F61
"""Key of the advisory lock under which checkpoint tables are created; any fixed number."""


def _bound(values: list[Any], type_: sa.types.TypeEngine[Any], connection: Connection) -> list[Any]:
    """Return values as the driver takes them, e.g. times as text."""
    dialect = connection.dialect
    process = type_.dialect_impl(dialect).bind_processor(dialect)
    return values if process is None else [process(value) for value in values]
