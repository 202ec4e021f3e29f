"""A store of aggregates by key that takes runs of rows: columns of numpy in memory, changes in the recovery log.

    update ─► rows held back ─► fold: group by key, merge into the table of the running transaction
                                │ commit: the rows of the keys that changed
                                ▼
             files (a frame a commit, a snapshot now and then) ─► durable ─► table of the last commit ◄─ queries, scans

There are two tables, so that a transaction never disturbs a query. Both are in memory, so the state must fit there.
With a recovery log a commit is durable, and shows to queries, when the log has its frame; without one when the file is
synced, and the directory's lock keeps others out.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.recoverylog.local_state import LocalState, local_state_of
from broadsheet.consumer.stores.aggregate.aggregates import Aggregates, AggregateTable, SlotIndex
from broadsheet.consumer.stores.aggregate.columns import ROWS_PER_FOLD, Slots, grown
from broadsheet.consumer.stores.aggregate.recording import (
    SNAPSHOT_BYTES_MIN,
    AggregateFiles,
    ChangeFrame,
    FileLayout,
    StoredRows,
    encoded_rows,
    new_layout,
)
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.consumer.stores.directory_lock import StoreDirectory
from broadsheet.consumer.stores.state_tables import ROWS_PER_BATCH, TableScan, picked, require_table
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint, whole_checkpoint
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.checkpoint import EncodedCheckpoint, encoded
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint

AGGREGATES_TABLE: Final = "aggregates"
SKETCHES_TABLE: Final = "sketches"
HELD_BYTES_MAX: Final = 8 << 20
"""Bytes of runs that are held back: columns may be views of all that was read with them."""


@dataclass(frozen=True, slots=True)
class _Committed:
    """The last durable commit. Its table is changed in place, under the store's lock."""

    table: AggregateTable
    index: SlotIndex
    """Also has keys of the running transaction, whose slots are not live in the table."""
    checkpoint: bytes
    number: int
    segments: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class _Change:
    """The changes of one commit to the table."""

    slots: Slots
    keys: Sequence[Any]
    """Of these slots; the same objects as in the running transaction's table, so that both take the memory of one."""
    rows: pa.RecordBatch
    """Of these slots."""
    dropped: Slots
    dropped_keys: Sequence[Any]
    checkpoint: EncodedCheckpoint


