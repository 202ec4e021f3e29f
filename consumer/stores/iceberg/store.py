"""A store that is an Iceberg table: a shard's rows and its checkpoint in one commit of the table.

    class Out:
        def new_store(self, shard): return IcebergStore(shard, "lake.orders", {"uri": "…"}, schema=SCHEMA)
        def consume_batch(self, shard, store, batch, publisher): store.append(batch.to_arrow(SCHEMA))

Properties of the table hold the shard's version and checkpoint, because summaries of snapshots vanish with these.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.types import strtobool
from sqlalchemy.exc import DBAPIError, OperationalError

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import (
    SinkFencedError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint
from broadsheet.consumer.stores.table_columns import (
    adds_columns,
    require_paths,
    table_rows,
    table_schema,
    united,
)
from broadsheet.consumer.stores.table_version import TableVersion, version_of
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint

_TRIES_MAX: Final = 20
"""How often others may commit between, before this holder gives up for now."""
_VERSION, _CHECKPOINT = "broadsheet.version.", "broadsheet.checkpoint."
INIT_CATALOG_TABLES: Final = "init_catalog_tables"
"""Property of a catalog in SQL, as pyiceberg names it: its own tables are created."""
_NO_RETRIES: Final = {TableProperties.COMMIT_NUM_RETRIES: "0"}


class IcebergStore:
    """Appends rows to an Iceberg table, exactly once. It keeps no state: rows are all that its shard makes."""

    def __init__(
        self,
        shard: Shard,
        table: str,
        catalog: Mapping[str, str],
        *,
        schema: pa.Schema | None = None,
    ) -> None:
        """Keep the options; nothing is opened before `restore_checkpoint`.

        Args:
            shard: The shard. Shards that share a table wait for each other's commits.
            table: Its name with its namespace, such as `lake.orders`.
            catalog: Properties of pyiceberg's catalog, such as `type` and `uri`; its `name` is `default` if absent.
            schema: Columns of a table that is made if there is none; None: there must be one.

        Raises:
            ValidationError: a column has a type that no table keeps, or a name that Iceberg does not take.
        """
        self._fqn = shard.fqn
        self._name = table
        self._properties = dict(catalog)
        self._first_schema = None if schema is None else table_schema(schema)
        require_paths(self._first_schema or ())
        self._schema = self._first_schema
        self._commits = CommitThread(shard.fqn)
        self._catalog: Catalog | None = None
        self._has_own_tables = False
        self._table: Table | None = None
        self._version = TableVersion()
        self._rows: list[pa.Table] = []
        self._pending = pa.schema([])
        """Columns of the running transaction's rows."""
        self._closed = False

    def append(self, rows: pa.Table) -> None:
        """Add rows to the running transaction. Columns that the table lacks are added to it.

        Raises:
            ValidationError: a column's values do not fit the table's, or Iceberg does not take its name.
        """
        if self._table is None:
            raise StoreClosedError(self._fqn)
        kept = table_rows(rows, self._schema)
        pending = united(self._pending, kept.schema)
        if self._schema is None or adds_columns(self._schema, pending):
            # Refused before the commit, which the client would refuse each time again.
            columns = {each.name: each for each in (*(self._schema or ()), *pending)}
            require_paths(columns.values())
        self._pending = pending
        self._rows.append(kept)

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Take the table from the holders before, by a snapshot without rows, and return the last checkpoint."""
        del shard
        self._rows, self._pending = [], pa.schema([])
        if self._closed:
            raise StoreClosedError(self._fqn)
        with _errors_named(self._fqn, self._name):
            for _ in range(_TRIES_MAX):
                table = self._opened()
                before, content = self._found(table)
                version = before.taken_over()
                # A snapshot, because a stale holder's append would not notice a change of properties alone.
                if self._committed(table, [], version, content):
                    return stored_checkpoint(self._fqn, content)
        raise StoreUnavailableError(
            self._fqn, f"table {self._name}: others commit to it all the time"
        )

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Append the rows so far, and the checkpoint, in one commit of the table, after `wait_for`."""
        del shard
        rows, self._rows, self._pending = self._rows, [], pa.schema([])
        write = partial(self._commit, rows, checkpoint.SerializeToString())
        return self._commits.start(CommitSteps(write=write), wait_for)

    def destroy(self) -> None:
        """Drop what was not committed."""
        self._closed = True
        self._rows, self._table = [], None
        self._commits.close()
        if self._catalog is not None:
            # A catalog in SQL has a connection for each thread that used it; one that a commit uses ends with that.
            self._catalog.close()

    def _opened(self) -> Table:
        if self._catalog is None:
            # Of a catalog in SQL, loading would create them, and fail where another shard does so.
            properties = {**self._properties, INIT_CATALOG_TABLES: "false"}
            self._catalog = load_catalog(properties.pop("name", "default"), **properties)
        if isinstance(self._catalog, SqlCatalog) and not self._has_own_tables:
            if strtobool(self._properties.get(INIT_CATALOG_TABLES, "true")):
                _ensure_own_tables(self._catalog)
            self._has_own_tables = True
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError as error:
            if self._first_schema is None:
                raise StoreError(
                    self._fqn, f"there is no table {self._name}; create it, or give its schema"
                ) from error
        _ensure_namespace(self._catalog, self._name.rpartition(".")[0])
        # Otherwise another shard created it meanwhile.
        with suppress(TableAlreadyExistsError):
            self._catalog.create_table(self._name, self._first_schema)
        return self._catalog.load_table(self._name)

    def _found(self, table: Table) -> tuple[TableVersion, bytes]:
        """Return what a table has of this shard.

        Raises:
            StoreError: somebody changed it.
        """
        properties = table.metadata.properties
        version = properties.get(_VERSION + self._fqn)
        if version is None:
            return TableVersion(), b""
        if not version.isdecimal():
            raise self._damaged(_VERSION, f"expected a number, got {version[:40]!r}")
        content = properties.get(_CHECKPOINT + self._fqn, "")
        try:
            checkpoint = zlib.decompress(b64decode(content, validate=True))
        except (ValueError, zlib.error) as error:
            raise self._damaged(_CHECKPOINT, str(error)) from error
        return version_of(int(version)), checkpoint

    def _damaged(self, prefix: str, what: str) -> StoreError:
        name = prefix + self._fqn
        return StoreError(
            self._fqn,
            f"property {name} of table {self._name} is damaged: {what}; set it to what the table's metadata of before "
            "has",
        )

    def _commit(self, rows: list[pa.Table], checkpoint: bytes) -> None:
        table, version = self._table, self._version.followed()
        if table is None:
            raise StoreClosedError(self._fqn)
        with _errors_named(self._fqn, self._name):
            for _ in range(_TRIES_MAX):
                if self._committed(table, rows, version, checkpoint):
                    return
                table = self._opened()
                found, _ = self._found(table)
                if found == version:
                    self._keep(table, version)
                    return  # Its answer was lost.
                if found.epoch != version.epoch:
                    raise SinkFencedError(
                        self._fqn,
                        f"table {self._name} was taken over: this holder's epoch is {version.epoch}, the table has "
                        f"{found.epoch}",
                    )
        raise StoreUnavailableError(
            self._fqn, f"table {self._name}: others commit to it all the time"
        )

    def _committed(
        self, table: Table, rows: list[pa.Table], version: TableVersion, checkpoint: bytes
    ) -> bool:
        """Commit on the very snapshot that was loaded; return False if another commit came between."""
        named = {
            _VERSION + self._fqn: str(version.encoded),
            _CHECKPOINT + self._fqn: b64encode(zlib.compress(checkpoint)).decode(),
        }
        # The client would repeat a commit on newer metadata, and a stale holder's rows would be taken. Stored in the
        # table, this would stop other writers' repetitions, too.
        properties = {**table.metadata.properties, **_NO_RETRIES}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        schema = table.schema().as_arrow()
        joined = pa.concat_tables(rows, promote_options="permissive") if rows else None
        try:
            with table.transaction() as transaction:
                if joined is not None and adds_columns(schema, joined.schema):
                    with transaction.update_schema() as update:
                        update.union_by_name(joined.schema)
                transaction.append(
                    schema.empty_table() if joined is None else joined,
                    snapshot_properties={"broadsheet.shard": self._fqn},
                )
                transaction.set_properties(named)
        except (CommitFailedException, CommitStateUnknownException):
            return False
        self._keep(table, version)
        return True

    def _keep(self, table: Table, version: TableVersion) -> None:
        if not self._closed:
            self._table = table
        self._version = version
        self._schema = table_schema(table.schema().as_arrow())


def _ensure_own_tables(catalog: SqlCatalog) -> None:
    """Create the tables of a catalog in SQL, unless another shard does so at the same time."""
    for _ in SqlCatalogBaseTable.metadata.tables:
        with suppress(DBAPIError):
            catalog.create_tables()
            return
        # Each table is looked for, then made if it is absent: of two at once, the database refuses one that is there
        # since, in words of its own. The next look finds it.
    catalog.create_tables()


def _ensure_namespace(catalog: Catalog, namespace: str) -> None:
    """Create a namespace, unless another shard does so at the same time."""
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except Exception:
        # Each catalog has an error of its own for that; the one in SQL raises the database's.
        if not catalog.namespace_exists(namespace):
            raise


class _errors_named:  # noqa: N801 - used like a function
    """Raise errors of files, connections and databases as ours."""

    def __init__(self, fqn: str, table: str) -> None:
        self._fqn, self._table = fqn, table

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A database that is locked, or does not answer, is there again later, as a file is.
        if isinstance(error, OSError | OperationalError):
            raise StoreUnavailableError(self._fqn, f"table {self._table}: {error}") from error
