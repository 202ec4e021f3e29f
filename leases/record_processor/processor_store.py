"""Store of a shard that runs record processors: their tables, leases and checkpoints in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass

import structlog
from sqlalchemy.engine import Connection, Engine

from broadsheet.consumer.application import Shard
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.consumer.stores.sql_dialect import dialect_of
from broadsheet.journals.message.publisher import Publisher
from broadsheet.leases.record import Versioned
from broadsheet.leases.record_processor.journal_assignment import (
    JournalAssignment,
    LeaseTables,
    RetainedRecords,
)
from broadsheet.leases.record_processor.processor import RecordProcessor
from broadsheet.leases.stores.sql.records import SqlRecords
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint

LEASES_TABLE = "broadsheet_processor_leases"
"""Not `SqlRecordStore`'s table, because the allocator assigns these leases and no worker may take them."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorContext:
    """Services for a record processor, besides its records."""

    shard: Shard
    store: SqlStore
    """Write to `store.connection` in `process_records`: the writes commit together with the processor's checkpoint."""
    publisher: Publisher
    """Its messages become visible once the same transaction has committed."""


NewProcessor = Callable[[ProcessorContext], RecordProcessor]


class ProcessorStore:
    """Implements `Store` around an `SqlStore`."""

    def __init__(self, shard: Shard, engine: Engine, *, lock_wait_seconds: float = 30.0) -> None:
        """Create a store; nothing happens before `restore_checkpoint`.

        Args:
            shard: The shard.
            engine: PostgreSQL or SQLite (a file). Stays the application's own.
            lock_wait_seconds: Longest wait for a lock, after which a transaction fails.
        """
        self.sql = SqlStore(shard, engine, lock_wait_seconds=lock_wait_seconds)
        """The application's tables, and the shard's checkpoint."""
        self._shard = shard
        self._dialect = dialect_of(
            engine, lock_wait_seconds=lock_wait_seconds, takeover_seconds=lock_wait_seconds
        )
        self._tables = LeaseTables(leases=SqlRecords(LEASES_TABLE), retained=RetainedRecords())
        self._taken: dict[str, Versioned] = {}
        self._assignments: dict[str, JournalAssignment] = {}

    @property
    def keeps_segments(self) -> bool:
        """The SQL store's value, because commits are made there."""
        return self.sql.keeps_segments

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Fence older primaries, and begin a new assignment of each journal: epochs grow with each life."""
        self._lose_all()
        checkpoint = self.sql.restore_checkpoint(shard)
        self._dialect.prepare(self._create_tables)
        with self._dialect.begin_write() as connection:
            self._taken = {
                source.journal: self._take(connection, source.journal)
                for source in shard.spec.sources
            }
            connection.commit()
        return checkpoint

    def assignment(
        self, journal: str, new_processor: NewProcessor, publisher: Publisher
    ) -> JournalAssignment:
        """Return the processor of a journal, initialized when its first record comes."""
        if journal not in self._assignments:
            held = self._taken.pop(journal, None) or self._take(self.sql.connection, journal)
            context = ProcessorContext(shard=self._shard, store=self.sql, publisher=publisher)
            self._assignments[journal] = JournalAssignment(
                held, self._tables, new_processor(context), lambda: self.sql.connection
            )
        return self._assignments[journal]

    def settle(self) -> None:
        """Retain the records that processors have not checkpointed, in the transaction about to commit."""
        for assignment in self._assignments.values():
            assignment.settle()

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Commit the processors' writes, their checkpoints, and the read offsets."""
        return self.sql.start_commit(shard, checkpoint, wait_for)

    def destroy(self) -> None:
        """Roll back, tell the processors, and return connections to the engine."""
        try:
            self._lose_all()
        finally:
            self.sql.destroy()

    def _take(self, connection: Connection, journal: str) -> Versioned:
        return self._tables.take(connection, f"{self._shard.id}:{journal}", self._shard.id)

    def _create_tables(self, connection: Connection) -> None:
        self._tables.leases.table.create(connection, checkfirst=True)
        self._tables.retained.table.create(connection, checkfirst=True)

    def _lose_all(self) -> None:
        """Tell every processor that its lease is lost, and ignore its errors."""
        assignments, self._assignments = self._assignments, {}
        for journal, assignment in assignments.items():
            try:
                assignment.lose()
            except Exception:
                _log.exception(
                    "leasing.processor_shutdown_failed", shard=self._shard.id, journal=journal
                )