class AggregateStore:
    """Keeps declared aggregates of a shard's rows, by key."""

    def __init__(
        self,
        shard: Shard,
        aggregates: Aggregates,
        local_state: LocalState | None = None,
        *,
        snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
        lock_wait_seconds: float = 10.0,
    ) -> None:
        """Create a store; nothing is read before `restore_checkpoint`.

        Args:
            shard: The shard; if it has a recovery log, its `local_state` is where the files are.
            aggregates: What to keep. Aggregates may be added, beginning with the rows that come then, and removed; one
                whose kind, field or type changes needs another name.
            local_state: Where the files are if the shard has no recovery log.
            snapshot_bytes_min: Least bytes of changes after which the whole table is written again.
            lock_wait_seconds: Longest wait for another holder of a directory that stays.

        Raises:
            UnsupportedSpecError: there is neither a recovery log nor a `local_state`.
        """
        self._fqn = shard.fqn
        self._aggregates = aggregates
        self._layout = new_layout(aggregates.key, aggregates.identities, aggregates.recorded)
        self._local_state = local_state_of(shard, local_state)
        self._is_shards_own = shard.local_state is not None
        self._files = AggregateFiles(
            shard.fqn, self._local_state, snapshot_bytes_min=snapshot_bytes_min
        )
        self._directory = StoreDirectory(
            shard.fqn, self._local_state, lock_wait_seconds=lock_wait_seconds
        )
        self._commits = CommitThread(shard.fqn, recorded=self._local_state.recorder is not None)
        self.keeps_segments = True
        self._lock = threading.Lock()
        """Guards `_committed`, which queries read on any thread."""
        self._committed: _Committed | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._table = AggregateTable(aggregates)
        self._index = SlotIndex()
        self._changed = np.zeros(0, np.bool_)
        """By slot, whether the running transaction changed it."""
        self._dropped: dict[Any, int] = {}
        """Slots of the keys that the running transaction dropped."""
        self._leaving: Mapping[Any, int] = {}
        """The same of the transaction before, whose slots queries may still read."""
        self._held: list[tuple[list[pa.Array], ...]] = []
        """Runs that are not folded yet."""
        self._held_rows = self._held_bytes = 0

    # -- the running transaction, on the worker thread

    def update(self, rows: object) -> None:
        """Add a run of rows, in order.

        Short runs are held back and grouped together, so a run costs little however short it is.

        Args:
            rows: A `MessageBatch`, whose acknowledgements are left out, and whose messages may lack fields; or a
                `pyarrow.Table` or RecordBatch, anything that pyarrow makes a table of (pandas, Polars), or columns by
                name: Arrow arrays, numpy arrays or lists. Columns that no aggregate reads are ignored.

        Raises:
            ValidationError: a column is missing, or of another type than is declared; a key is null; or a sum does not
                fit its type.
            FramingError: a message cannot be decoded.
            StoreError: the store is not restored, or a commit has failed.
        """
        self._check_writable()
        size = _size_bytes(rows)
        if isinstance(rows, MessageBatch):
            rows = self._aggregates.rows_of(rows)
        run = self._aggregates.read(rows)
        count = sum(map(len, run[0]))
        if not count:
            return
        self._held.append(run)
        self._held_rows += count
        self._held_bytes += size
        if self._held_rows >= ROWS_PER_FOLD or self._held_bytes >= HELD_BYTES_MAX:
            self._fold()

    def drop(self, keys: Collection[Any]) -> None:
        """Forget keys. A key that comes again starts from nothing.

        Args:
            keys: Values, or tuples of values if the key has several fields. Keys that are not there are ignored.

        Raises:
            ValidationError: a key is of another type.
        """
        self._check_writable()
        plain = [self._aggregates.key_of(key) for key in keys]
        self._fold()
        slots = self._index.known_slots(plain)
        slots = np.unique(slots[self._table.live[slots]])
        self._dropped |= {self._table.keys[slot]: slot for slot in slots.tolist()}
        self._changed[slots] = False
        self._table.clear(slots)

    def changes(self) -> pa.Table:
        """Return the results, as of now, of the keys that the running transaction has changed; for `finalize_txn`.

        Dropped keys are not among them.
        """
        self._check_writable()
        self._fold()
        shown = self._aggregates.shown
        return pa.Table.from_batches([self._table.show(np.flatnonzero(self._changed), shown)])

    # -- the last durable commit, on any thread

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return the results of a key as of the last durable commit, by name; None if there is no such key.

        Args:
            key: A value, or a tuple of values if the key has several fields.

        Raises:
            ValidationError: the key is of another type.
            StoreClosedError: the store is not restored, or is destroyed.
        """
        plain = self._aggregates.key_of(key)
        with self._lock:
            committed = self._require_committed()
            table, slot = committed.table, committed.index.get(plain)
            # The slot may be of a key that is not committed yet, or meanwhile of another one.
            if slot is None or slot >= len(table.keys):
                return None
            if not table.live[slot] or table.keys[slot] != plain:
                return None
            return table.result(slot)

    def to_arrow(self, columns: Sequence[str] = ()) -> pa.Table:
        """Return the results of all keys as of the last durable commit.

        Args:
            columns: Names, of the key too; none: all.

        Raises:
            ValidationError: there is no such column.
            StoreClosedError: the store is not restored, or is destroyed.
        """
        with self.scan(AGGREGATES_TABLE, columns) as scan:
            return pa.Table.from_batches(scan.batches, scan.schema)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the table of results and, if there are sketches, one of those, for merging across shards.

        Their bytes are Apache DataSketches' own, which its libraries for other languages read too.
        """
        tables = {AGGREGATES_TABLE: self._aggregates.shown}
        if len(self._aggregates.sketches) > len(self._aggregates.key):
            tables[SKETCHES_TABLE] = self._aggregates.sketches
        return tables

    @contextmanager
    def scan(self, table: str, columns: Sequence[str] = ()) -> Iterator[TableScan]:
        """Return a table's rows as of the last durable commit, and its checkpoint."""
        whole = require_table(self.tables(), table)
        schema = picked(whole, columns)
        with self._lock:
            committed = self._require_committed()
            # A copy of arrays, so that commits go on changing theirs in place.
            frozen = committed.table.copied()
            checkpoint = stored_checkpoint(self._fqn, committed.checkpoint)
        slots = frozen.live_slots()

        def batches() -> Iterator[pa.RecordBatch]:
            for begin in range(0, len(slots), ROWS_PER_BATCH):
                part = slots[begin : begin + ROWS_PER_BATCH]
                if table == SKETCHES_TABLE:
                    yield frozen.whole(part, whole).select(schema.names)
                else:
                    yield frozen.show(part, schema)

        yield TableScan(checkpoint, schema, batches())

    def open_copy(self) -> None:
        """Read a copy of what a standby played, for scans only."""
        if not self._is_shards_own:
            raise StoreError(self._fqn, "its files are its primary's, and no standby has them")
        try:
            self._committed = self._loaded(tidies=False)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot open a copy: {error}") from error
        if not self._committed.number:
            raise StoreError(self._fqn, "the primary has not made its files yet")

    # -- the shard's interface

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Read the files if they are not read yet, drop what is not committed, and return the last checkpoint."""
        del shard
        try:
            if self._committed is None:
                self._open()
            else:
                self._check_writable()
                self._commits.wait()
        except OSError as error:
            raise StoreError(self._fqn, f"cannot restore: {error}") from error
        return self._begin_anew()

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Commit the changes so far and `checkpoint` together, on a separate thread, after `wait_for`."""
        del shard
        self._check_writable()
        self._fold()
        slots = np.flatnonzero(self._changed)
        change = _Change(
            slots,
            self._table.keys[slots].tolist(),
            self._table.record(slots),
            np.fromiter(self._dropped.values(), np.intp, len(self._dropped)),
            list(self._dropped),
            encoded(checkpoint),
        )
        self._changed[:] = False
        # The commit before is durable, so no query reads what it dropped.
        for key, slot in self._leaving.items():
            if not self._table.live[slot] and key not in self._dropped:
                self._index.release(key)
        self._leaving, self._dropped = self._dropped, {}
        return self._commits.start(
            CommitSteps(
                write=partial(self._write, change),
                recorder=self._local_state.recorder,
                settle=partial(self._settle, change),
                tidy=self._tidy,
                fail=self._fail,
            ),
            wait_for,
        )

    def destroy(self) -> None:
        """Abort a commit that still waits; remove the files if the recovery log has them."""
        self._closed = True
        try:
            self._commits.close()
        finally:
            with self._lock:
                self._committed = None
            self._files.close()
            self._directory.leave()

    # -- opening

    def _open(self) -> None:
        self._check_open()
        self._directory.claim()
        loaded = self._loaded(tidies=True)
        with self._lock:
            self._committed = loaded

    def _loaded(self, *, tidies: bool) -> _Committed:
        table, index = AggregateTable(self._aggregates), SlotIndex()
        checkpoint, number = b"", 0
        segments: dict[bytes, bytes] = {}
        for layout, frame in self._files.load(tidies=tidies):
            self._check_layout(layout)
            stored = StoredRows(frame, layout)
            if stored.dropped is not None:
                keys = self._aggregates.keys_in(stored.dropped)
                known = index.known_slots(keys)
                table.clear(known)
                for key in keys:
                    if key in index:
                        index.release(key)
            if stored.rows is not None:
                keys = self._aggregates.keys_in(stored.rows)
                table.put(index.slots_of(keys), keys, stored.rows)
            segments |= frame.segments
            if frame.number:
                checkpoint, number = frame.checkpoint, frame.number
        return _Committed(table, index, checkpoint, number, segments)

    def _check_layout(self, layout: FileLayout) -> None:
        if layout.key != self._layout.key:
            raise StoreError(
                self._fqn,
                f"it was written with the key {layout.key}, and is opened with {self._layout.key}; "
                "rows cannot be grouped again: use another shard",
            )
        for name, identity in self._layout.aggregates.items():
            stored = layout.aggregates.get(name, identity)
            if stored != identity:
                raise StoreError(
                    self._fqn,
                    f"aggregate {name} was written as {stored}, and is declared as {identity}; give it another name",
                )

    def _begin_anew(self) -> Checkpoint:
        """Make the running transaction's table one of the last commit."""
        with self._lock:
            committed = self._require_committed()
            index = committed.index
            if len(index) != np.count_nonzero(committed.table.live):
                # Keys of a transaction that was given up leave no slot behind.
                index = SlotIndex()
                index.take_over(committed.table.keys, committed.table.live_slots())
                committed = replace(committed, index=index)
                self._committed = committed
            self._table, self._index = committed.table.copied(), index
        self._changed = np.zeros(len(self._table.live), np.bool_)
        self._held = []
        self._held_rows = self._held_bytes = 0
        self._dropped, self._leaving = {}, {}
        checkpoint = stored_checkpoint(self._fqn, committed.checkpoint)
        return whole_checkpoint(self._fqn, checkpoint, committed.segments)

    # -- folding

    def _fold(self) -> None:
        """Group what is held back, and merge it."""
        if not self._held_rows:
            return
        held, self._held = self._held, []
        self._held_rows = self._held_bytes = 0
        columns = [
            pa.chunked_array([chunk for run in held for chunk in run[position]])
            for position in range(len(self._aggregates.fields))
        ]
        try:
            for begin in range(0, len(columns[0]), ROWS_PER_FOLD):
                part = [each.slice(begin, ROWS_PER_FOLD).combine_chunks() for each in columns]
                slots = self._table.fold(part, self._index)
                if len(self._changed) < len(self._table.live):
                    self._changed = grown(self._changed, len(self._table.live))
                self._changed[slots] = True
        except BaseException as error:
            # Some of the columns have the run, and others do not.
            self._failure = error
            raise

    # -- committing, on the commit's thread

    def _write(self, change: _Change) -> OpFuture | None:
        committed = self._require_committed()
        keys = self._aggregates.key_arrays(change.dropped_keys)
        dropped = pa.RecordBatch.from_arrays(keys, names=list(self._aggregates.key))
        frame = ChangeFrame(
            committed.number + 1,
            change.checkpoint.checkpoint,
            dict(change.checkpoint.new_segments),
            encoded_rows(change.rows),
            encoded_rows(dropped),
        )
        try:
            return self._files.append(self._layout, frame)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot commit: {error}") from error

    def _settle(self, change: _Change) -> None:
        """Show a commit to queries."""
        with self._lock:
            committed = self._require_committed()
            committed.table.clear(change.dropped)
            committed.table.put(change.slots, change.keys, change.rows)
            segments = committed.segments
            if change.checkpoint.new_segments:
                known = {**segments, **change.checkpoint.new_segments}
                segments = {each: known[each] for each in change.checkpoint.named & known.keys()}
            self._committed = _Committed(
                committed.table,
                committed.index,
                change.checkpoint.checkpoint,
                committed.number + 1,
                segments,
            )

    def _tidy(self) -> None:
        if not self._files.is_due:
            return
        committed = self._require_committed()
        try:
            self._files.replace(self._layout, self._snapshot(committed), number=committed.number)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot write a snapshot: {error}") from error

    def _snapshot(self, committed: _Committed) -> Iterator[ChangeFrame]:
        """Yield the frames of a snapshot: only this thread changes the table, so it needs no lock."""
        slots, schema = committed.table.live_slots(), self._aggregates.recorded
        for begin in range(0, len(slots), ROWS_PER_BATCH):
            part = committed.table.whole(slots[begin : begin + ROWS_PER_BATCH], schema)
            yield ChangeFrame(rows=encoded_rows(part))
        yield ChangeFrame(committed.number, committed.checkpoint, dict(committed.segments))

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    # -- its state

    def _require_committed(self) -> _Committed:
        if self._committed is None:
            raise StoreClosedError(self._fqn)
        return self._committed

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(self._fqn)

    def _check_writable(self) -> None:
        self._check_open()
        if self._failure is not None:
            raise StoreError(
                self._fqn, f"it has failed, open a new store: {self._failure}"
            ) from self._failure
        if self._committed is None:
            raise StoreError(self._fqn, "not restored yet: call restore_checkpoint first")


def _size_bytes(rows: Any) -> int:
    """Return what a run may keep in memory."""
    if isinstance(rows, MessageBatch):
        return int(rows.ends[-1] - rows.begins[0]) if len(rows) else 0
    return int(rows.nbytes) if isinstance(rows, pa.Table | pa.RecordBatch) else 0
