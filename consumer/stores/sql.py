"""A store in a shared SQL database: PostgreSQL, or SQLite files.

    CREATE TABLE gazette_checkpoints (shard_fqn VARCHAR(255) PRIMARY KEY, fence INTEGER, checkpoint BYTEA)
    CREATE TABLE gazette_checkpoints_producers (shard_fqn VARCHAR(255), id BYTEA, content BYTEA)

The application's statements and the checkpoint go into one SQL transaction. `fence` counts how often the shard was
restored: a primary that restores raises it, and every transaction checks it when it begins (and holds it) and again in
the update that ends it. An old primary can thus neither start nor end a transaction after its successor restored.
Nor can the application: while it works, the database itself refuses to commit, and the update requires that the
transaction is still the one that began.

The second table has segments that the checkpoint rests on (`broadsheet.journals.message.checkpoint`), written in
the same transaction. It is only needed where a shard's journals have hundreds of producers.

Source: gazette/core consumer/store_sql.go (table, fence). Locking the fence at the start is our own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import (
    CommitFencedError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from broadsheet.consumer.recoverylog.local_state import cut_with_digest
from broadsheet.consumer.registry.failure_kind import is_passing_sqlite_error
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.consumer.stores.sql_dialect import (
    RowRun,
    SetClause,
    SqlDialect,
    TxnGuard,
    dialect_of,
)
from broadsheet.consumer.stores.state_tables import (
    ROWS_PER_BATCH,
    TableScan,
    lists_of,
    picked,
    require_table,
    row_batch,
)
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint, whole_checkpoint
from broadsheet.journals.message.checkpoint import SEGMENT_ID_BYTES, EncodedCheckpoint, encoded
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint

if TYPE_CHECKING:
    import pyarrow as pa

ResultT = TypeVar("ResultT")

CHECKPOINTS_TABLE = "gazette_checkpoints"
_SEGMENTS_SUFFIX = "_producers"
_KEY_LENGTH_MAX = 255
"""Characters of a shard's name in these tables, which is Gazette's bound; ids alone may have 512."""
_NAME_BYTES_MAX = 63
"""PostgreSQL's bound on a table's name."""
_log = structlog.get_logger()


class SqlStore:
    """A store of a shard's state in the application's tables, with its checkpoint beside them.

    Several shards may share a database. Shards that share a *SQLite file* write one after another, so an application
    that holds `connection` for the length of its transactions should give each shard a separate file.
    """

    def __init__(
        self,
        shard: Shard,
        engine: Engine,
        *,
        tables: Mapping[str, sa.Select[Any]] | None = None,
        table_name: str = CHECKPOINTS_TABLE,
        create_table: bool = True,
        lock_wait_seconds: float = 30.0,
        takeover_seconds: float = 1.0,
    ) -> None:
        """Create a store; nothing is done before `restore_checkpoint`.

        Args:
            shard: The shard; its fully qualified name is the key of its checkpoint.
            engine: PostgreSQL or SQLite (a file). Stays the application's own and is never disposed of here. Its pool
                must have two connections for each shard that shares it: one to write, one to read; and one for each
                scan.
            tables: What scans may read, by name: for each the rows of this shard, e.g. `sa.select(counts)`, or with a
                `where` if shards share the table. None: nothing, because only the application knows which rows belong
                to which shard.
            table_name: The checkpoint table.
            create_table: Create the table, and `{table_name}_producers`, if they are absent. Without the latter, or
                where this user may not use it, checkpoints are whole: their length grows with the number of producers.
                If that name is longer than PostgreSQL's 63 bytes, a digest takes the place of its middle.
            lock_wait_seconds: Longest wait for a lock, after which the transaction fails.
            takeover_seconds: An older primary that holds the shard's rows for so long has its connection ended
                (PostgreSQL only).

        Raises:
            ValidationError: this store does not support the engine's database.
        """
        self._fqn = shard.fqn
        self._dialect = dialect_of(
            engine, lock_wait_seconds=lock_wait_seconds, takeover_seconds=takeover_seconds
        )
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        self._create_table = create_table
        self._shown = dict(tables or {})
        self._segments_table = _segments_table(table_name)
        self._segments: set[bytes] = set()
        """Ids of those in the database, as of the last commit that was started."""
        self._table = sa.Table(
            table_name,
            sa.MetaData(),
            sa.Column("shard_fqn", sa.String(_KEY_LENGTH_MAX), primary_key=True),
            sa.Column("fence", sa.Integer, nullable=False),
            sa.Column("checkpoint", sa.LargeBinary, nullable=False),
        )
        self._key = "" if self._dialect.bounds_text else self._fqn
        """Of the shard's rows; the empty string until it is known."""
        self._fence = 0
        self.keeps_segments = False
        """Whether their table is there; known once the checkpoint is restored."""
        self._open: _OpenTxn | None = None
        self._commits = CommitThread(shard.fqn)
        self._closed = False

    @property
    def shard_key(self) -> str:
        """The shard's fully qualified name, with a digest in place of what is longer than 255 characters.

        By it, shards tell their rows apart in a table that they share.
        """
        is_short = len(self._fqn) <= _KEY_LENGTH_MAX
        return self._fqn if is_short else cut_with_digest(self._fqn, _KEY_LENGTH_MAX)

    @property
    def connection(self) -> Connection:
        """The connection of the current transaction, begun at first use; for the worker thread.

        Its commit and rollback are the store's; savepoints are free to use. If the transaction before is still
        committing this waits for it.

        Raises:
            CommitFencedError: a newer primary restored this shard.
            StoreUnavailableError: the database cannot be reached, or its locks were not released in time.
            StoreError: it cannot be used, or the application ended the transaction.
        """
        self._check_not_destroyed()
        if self._open is None:
            self._commits.wait()
            self._open = self._begin()
            # By another thread, which has found nothing to roll back.
            self._check_not_destroyed()
        else:
            self._open.check_whole(self._dialect)
        return self._open.connection

    def _check_not_destroyed(self) -> None:
        """Raise StoreClosedError if the store is destroyed, and leave no lock."""
        if self._closed:
            self._drop_open()
            raise StoreClosedError(self._fqn)

    def upsert(self, table: sa.Table, rows: object, *, set_: SetClause | None = None) -> None:
        """Insert a run of rows in the running transaction; rows whose primary key is there update it.

        The result is that of one statement a row, in their order. PostgreSQL gets one statement for all rows, or as
        many as the most frequent key has rows; SQLite one that is executed for each row.

        Args:
            table: Into which; its primary key tells which rows are the same.
            rows: Columns by name (lists, numpy or Arrow arrays), or anything that pyarrow makes a table of.
            set_: Returns, given the columns of the new row, the columns to set in the old one:
                `lambda new: {"n": counts.c.n + new.n}`. None: all, to the new values.

        Raises:
            ValidationError: columns differ in length, or the table has no such column, or one of the key is missing.
            CommitFencedError, StoreError: as of `connection`.
        """
        run = RowRun(table, lists_of(rows), set_)
        if run.count:
            self._dialect.upsert(self.connection, run)

    def read(self, function: Callable[[Connection], ResultT]) -> ResultT:
        """Return `function(connection)` on a connection that sees the last commit and nothing newer; for queries.

        May be called on any thread. The connection is good only within the call.
        """
        with self._dialect.begin_read() as connection:
            return function(connection)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the tables that the application shows, and their columns."""
        return {name: _schema_of(query) for name, query in self._shown.items()}

    @contextmanager
    def scan(self, table: str, columns: Sequence[str] = ()) -> Iterator[TableScan]:
        """Return the rows of a table as of the last commit, and its checkpoint, in one transaction that only reads."""
        schema = picked(require_table(self.tables(), table), columns)
        try:
            with self._dialect.begin_read() as connection:
                checkpoint = self._committed_checkpoint(connection)
                rows = _rows_of(connection, self._shown[table], schema, fqn=self._fqn)
                with closing(rows) as batches:
                    yield TableScan(checkpoint, schema, batches)
        except sa.exc.DBAPIError as error:
            raise self._error("cannot read", error) from error

    def open_copy(self) -> None:
        """Do nothing, because every client of the database sees the last commit."""

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Raise the fence, and return the last committed checkpoint."""
        del shard
        # An open transaction of a shard that restarts in place holds the fence's row, so raising it would deadlock.
        self._drop_open()
        try:
            if self._create_table:
                self._dialect.prepare(partial(self._table.create, checkfirst=True))
                self._create_segments_table()
            return self._raise_fence()
        except sa.exc.DBAPIError as error:
            raise self._error("cannot restore", error) from error

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Commit the current transaction and `checkpoint` together, on a separate thread, after `wait_for`."""
        del shard
        txn, self._open = self._open, None
        try:
            return self._commits.start(
                CommitSteps(
                    write=partial(self._commit, txn, encoded(checkpoint)),
                    abandon=partial(_roll_back, txn),
                ),
                wait_for,
            )
        except BaseException:
            # Such as of a store that was destroyed meanwhile: its locks would hold the next life up.
            _roll_back(txn)
            raise

    def destroy(self) -> None:
        """Roll back, and return connections to the engine."""
        self._closed = True
        try:
            self._drop_open()
        finally:
            self._commits.close()

    def _drop_open(self) -> None:
        txn, self._open = self._open, None
        _roll_back(txn)

    def _create_segments_table(self) -> None:
        """Create it, unless the database does not let us: one that was set up before there was such a table."""
        try:
            self._dialect.prepare(partial(self._segments_table.create, checkfirst=True))
        except sa.exc.DBAPIError as error:
            if _is_passing(error):
                raise
            self._warn_of_segments_table(str(error.orig or error))

    def _warn_of_segments_table(self, error: str) -> None:
        _log.warning(
            "sql.no_producers_table",
            shard=self._fqn,
            table=self._segments_table.name,
            error=error,
            action="create the table for this user; checkpoints grow with the number of producers until then",
        )

    def _read_segments(self, connection: Connection) -> dict[bytes, bytes]:
        table = self._segments_table
        query = sa.select(table.c.id, table.c.content).where(
            table.c.shard_fqn == self._key_in(connection)
        )
        self.keeps_segments = self._dialect.can_use(connection, table.name)
        if not self.keeps_segments and sa.inspect(connection).has_table(table.name):
            self._warn_of_segments_table("this user may not select, insert and delete its rows")
        rows = connection.execute(query).all() if self.keeps_segments else []
        segments = {bytes(segment_id): bytes(content) for segment_id, content in rows}
        self._segments = set(segments)
        return segments

    def _raise_fence(self) -> Checkpoint:
        table = self._table
        with self._dialect.begin_write() as connection:
            key = self._key_in(connection)
            insert = self._insert(table).values(shard_fqn=key, fence=1, checkpoint=b"")
            upsert = insert.on_conflict_do_update(
                index_elements=[table.c.shard_fqn], set_={"fence": table.c.fence + 1}
            ).returning(table.c.fence, table.c.checkpoint)
            self._dialect.settle(connection)
            with self._dialect.taking_over(connection):
                fence, content = connection.execute(upsert).one()
            segments = self._read_segments(connection)
            connection.commit()
        self._fence = fence
        checkpoint = stored_checkpoint(self._fqn, bytes(content))
        return whole_checkpoint(self._fqn, checkpoint, segments)

    def _begin(self) -> _OpenTxn:
        try:
            connection = self._dialect.begin_write()
        except sa.exc.DBAPIError as error:
            raise self._error("cannot begin a transaction", error) from error
        try:
            current, mark = self._locked_fence(connection)
            if current != self._fence:
                raise CommitFencedError(self._fqn, self._fence, current)
            return _OpenTxn(self._fqn, connection, self._dialect.guard(connection), mark)
        except sa.exc.DBAPIError as error:
            connection.close()
            raise self._error("cannot begin a transaction", error) from error
        except BaseException:
            connection.close()
            raise

    def _commit(self, open_txn: _OpenTxn | None, checkpoint: EncodedCheckpoint) -> None:
        txn = self._begin() if open_txn is None else open_txn
        table = self._table
        update = (
            sa.update(table)
            .where(
                table.c.shard_fqn == self._key,
                table.c.fence == self._fence,
                # An application can end a transaction and begin another one where no library sees it.
                self._dialect.txn_mark() == txn.mark,
            )
            .values(checkpoint=checkpoint.checkpoint)
        )
        try:
            txn.check_whole(self._dialect)
            if txn.connection.execute(update).rowcount != 1:
                raise self._refusal(txn)
            if checkpoint.new_segments:
                self._change_segments(txn.connection, checkpoint)
            txn.commit()
        except sa.exc.DBAPIError as error:
            raise self._error("cannot commit", error) from error
        finally:
            txn.close()

    def _change_segments(self, connection: Connection, checkpoint: EncodedCheckpoint) -> None:
        table, new = self._segments_table, checkpoint.new_segments
        gone = self._segments - checkpoint.named | new.keys()
        connection.execute(
            sa.delete(table).where(table.c.shard_fqn == self._key, table.c.id.in_(gone))
        )
        connection.execute(
            sa.insert(table),
            [
                {"shard_fqn": self._key, "id": segment_id, "content": content}
                for segment_id, content in new.items()
            ],
        )
        self._segments = checkpoint.named

    def _key_in(self, connection: Connection) -> str:
        """Return the key of the shard's rows: its name, or what stands for one that is too long for the column."""
        if not self._key:
            column = self._table.c.shard_fqn
            # An application's own table may have a longer column, and rows of this shard in it.
            is_there = len(self._fqn) <= _KEY_LENGTH_MAX or connection.scalar(
                sa.select(column).where(column == self._fqn)
            )
            self._key = self._fqn if is_there else cut_with_digest(self._fqn, _KEY_LENGTH_MAX)
        return self._key

    def _refusal(self, txn: _OpenTxn) -> ServiceError:
        """Return why the checkpoint's statement found no row."""
        current, mark = self._locked_fence(txn.connection)
        if mark == txn.mark:
            return CommitFencedError(self._fqn, self._fence, current)
        return StoreError(self._fqn, _ROLLED_BACK)

    def _locked_fence(self, connection: Connection) -> tuple[int | None, int]:
        """Return the fence in the database, locked until the transaction ends, and the mark of the transaction."""
        table = self._table
        query = sa.select(table.c.fence, self._dialect.txn_mark()).where(
            table.c.shard_fqn == self._key_in(connection)
        )
        row = connection.execute(self._dialect.lock_rows(query)).one_or_none()
        return (None, 0) if row is None else (row[0], row[1])

    def _committed_checkpoint(self, connection: Connection) -> Checkpoint:
        table = self._table
        key = self._key_in(connection)
        query = sa.select(table.c.checkpoint).where(table.c.shard_fqn == key)
        return stored_checkpoint(self._fqn, bytes(connection.scalar(query) or b""))

    def _error(self, what: str, error: sa.exc.DBAPIError) -> StoreError:
        kind = StoreUnavailableError if _is_passing(error) else StoreError
        return kind(self._fqn, f"{what}: {error.orig or error}")


