"""A store in a SQLite file of one shard: SQL at the speed of a library call, recovered on any machine.

    {directory}/state.db, state.db-wal     the application's tables, and
    CREATE TABLE gazette_checkpoint (id INTEGER PRIMARY KEY CHECK (id = 0), checkpoint BLOB NOT NULL)
    CREATE TABLE gazette_producers (id BLOB PRIMARY KEY, content BLOB NOT NULL)    -- segments it rests on

The application's statements and the checkpoint go into one SQLite transaction. With a recovery log a commit is durable,
and shows to queries, when the log has its frames; then another process may have taken over at any moment, and the log
refuses ours. Without one a commit is durable in the file, and the directory's lock keeps others out.

Statements run on the standard library's `sqlite3`, not through SQLAlchemy: for the short statements of a consumer the
latter takes several times as long as SQLite itself. For one code on many databases there is `SqlStore`.

Source: gazette/core consumer/store-sqlite (a database a shard, its checkpoint in a row; how it is recorded is ours).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import StoreClosedError, StoreError, StoreUnavailableError
from broadsheet.consumer.recoverylog.local_state import LocalState, local_state_of
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.consumer.stores.directory_lock import StoreDirectory
from broadsheet.consumer.stores.settled_files import settle
from broadsheet.consumer.stores.sqlite.connections import (
    BEGIN,
    COMMIT,
    PRAGMA_ADVICE,
    ROLLBACK,
    CommittedReaders,
    TxnConnection,
    checked_pragmas,
    open_writer,
    own_cursor,
)
from broadsheet.consumer.stores.sqlite.gazette_layout import (
    has_gazette_layout,
    remove_gazette_files,
    take_over_pages,
)
from broadsheet.consumer.stores.sqlite.recording import (
    DATABASE,
    REWRITE_BYTES_MIN,
    WAL,
    SqliteRecording,
)
from broadsheet.consumer.stores.sqlite.tables import rows_in, tables_in, upsert
from broadsheet.consumer.stores.state_tables import TableScan, lists_of, picked, require_table
from broadsheet.consumer.stores.store_record import SQLITE, StoreFiles
from broadsheet.consumer.stores.stored_checkpoint import whole_checkpoint
from broadsheet.journals.message.checkpoint import EncodedCheckpoint, encoded
from broadsheet.runtime.op_future import OpFuture
from broadsheet.runtime.private_directory import FILE_MODE
from broadsheet.wire.shard_pb2 import Checkpoint

if TYPE_CHECKING:
    import pyarrow as pa

ResultT = TypeVar("ResultT")
_log = structlog.get_logger()
_CREATE_CHECKPOINT = (
    "CREATE TABLE IF NOT EXISTS gazette_checkpoint "
    "(id INTEGER PRIMARY KEY CHECK (id = 0), checkpoint BLOB NOT NULL)"
)
_CREATE_SEGMENTS = (
    "CREATE TABLE IF NOT EXISTS gazette_producers (id BLOB PRIMARY KEY, content BLOB NOT NULL)"
)
_READ_SEGMENTS = "SELECT id, content FROM gazette_producers"
_WRITE_SEGMENT = "INSERT OR REPLACE INTO gazette_producers VALUES (?, ?)"
_DELETE_SEGMENT = "DELETE FROM gazette_producers WHERE id = ?"
_READ_CHECKPOINT = "SELECT checkpoint FROM gazette_checkpoint"
_WRITE_CHECKPOINT = "INSERT OR REPLACE INTO gazette_checkpoint VALUES (0, ?)"
WAL_BYTES_MAX = 16 << 20
"""Length of the write-ahead log from which it is checkpointed. The longer, the fewer pages are copied, and recorded, a
second time; the shorter, the sooner a file opens after a crash or a hand-over: 16 MiB take some 10 ms, and where no
recovery log keeps them for the next life, they are copied back first."""
_WAL_HARD_RATIO = 8
"""A log so many times longer than that ends the queries which hold it back."""
_ENDED_BY_DATABASE = (
    "the database rolled back the transaction after an error that the application passed over; "
    "let the error out of the callback"
)
BRIEF_CHANGES_MAX = 64
"""Changed rows up to which the worker thread writes a recorded commit itself: less work than a switch of threads."""
QUIET_SECONDS = 0.05
"""Longest wait of a checkpoint for queries under way; the next commit tries again."""


def statements_of(script: str) -> list[str]:
    """Return the statements of a script, in order."""
    statements: list[str] = []
    pending = ""
    for part in script.split(";"):
        pending += part + ";"
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    if pending.rstrip(";").strip():
        statements.append(pending)
    return [statement for statement in statements if statement.strip(" \n\t;")]


class SqliteStore:
    """A store of a shard's state in the application's SQLite tables."""

    def __init__(
        self,
        shard: Shard,
        local_state: LocalState | None = None,
        *,
        schema: str = "",
        wal_bytes_max: int = WAL_BYTES_MAX,
        rewrite_bytes_min: int = REWRITE_BYTES_MIN,
        cache_bytes: int = 32 << 20,
        lock_wait_seconds: float = 10.0,
        from_gazette: bool = False,
        pragmas: Mapping[str, str | int] | None = None,
    ) -> None:
        """Create a store; nothing is opened before `restore_checkpoint`.

        Args:
            shard: The shard; if it has a recovery log, its `local_state` is where the files are.
            local_state: Where they are if it has none.
            schema: Statements run at each restore, separated by semicolons, e.g. CREATE TABLE IF NOT EXISTS.
            wal_bytes_max: Length of the write-ahead log from which it is checkpointed.
            rewrite_bytes_min: Least bytes of pages recorded after which the recovery log gets the whole file again.
            cache_bytes: Bound of SQLite's page cache.
            lock_wait_seconds: Longest wait for another holder of a directory that stays.
            from_gazette: Take over what Gazette's SQLite store recorded, if the recovery log holds that. Gazette cannot
                read the log afterwards, so its last consumer of the shard must be gone.
            pragmas: Settings of each connection, e.g. `{"foreign_keys": 1}`. In `schema`, or as a statement, such a
                pragma has no effect in SQLite, because a transaction is always open, and is refused.

        Raises:
            ValidationError: there is neither a recovery log nor a `local_state`, or a pragma is no setting of
                connections.
        """
        self._fqn = shard.fqn
        self._local_state = local_state_of(shard, local_state)
        self._is_shards_own = shard.local_state is not None
        self._path = self._local_state.directory / DATABASE
        self._schema = schema
        self._wal_bytes_max = wal_bytes_max
        self._rewrite_bytes_min = rewrite_bytes_min
        self._cache_bytes = cache_bytes
        self._directory = StoreDirectory(
            shard.fqn, self._local_state, lock_wait_seconds=lock_wait_seconds
        )
        self._files = StoreFiles(shard.fqn, self._local_state, SQLITE)
        self._from_gazette = from_gazette
        self._recording: SqliteRecording | None = None
        self._writer: TxnConnection | None = None
        self._pragmas = checked_pragmas(pragmas or {})
        self._readers = CommittedReaders(shard.fqn, self._path, self._pragmas)
        self._commits = CommitThread(shard.fqn, recorded=self._local_state.recorder is not None)
        self._segments: set[bytes] = set()
        """Ids of those in the database, as of the last commit that was started."""
        self.keeps_segments = True
        self._life_commits = 0
        """Since the files were opened."""
        self._begun = False
        """The writer is in the worker thread's transaction."""
        self._changes = 0
        """Rows that the connection had changed when the last commit was started."""
        self._free = threading.Event()
        """The commit under way, and what tidies up behind it, need the writer no more."""
        self._free.set()
        self._folds = False
        """The commit under way keeps the writer until the write-ahead log is folded; for the commit's thread."""
        self._fold_bytes = wal_bytes_max
        """Length of the write-ahead log from which it is folded: more, after others kept it from being emptied."""
        self._failure: BaseException | None = None
        self._closed = False

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of the current transaction, begun at first use; for the worker thread.

        Savepoints are free to use; what begins or ends a transaction is refused. Without a recovery log, if the commit
        before is still waiting for what it depends on, this waits for it; it does not wait for a recovery log.

        Raises:
            StoreError: the store is not restored, a commit has failed, or the database ended the transaction after an
                error that the application passed over.
        """
        if not self._begun:
            self._free.wait()
            self._writable().execute_own(BEGIN)
            self._begun = True
        writer = self._writer
        assert writer is not None
        if not writer.in_transaction:
            raise StoreError(self._fqn, _ENDED_BY_DATABASE)
        return writer

    def upsert(
        self,
        table: str,
        rows: object,
        *,
        key: str | Sequence[str],
        set_: Mapping[str, str] | None = None,
    ) -> None:
        """Insert a run of rows in the running transaction; rows whose key is there update it; for the worker thread.

        The result is that of one statement a row, in their order.

        Args:
            table: Into which.
            rows: Columns by name (lists, numpy or Arrow arrays), or anything that pyarrow makes a table of. Values are
                those that sqlite3 takes.
            key: Column or columns of a primary key or unique index.
            set_: SQL expressions by column, for a row that is there: `{"n": "n + excluded.n"}`. None: all new values.

        Raises:
            ValidationError: columns differ in length, or one of the key is missing.
            StoreError: the store is not restored, or a commit has failed.
        """
        columns = lists_of(rows)
        names = (key,) if isinstance(key, str) else key
        upsert(self.connection, table, columns, names, set_)

    def read(self, function: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        """Return `function(connection)` on a connection that sees the last durable commit; for queries.

        May be called on any thread. The connection is good only within the call, and cannot write.
        """
        return self._readers.read(function)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the application's tables and views, and their columns."""
        return self.read(tables_in)

    @contextmanager
    def scan(self, table: str, columns: Sequence[str] = ()) -> Iterator[TableScan]:
        """Return the rows of a table or view as of the last durable commit, and its checkpoint.

        Until the block ends the write-ahead log is not copied back; if it grows too long, the scan fails.
        """
        with self._readers.held() as reader:
            schema = picked(require_table(reader.run(tables_in), table), columns)
            checkpoint = reader.run(_checkpoint_in)
            with closing(rows_in(reader.run, table, schema, fqn=self._fqn)) as batches:
                yield TableScan(checkpoint, schema, batches)

    def open_copy(self) -> None:
        """Open a copy of what a standby played, for scans only."""
        self._check_open()
        if not self._is_shards_own:
            raise StoreError(self._fqn, "its files are its primary's, and no standby has them")
        if not self._path.exists():
            raise StoreError(self._fqn, "the primary has not made its database yet")
        try:
            self._readers.advance()
        except sqlite3.Error as error:
            raise self._error("cannot open a copy", error) from error

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Open the files if they are not open, and return the last committed checkpoint."""
        del shard
        try:
            if self._writer is None:
                self._open()
            else:
                self._writable()
                self._free.wait()
                self._roll_back()
            return self._read_checkpoint()
        except (sqlite3.Error, OSError) as error:
            raise self._error("cannot restore", error) from error

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Commit the current transaction and `checkpoint` together, after `wait_for`.

        On a separate thread, unless a recovery log makes the commit durable and it changed few rows.
        """
        del shard
        writer = self._writable()
        begun, self._begun = self._begun, False
        self._free.wait()  # A transaction without statements has not waited yet.
        self._free.clear()
        changes, self._changes = self._changes, writer.total_changes
        return self._commits.start(
            CommitSteps(
                write=partial(self._commit, begun, encoded(checkpoint)),
                abandon=self._roll_back,
                recorder=self._local_state.recorder,
                is_brief=self._changes - changes <= BRIEF_CHANGES_MAX,
                settle=self._readers.advance,
                tidy=self._tidy,
                fail=self._fail,
            ),
            wait_for,
        )

    def destroy(self) -> None:
        """Roll back and close; remove the files if the recovery log has them."""
        self._closed = True
        try:
            self._commits.close()
            if self._local_state.temporary:
                # What is gone is not worth folding: the last connection to close would copy back the write-ahead log.
                self._path.unlink(missing_ok=True)
            self._close()
        finally:
            self._directory.leave()

    # -- opening and closing, on the worker thread

    def _open(self) -> None:
        self._check_open()
        directory, recorder = self._local_state.directory, self._local_state.recorder
        self._directory.claim()
        gazettes = recorder if self._from_gazette and has_gazette_layout(directory) else None
        takes_over = not self._path.exists()
        if gazettes is not None and takes_over:
            take_over_pages(self._fqn, directory, gazettes)
        self._files.check()
        if recorder is not None:
            self._recording = SqliteRecording(
                recorder, directory, rewrite_bytes_min=self._rewrite_bytes_min
            )
            # The file is here, and the log has only the pages that it was made of.
            self._recording.knows_database &= not takes_over
        if recorder is None:
            # SQLite would make it, and what it makes beside it, for others to read.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
            # The end of the write-ahead log is copied into the database below, which must not get ahead of the log.
            if (wal := directory / WAL).exists():
                settle(wal)
        self._writer = open_writer(
            self._path,
            fqn=self._fqn,
            durable=recorder is None,
            cache_bytes=self._cache_bytes,
            pragmas=self._pragmas,
        )
        if self._recording is None:
            # A life begins with an empty write-ahead log, unless others read in it: what an earlier one left is copied.
            self._checkpoint()
            self._set_up()
        else:
            self._open_recorded(self._recording)
        self._files.record()
        if gazettes is not None:
            # Also where an earlier life was cut off between the two.
            remove_gazette_files(directory, gazettes)
        self._readers.advance()

    def _open_recorded(self, recording: SqliteRecording) -> None:
        """Run the schema. The log orders it before any commit, so no wait is needed here."""
        self._set_up()
        if recording.knows_database:
            recording.record_commit()
        elif not self._checkpoint():  # The log gets the database as a whole, with its tables.
            raise StoreUnavailableError(
                self._fqn, f"another program reads {self._path}, which cannot be recorded meanwhile"
            )

    def _set_up(self) -> None:
        assert self._writer is not None
        self._writer.execute_own(BEGIN)
        if self._recording is not None:
            self._recording.take_over_wal()
        for statement in (_CREATE_CHECKPOINT, _CREATE_SEGMENTS, *statements_of(self._schema)):
            try:
                self._writer.execute(statement)
            except sqlite3.DatabaseError as error:
                advice = f"; {PRAGMA_ADVICE}" if "pragma" in statement.lower() else ""
                raise StoreError(
                    self._fqn, f"schema: {' '.join(statement.split())[:200]}: {error}{advice}"
                ) from error
        self._writer.execute_own(COMMIT)

    def _read_checkpoint(self) -> Checkpoint:
        assert self._writer is not None
        segments = dict(own_cursor(self._writer).execute(_READ_SEGMENTS).fetchall())
        self._segments = set(segments)
        return whole_checkpoint(self._fqn, _checkpoint_in(self._writer), segments)

    def _close(self) -> None:
        self._readers.close()
        if self._writer is not None:
            self._roll_back()
            self._writer.close_own()
            self._writer = None
        if self._recording is not None:
            self._recording.close()

    def _writable(self) -> TxnConnection:
        self._check_open()
        if self._failure is not None:
            raise StoreError(
                self._fqn, f"a commit has failed, open a new store: {self._failure}"
            ) from self._failure
        if self._writer is None:
            raise StoreError(self._fqn, "not restored yet: call restore_checkpoint first")
        return self._writer

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(self._fqn)

    def _roll_back(self) -> None:
        self._begun = False
        if self._writer is not None and self._writer.in_transaction:
            self._writer.execute_own(ROLLBACK)

    # -- committing, on the commit's thread; a brief commit is written on the worker thread

    def _commit(self, begun: bool, checkpoint: EncodedCheckpoint) -> OpFuture | None:
        writer = self._writer
        assert writer is not None
        try:
            if not begun:
                writer.execute_own(BEGIN)
            if not writer.in_transaction:
                raise StoreError(self._fqn, _ENDED_BY_DATABASE)
            self._write_checkpoint(writer, checkpoint)
            writer.execute_own(COMMIT)
            wal_bytes = self._wal_length_bytes()
        except (sqlite3.Error, OSError) as error:
            self._roll_back()
            raise self._error("cannot commit", error) from error
        self._life_commits += 1
        self._folds = wal_bytes >= self._fold_bytes or self._folds_inheritance
        if not self._folds:
            self._free.set()  # What the next transaction writes comes behind our frames.
        return self._record_commit(wal_bytes)

    def _write_checkpoint(self, writer: TxnConnection, checkpoint: EncodedCheckpoint) -> None:
        if checkpoint.new_segments:
            for segment in checkpoint.new_segments.items():
                writer.execute_own(_WRITE_SEGMENT, segment)
            for segment_id in self._segments - checkpoint.named:
                writer.execute_own(_DELETE_SEGMENT, (segment_id,))
            self._segments = checkpoint.named
        writer.execute_own(_WRITE_CHECKPOINT, (checkpoint.checkpoint,))

    def _record_commit(self, wal_bytes: int) -> OpFuture | None:
        if self._recording is None or self._local_state.recorder is None:
            return None
        try:
            self._recording.record_commit(wal_bytes)
        except OSError as error:
            raise self._error("cannot record a commit", error) from error
        return self._local_state.recorder.barrier()

    def _tidy(self) -> None:
        # Not by `_free`: the next commit may have begun since, and need the writer itself.
        if self._folds:
            self._checkpoint()
            self._free.set()

    @property
    def _folds_inheritance(self) -> bool:
        """Return whether it is time to copy back an earlier life's frames in the write-ahead log.

        Lives that each add little would keep the recovery log from ever being pruned. It is done after the second
        commit, because the first one ends a time without a primary and must not share its processor.
        """
        inherits = self._recording is not None and self._recording.inherits
        return inherits and self._life_commits > 1

    def _wal_length_bytes(self) -> int:
        if self._recording is not None:
            return self._recording.wal_end_bytes
        wal = self._local_state.directory / WAL
        return wal.stat().st_size if wal.exists() else 0

    def _checkpoint(self) -> bool:
        """Copy the write-ahead log into the file and restart it, unless queries still read older snapshots.

        Returns:
            Whether the file has all that is committed.
        """
        assert self._writer is not None
        length = self._wal_length_bytes()
        # Where other programs hold the log, ending our own queries would not shorten it.
        is_held = self._fold_bytes > self._wal_bytes_max
        pressing = length >= _WAL_HARD_RATIO * self._wal_bytes_max and not is_held
        with self._readers.pause(wait_seconds=QUIET_SECONDS, interrupt=pressing) as quiet:
            if not quiet:
                return False
            try:
                if self._recording is not None:
                    self._recording.prepare_checkpoint()
                folded = self._writer.fold(wait_seconds=QUIET_SECONDS)
                # SQLite begins a log again that it has copied, also if others kept it from being emptied.
                if self._recording is not None and folded.is_copied:
                    self._recording.record_checkpoint()
            except (sqlite3.Error, OSError) as error:
                raise self._error("cannot copy the write-ahead log", error) from error
        self._fold_bytes = self._wal_bytes_max if folded.is_empty else length + self._wal_bytes_max
        if not folded.is_empty:
            _log.warning(
                "sqlite.log_held",
                shard=self._fqn,
                database=str(self._path),
                wal_bytes=length,
                action="end the transaction of the program that reads the database; the log grows until then",
            )
        return folded.is_copied

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._free.set()

    def _error(self, what: str, error: Exception) -> StoreError:
        return StoreError(self._fqn, f"{what}: {error}")


def _checkpoint_in(connection: sqlite3.Connection) -> Checkpoint:
    row = own_cursor(connection).execute(_READ_CHECKPOINT).fetchone()
    # Gazette's store begins with an empty text.
    return Checkpoint.FromString(row[0] or b"") if row else Checkpoint()
