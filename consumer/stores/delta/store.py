"""A store that is a Delta table: a shard's rows and its checkpoint in one commit of the table.

    class Out:
        def new_store(self, shard): return DeltaStore(shard, "s3://lake/orders", schema=SCHEMA)
        def consume_batch(self, shard, store, batch, publisher): store.append(batch.to_arrow(SCHEMA))

The table is a common one: any reader of Delta reads it, other writers may write to it, and its maintenance is as ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import (
    SinkFencedError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.consumer.stores.delta.fence import checkpoint_file, checkpoints_directory
from broadsheet.consumer.stores.delta.files import TableFiles
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint
from broadsheet.consumer.stores.table_columns import (
    require_names_beside,
    table_rows,
    table_schema,
    united,
)
from broadsheet.consumer.stores.table_version import TableVersion, version_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint

_TAKE_OVERS_MAX: Final = 20
"""How often a holder that still commits may come between, before this one gives up for now."""
_UNSAFE: Final = "aws_s3_allow_unsafe_rename"
_RETENTION: Final = "delta.setTransactionRetentionDuration"
_log = structlog.get_logger()


class DeltaStore:
    """Appends rows to a Delta table, exactly once. It keeps no state: rows are all that its shard makes."""

    def __init__(
        self,
        shard: Shard,
        table: str,
        *,
        schema: pa.Schema | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Check the options; nothing is opened before `restore_checkpoint`.

        Args:
            shard: The shard; several may share a table.
            table: Its address: a path, or a URL such as `s3://bucket/table`.
            schema: Columns of a table that is made if there is none; None: there must be one.
            storage_options: Of delta-rs.

        Raises:
            ValidationError: an option would let two commits win at once, or a column has a type that no table keeps.
        """
        self._fqn = shard.fqn
        self._table = table
        self._options = dict(storage_options or {})
        for name, value in self._options.items():
            if name.lower() == _UNSAFE and value.lower() not in ("", "false", "0"):
                raise ValidationError(
                    f"storage_options[{name}]",
                    "expected none: of two commits both could seem to win. Use conditional puts, or a lock in DynamoDB",
                )
        self._schema = None if schema is None else table_schema(schema)
        self._commits = CommitThread(shard.fqn)
        self._handle: DeltaTable | None = None
        self._version = TableVersion()
        self._rows: list[pa.Table] = []
        self._pending = pa.schema([])
        """Columns of the running transaction's rows."""
        self._closed = False

    def append(self, rows: pa.Table) -> None:
        """Add rows to the running transaction. Columns that the table lacks are added to it.

        Raises:
            ValidationError: a column's values do not fit the table's.
        """
        if self._handle is None:
            raise StoreClosedError(self._fqn)
        kept = table_rows(rows, self._schema)
        pending = united(self._pending, kept.schema)
        # Delta has no two columns whose names differ in their case alone.
        require_names_beside(self._schema.names if self._schema else (), pending.names)
        self._pending = pending
        self._rows.append(kept)

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Take the table from the holders before, by a commit without rows, and return the last checkpoint."""
        del shard
        self._rows, self._pending = [], pa.schema([])
        if self._closed:
            raise StoreClosedError(self._fqn)
        with _errors_named(self._fqn, self._table):
            for _ in range(_TAKE_OVERS_MAX):
                handle = self._opened()
                before = version_of(handle.transaction_version(self._fqn))
                content = self._read_checkpoint(before)
                version = before.taken_over()
                self._write_checkpoint(version, content)
                taken = self._commit_empty(handle, version)
                if taken is not None:
                    self._handle, self._version = taken, version
                    self._schema = pa.schema(taken.schema().to_arrow())
                    return stored_checkpoint(self._fqn, content)
        raise StoreUnavailableError(
            self._fqn, f"table {self._table}: others commit for this shard all the time"
        )

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Append the rows so far, and the checkpoint, in one commit of the table, after `wait_for`."""
        del shard
        rows, self._rows, self._pending = self._rows, [], pa.schema([])
        steps = CommitSteps(
            write=partial(self._commit, rows, checkpoint.SerializeToString()),
            tidy=self._remove_old_checkpoints,
        )
        return self._commits.start(steps, wait_for)

    def destroy(self) -> None:
        """Drop what was not committed."""
        self._closed = True
        self._rows, self._handle = [], None
        self._commits.close()

    def _opened(self) -> DeltaTable:
        try:
            handle = DeltaTable(self._table, storage_options=self._options)
        except TableNotFoundError as error:
            if self._schema is None:
                raise StoreError(
                    self._fqn, f"there is no table {self._table}; create it, or give its schema"
                ) from error
            # Another shard may create it meanwhile.
            DeltaTable.create(
                self._table, self._schema, mode="ignore", storage_options=self._options
            )
            handle = DeltaTable(self._table, storage_options=self._options)
        if _RETENTION in handle.metadata().configuration:
            raise StoreError(
                self._fqn,
                f"table {self._table}: expected no {_RETENTION}: the table would forget what this shard has sent",
            )
        return handle

    def _commit(self, rows: list[pa.Table], checkpoint: bytes) -> None:
        handle = self._handle
        if handle is None:
            raise StoreClosedError(self._fqn)
        version = self._version.followed()
        with _errors_named(self._fqn, self._table):
            self._write_checkpoint(version, checkpoint)
            count = sum(each.num_rows for each in rows)
            if count:
                handle = self._append(handle, rows, version)
            else:
                handle = self._commit_empty(handle, version) or self._settled(version)
        if not self._closed:
            self._handle = handle
        self._version = version

    def _append(
        self, handle: DeltaTable, rows: list[pa.Table], version: TableVersion
    ) -> DeltaTable:
        # Columns that only some of the runs have are null in the others.
        joined = pa.concat_tables(rows, promote_options="permissive")
        # In one piece: delta-rs writes pieces on several threads, and their rows in any order.
        joined = joined.combine_chunks()
        try:
            # Never through another handle: that this one is old is what fences us.
            write_deltalake(
                handle,
                joined,
                mode="append",
                schema_mode="merge",
                commit_properties=self._properties(version),
            )
        except DeltaError:
            return self._settled(version)
        self._schema = pa.schema(handle.schema().to_arrow())
        return handle

    def _commit_empty(self, handle: DeltaTable, version: TableVersion) -> DeltaTable | None:
        """Commit a version without rows; return a handle that rests on it, None if another holder came between."""
        # The answer does not matter: a commit that was made tells by the version that the table has then.
        with suppress(DeltaError):
            handle.create_write_transaction(
                [], "append", handle.schema(), commit_properties=self._properties(version)
            )
        # That call leaves its handle behind, where the next commit would meet our own.
        after = DeltaTable(self._table, storage_options=self._options)
        found = version_of(after.transaction_version(self._fqn))
        return after if found == version else None

    def _settled(self, version: TableVersion) -> DeltaTable:
        """Return a handle after a commit that failed or whose answer was lost, if it was made after all.

        Raises:
            SinkFencedError: another holder has the table.
            DeltaError: the commit was refused.
        """
        after = DeltaTable(self._table, storage_options=self._options)
        found = version_of(after.transaction_version(self._fqn))
        if found == version:
            return after
        if found.epoch != version.epoch:
            raise SinkFencedError(
                self._fqn,
                f"table {self._table} was taken over: this holder's epoch is {version.epoch}, the table has "
                f"{found.epoch}",
            )
        raise StoreUnavailableError(self._fqn, f"table {self._table} refused commit {version}")

    def _properties(self, version: TableVersion) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(self._fqn, version.encoded)])

    def _files(self) -> TableFiles:
        return TableFiles(self._table, self._options)

    def _write_checkpoint(self, version: TableVersion, content: bytes) -> None:
        self._files().write(checkpoint_file(self._fqn, version), content)

    def _read_checkpoint(self, version: TableVersion) -> bytes:
        if not version.epoch:
            return b""
        name = checkpoint_file(self._fqn, version)
        try:
            return self._files().read(name)
        except FileNotFoundError as error:
            raise StoreError(
                self._fqn,
                f"its checkpoint is missing: table {self._table} names {name}, which is not there; was the folder "
                "_broadsheet removed, or only the table copied?",
            ) from error

    def _remove_old_checkpoints(self) -> None:
        """Remove the files of commits before this one, which nothing refers to any more."""
        current = checkpoint_file(self._fqn, self._version).rpartition("/")[2]
        try:
            files = self._files()
            for name in files.names(checkpoints_directory(self._fqn)):
                if name.rpartition("/")[2] < current:
                    files.remove(name)
        except (OSError, DeltaError) as error:
            _log.info("delta_sink.checkpoints_not_removed", shard=self._fqn, error=str(error))


class _errors_named:  # noqa: N801 - used like a function
    """Raise the errors of delta-rs and of files as ours."""

    def __init__(self, fqn: str, table: str) -> None:
        self._fqn, self._table = fqn, table

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (DeltaError, OSError)):
            raise StoreUnavailableError(self._fqn, f"table {self._table}: {error}") from error