def _segments_table(checkpoints: str) -> sa.Table:
    return sa.Table(
        _segments_table_name(checkpoints),
        sa.MetaData(),
        sa.Column("shard_fqn", sa.String(_KEY_LENGTH_MAX), primary_key=True),
        sa.Column("id", sa.LargeBinary(SEGMENT_ID_BYTES), primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )


def _segments_table_name(checkpoints: str) -> str:
    """Return the name that goes with a checkpoint table's, which alone may be as long as the database allows."""
    name = f"{checkpoints}{_SEGMENTS_SUFFIX}"
    if len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    digest = blake2b(checkpoints.encode(), digest_size=8).hexdigest()
    kept = _NAME_BYTES_MAX - len(_SEGMENTS_SUFFIX) - len(digest) - 1
    head = checkpoints.encode()[:kept].decode(errors="ignore")
    return f"{head}_{digest}{_SEGMENTS_SUFFIX}"


def _is_passing(error: sa.exc.DBAPIError) -> bool:
    """Return whether an error is of the server: it is gone, it restarts, its locks are held, its disk is full."""
    if isinstance(error.orig, sqlite3.Error):
        return is_passing_sqlite_error(error.orig)
    return isinstance(error, sa.exc.OperationalError) or error.connection_invalidated


_ROLLED_BACK = (
    "the application rolled back store.connection; raise an exception to undo a transaction, "
    "or use a savepoint (store.connection.begin_nested) to undo a part of it"
)


class _OpenTxn:
    """A transaction in which the application works, and which only the store may end."""

    def __init__(self, fqn: str, connection: Connection, guard: TxnGuard, mark: int) -> None:
        self.connection = connection
        self.mark = mark
        """What the database called it when it began."""
        self._fqn = fqn
        self._guard = guard
        driver = connection.connection.dbapi_connection
        assert driver is not None, "a connection that has just begun a transaction"
        self._driver = driver
        self._transaction = connection.get_transaction()
        self._may_commit = False
        event.listen(connection, "commit", self._on_commit)

    def check_whole(self, dialect: SqlDialect) -> None:
        """Raise unless everything the application did is still to be committed, as far as this side can tell."""
        if self._transaction is None or not self._transaction.is_active:
            raise StoreError(self._fqn, _ROLLED_BACK)
        if not dialect.is_open(self.connection):
            raise StoreError(
                self._fqn,
                "the database rolled back the transaction after an error that the application passed over; "
                "let the error out of the callback",
            )

    def commit(self) -> None:
        self._may_commit = True
        self._guard.release()
        self.connection.commit()

    def close(self) -> None:
        """Roll back if it is not committed, and return the connection."""
        self._guard.close()
        # SQLAlchemy takes a transaction whose commit was refused for ended, and returns the connection with it.
        with suppress(
            self.connection.dialect.loaded_dbapi.Error
        ):  # the server is gone, and it with it
            self._driver.rollback()
        self.connection.close()

    def _on_commit(self, connection: Connection) -> None:
        del connection
        if not self._may_commit:
            raise StoreError(
                self._fqn,
                "the application committed store.connection; its state must commit with its checkpoint",
            )


def _roll_back(txn: _OpenTxn | None) -> None:
    if txn is not None:
        txn.close()


# What an application shows of its tables, as Arrow.


def _schema_of(query: sa.Select[Any]) -> pa.Schema:
    """Return the columns of a query's rows."""
    import pyarrow as pa

    return pa.schema([(column.key, _arrow_type(column.type)) for column in query.subquery().c])


def _rows_of(
    connection: Connection, query: sa.Select[Any], schema: pa.Schema, *, fqn: str
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a query.

    Args:
        connection: In the transaction to read in.
        query: Of rows.
        schema: Its columns to read.
        fqn: The shard, for errors.
    """
    shown = query.subquery()
    columns = [shown.c[name] for name in schema.names]
    converters = [_converter(column.type) for column in columns]
    streaming = connection.execution_options(stream_results=True, max_row_buffer=ROWS_PER_BATCH)
    result = streaming.execute(sa.select(*columns))
    with result:
        for part in result.partitions(ROWS_PER_BATCH):
            yield row_batch(_converted(part, converters), schema, fqn=fqn)


_Converter = Callable[[Any], Any]  # of values whose types the database has


def _converted(rows: Any, converters: list[_Converter | None]) -> Any:
    if not any(converters):
        return rows
    return [
        [
            value if convert is None or value is None else convert(value)
            for value, convert in zip(row, converters, strict=True)
        ]
        for row in rows
    ]


def _arrow_type(type_: sa.types.TypeEngine[Any]) -> pa.DataType:
    import pyarrow as pa

    match type_:
        case sa.Boolean():
            return pa.bool_()
        case sa.Integer():
            return pa.int64()
        case sa.Float():
            return pa.float64()
        case sa.Numeric(precision=int(precision), scale=int(scale)):
            return pa.decimal128(precision, scale)
        case sa.DateTime():
            return pa.timestamp("us", tz="UTC" if type_.timezone else None)
        case sa.Date():
            return pa.date32()
        case sa.LargeBinary():
            return pa.binary()
        case _:
            return pa.string()


def _converter(type_: sa.types.TypeEngine[Any]) -> _Converter | None:
    """Return what makes a value fit its Arrow type; None if it does."""
    if isinstance(type_, sa.JSON):
        return lambda value: msgspec.json.encode(value).decode()
    if isinstance(type_, sa.String) or _arrow_type(type_) != _text():
        return None
    return str


def _text() -> pa.DataType:
    import pyarrow as pa

    return pa.string()
