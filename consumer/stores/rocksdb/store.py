"""A store in a RocksDB of one shard: large states of ordered keys and values, in column families.

A transaction's changes are held in memory until it commits; its reads see them. A commit writes them, and the
checkpoint under a reserved key of the default family, in one batch. With a recovery log a commit is durable, and shows
to queries, when the log has it; without one when the write-ahead log is synced, and the directory's lock keeps others
out.

Source: gazette/core consumer/store-rocksdb (one batch, the checkpoint's key, a manifest that is started again often).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.recoverylog.local_state import LocalState, local_state_of
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.consumer.stores.directory_lock import StoreDirectory
from broadsheet.consumer.stores.rocksdb.database import (
    CHECKPOINT_KEY,
    DEFAULT_FAMILY,
    RESERVED_PREFIX,
    CommittedView,
    Database,
    PendingWrites,
    Tune,
    changes_between,
    first_key,
    overlaid,
)
from broadsheet.consumer.stores.rocksdb.recording import RocksDbRecording
from broadsheet.consumer.stores.state_tables import ROWS_PER_BATCH, TableScan, picked, require_table
from broadsheet.consumer.stores.store_record import ROCKSDB, StoreFiles
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint, whole_checkpoint
from broadsheet.journals.message.checkpoint import EncodedCheckpoint, encoded
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint

if TYPE_CHECKING:
    import pyarrow as pa

ResultT = TypeVar("ResultT")
WRITE_BUFFER_BYTES = 16 << 20
"""Memory table of each family; opening after a crash replays up to this much of the write-ahead log, in tenths of a
second.
"""


def family_schema() -> pa.Schema:
    """Return the columns of every column family."""
    import pyarrow as pa

    return pa.schema([("key", pa.binary()), ("value", pa.binary())])


def family_batches(
    view: CommittedView, family: str, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the items of a family, in order of keys, with the columns of `schema`."""
    import pyarrow as pa

    items = view.items(family=family)
    while part := list(islice(items, ROWS_PER_BATCH)):
        keys, values = zip(*part, strict=True)
        by_name = {"key": keys, "value": values}
        arrays = [pa.array(by_name[name], type=pa.binary()) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class RocksDbStore:
    """Keeps a shard's state in column families of RocksDB."""

    def __init__(
        self,
        shard: Shard,
        local_state: LocalState | None = None,
        *,
        families: Sequence[str] = (),
        write_buffer_bytes: int = WRITE_BUFFER_BYTES,
        tune: Tune | None = None,
        lock_wait_seconds: float = 10.0,
    ) -> None:
        """Create a store; nothing is opened before `restore_checkpoint`.

        Args:
            shard: The shard; if it has a recovery log, its `local_state` is where the files are.
            local_state: Where they are if it has none.
            families: Column families besides "default"; made if they are absent.
            write_buffer_bytes: Size of the memory table of each family.
            tune: Called as tune(family, options) before each opening, e.g. to set filters and caches. Table options
                that it sets should have format version 5, if members of Gazette's share the shard.
            lock_wait_seconds: Longest wait for another holder of a directory that stays.

        Raises:
            ValidationError: there is neither a recovery log nor a `local_state`.
        """
        self._fqn = shard.fqn
        self._local_state = local_state_of(shard, local_state)
        self._is_shards_own = shard.local_state is not None
        self._families = tuple(families)
        self._write_buffer_bytes = write_buffer_bytes
        self._tune = tune
        self._directory = StoreDirectory(
            shard.fqn, self._local_state, lock_wait_seconds=lock_wait_seconds
        )
        self._files = StoreFiles(shard.fqn, self._local_state, ROCKSDB)
        self._recording: RocksDbRecording | None = None
        self._database: Database | None = None
        self._pending = PendingWrites()
        self._committing: PendingWrites | None = None
        """Of the commit under way, until it is in the database."""
        self._segments: set[bytes] = set()
        """Ids of those in the database, as of the last commit that was started."""
        self.keeps_segments = True
        self._view: CommittedView | None = None
        self._commits = CommitThread(shard.fqn, recorded=self._local_state.recorder is not None)
        self._failure: BaseException | None = None
        self._closed = False

    # -- the state of the running transaction, on the worker thread

    def get(self, key: bytes, *, family: str = DEFAULT_FAMILY) -> bytes | None:
        """Return the value of `key`; None if it has none."""
        for layer in self._layers_newest_first():
            changes = layer.families.get(family)
            if changes is not None and key in changes:
                return changes[key]
        return self._writable(family).get(family, key)

    def get_many(
        self, keys: Sequence[bytes], *, family: str = DEFAULT_FAMILY
    ) -> list[bytes | None]:
        """Return the values of several keys, shape (len(keys),); one look into the database for all."""
        layers = self._layers_newest_first()
        values = self._writable(family).get_many(family, list(keys))
        for layer in reversed(layers):
            changes = layer.families.get(family)
            if changes:
                values = [changes.get(key, value) for key, value in zip(keys, values, strict=True)]
        return values

    def put(self, key: bytes, value: bytes, *, family: str = DEFAULT_FAMILY) -> None:
        """Set the value of `key`.

        Raises:
            ValidationError: there is no such family, or the key is one of the store's own.
        """
        self._changes(key, family)[key] = value

    def put_many(self, keys: Any, values: Any, *, family: str = DEFAULT_FAMILY) -> None:
        """Set the values of a run of keys; of several values of one key the last one counts.

        Args:
            keys: Bytes; a list, or an Arrow array (also of text).
            values: As many.
            family: Where.

        Raises:
            ValidationError: there is no such family, a key is one of the store's own, or something is not bytes.
        """
        checked = self._checked_keys(keys, family)
        contents = _bytes_in("values", values)
        if len(contents) != len(checked):
            raise ValidationError("values", f"expected {len(checked)}, got {len(contents)}")
        self._pending.of(family).update(zip(checked, contents, strict=True))

    def delete_many(self, keys: Any, *, family: str = DEFAULT_FAMILY) -> None:
        """Remove the values of a run of keys; as `put_many`."""
        self._pending.of(family).update(dict.fromkeys(self._checked_keys(keys, family)))

    def delete(self, key: bytes, *, family: str = DEFAULT_FAMILY) -> None:
        """Remove the value of `key`."""
        self._changes(key, family)[key] = None

    def items(
        self, begin: bytes = b"", end: bytes | None = None, *, family: str = DEFAULT_FAMILY
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys in [begin, end) and their values as of this call, in order of keys."""
        layers = self._layers_newest_first()
        begin = first_key(family, begin)
        changes = changes_between(reversed(layers), family, begin, end)
        return overlaid(self._writable(family).items(family, begin, end), changes)

    def read(self, function: Callable[[CommittedView], ResultT]) -> ResultT:
        """Return `function(view)` of the last durable commit; for queries.

        May be called on any thread. The view, and iterators of it, are good only within the call.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        view = self._view
        if view is None:
            raise StoreClosedError(self._fqn)
        return function(view)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return a table a column family, with `key` and `value` as bytes."""
        return self.read(lambda view: dict.fromkeys(view.families, family_schema()))

    @contextmanager
    def scan(self, table: str, columns: Sequence[str] = ()) -> Iterator[TableScan]:
        """Return the items of a column family as of the last durable commit, and its checkpoint."""
        view = self._view
        if view is None:
            raise StoreClosedError(self._fqn)
        schema = picked(require_table(self.tables(), table), columns)
        encoded = view.get(CHECKPOINT_KEY)
        checkpoint = stored_checkpoint(self._fqn, encoded)
        with closing(family_batches(view, table, schema)) as batches:
            yield TableScan(checkpoint, schema, batches)

    def open_copy(self) -> None:
        """Open a copy of what a standby played, for scans only."""
        self._check_open()
        directory = self._local_state.directory
        if not self._is_shards_own:
            raise StoreError(self._fqn, "its files are its primary's, and no standby has them")
        if not (directory / "CURRENT").exists():
            raise StoreError(self._fqn, "the primary has not made its database yet")
        self._database = self._opened(durable=False)
        self._view = self._database.committed_view()

    # -- the shard's interface

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Open the files if they are not open, and return the last committed checkpoint."""
        del shard
        if self._database is None:
            self._open()
        database = self._writable(DEFAULT_FAMILY)
        self._pending = PendingWrites()
        content = database.get(DEFAULT_FAMILY, CHECKPOINT_KEY)
        segments = database.segments()
        self._segments = set(segments)
        return whole_checkpoint(self._fqn, stored_checkpoint(self._fqn, content), segments)

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Commit the changes so far and `checkpoint` together, on a separate thread, after `wait_for`."""
        del shard
        database = self._writable(DEFAULT_FAMILY)
        self._committing, self._pending = self._pending, PendingWrites()
        return self._commits.start(
            CommitSteps(
                write=partial(self._commit, database, self._committing, encoded(checkpoint)),
                recorder=self._local_state.recorder,
                settle=partial(self._settle, database),
                fail=self._fail,
            ),
            wait_for,
        )

    def destroy(self) -> None:
        """Close; remove the files if the recovery log has them."""
        self._closed = True
        try:
            self._commits.close()
            self._view = None
            if self._database is not None:
                self._database.close()
                self._database = None
        finally:
            self._directory.leave()

    def _open(self) -> None:
        self._check_open()
        directory, recorder = self._local_state.directory, self._local_state.recorder
        self._directory.claim()
        self._files.check()
        if recorder is not None:
            self._recording = RocksDbRecording(recorder, directory)
        self._database = self._opened(durable=recorder is None)
        if self._recording is not None:
            self._recording.record_changes()  # The log orders it before any commit, so no wait is needed here.
        self._files.record()
        self._view = self._database.committed_view()

    def _opened(self, *, durable: bool) -> Database:
        directory = self._local_state.directory
        try:
            return Database(
                directory,
                self._families,
                write_buffer_bytes=self._write_buffer_bytes,
                tune=self._tune,
                durable=durable,
            )
        except Exception as error:  # RocksDB's binding raises nothing more special.
            raise StoreError(self._fqn, f"cannot open {directory}: {error}") from error

    def _layers_newest_first(self) -> list[PendingWrites]:
        """Return the layers that are not in the database. Taken before the database is read, so that one that leaves
        meanwhile is found in there.
        """
        committing = self._committing
        return [self._pending] if committing is None else [self._pending, committing]

    def _changes(self, key: bytes, family: str) -> dict[bytes, bytes | None]:
        if key[:1] == RESERVED_PREFIX and family == DEFAULT_FAMILY:
            raise ValidationError(
                "key",
                f"expected none that begins with a zero byte in the default family, got {key!r}; "
                "those are the store's own: use another family",
            )
        if family not in self._pending.families:
            self._writable(family)
        return self._pending.of(family)

    def _checked_keys(self, keys: Any, family: str) -> list[bytes]:
        self._writable(family)
        found = _bytes_in("keys", keys)
        if family == DEFAULT_FAMILY:
            for key in found:
                if key[:1] == RESERVED_PREFIX:
                    self._changes(key, family)  # Says why not.
        return found

    def _writable(self, family: str) -> Database:
        self._check_open()
        if self._failure is not None:
            raise StoreError(
                self._fqn, f"a commit has failed, open a new store: {self._failure}"
            ) from self._failure
        if self._database is None:
            raise StoreError(self._fqn, "not restored yet: call restore_checkpoint first")
        if family not in self._database:
            raise ValidationError(
                "family", f"expected one that the store was created with, got {family!r}"
            )
        return self._database

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(self._fqn)

    # -- committing, on the commit's thread

    def _commit(
        self, database: Database, pending: PendingWrites, checkpoint: EncodedCheckpoint
    ) -> OpFuture | None:
        try:
            segments: dict[bytes, bytes | None] = {}
            if checkpoint.new_segments:
                segments |= dict.fromkeys(self._segments - checkpoint.named)
                segments |= checkpoint.new_segments
                self._segments = checkpoint.named
            database.write(pending, checkpoint.checkpoint, segments)
            self._committing = None
            if self._recording is None or self._local_state.recorder is None:
                return None
            self._recording.record_changes()
        except Exception as error:  # as above
            cause = _not_bytes(pending) or str(error)
            raise StoreError(self._fqn, f"cannot commit: {cause}") from error
        return self._local_state.recorder.barrier()

    def _settle(self, database: Database) -> None:
        self._view = database.committed_view()

    def _fail(self, error: BaseException) -> None:
        self._failure = error


def _not_bytes(pending: PendingWrites) -> str:
    """Return which change is none that RocksDB takes; empty if all are. Looked for after a failure only."""
    for family, changes in pending.families.items():
        for key, value in changes.items():
            parts: tuple[tuple[str, object], ...] = (
                ("key", key),
                ("value", b"" if value is None else value),
            )
            for what, part in parts:
                if not isinstance(part, bytes):
                    return (
                        f"family {family!r}, key {key!r:.100}: expected a {what} of bytes, "
                        f"got {type(part).__name__}"
                    )
    return ""


def _bytes_in(what: str, column: Any) -> list[bytes]:
    if hasattr(column, "to_pylist"):
        column = column.cast("binary").to_pylist()
    values = list(column)
    if others := set(map(type, values)) - {bytes}:
        raise ValidationError(what, f"expected bytes, got {others.pop().__name__}")
    return values
