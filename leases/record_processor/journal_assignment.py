"""Assignment of a record processor to one journal of a shard: its lease, progress and retained records.

Records are numbered as they are delivered, from 1, because numbers must grow and committed messages may arrive in
another order than their offsets'. A record's offset is in its position beside the number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import Flags, unix_seconds_of
from broadsheet.leases import rules
from broadsheet.leases.errors import InvalidStateError, ShutdownError
from broadsheet.leases.position import TRIM_HORIZON, Position
from broadsheet.leases.record import KEY_CHARACTERS_MAX, LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.record_processor.checkpointer import Change, SyncLeaseCheckpointer
from broadsheet.leases.record_processor.processor import (
    InitializeInput,
    LeaseLostInput,
    ProcessorRecord,
    ProcessRecordsInput,
    RecordProcessor,
)
from broadsheet.leases.record_processor.shard_progress import ShardProgress
from broadsheet.leases.stores.sql.records import SqlRecords

RETAINED_RECORDS_MAX: Final = 100_000
"""Most records that a processor may leave without a checkpoint. Each is in the database, and is delivered again after a
fail-over.
"""

RETAINED_TABLE = "broadsheet_retained_records"


class RetainedRecords:
    """Table of retained records: delivered to a processor, not checkpointed by it yet.

    A shard's own checkpoint covers everything *read*, so the journal does not deliver those records again. A processor
    may lag behind, so the records in between are retained in the same transaction, and delivered to its successor
    first. The table is read and written in the caller's transactions:

        CREATE TABLE broadsheet_retained_records (
            lease_key VARCHAR(255), seq BIGINT, journal_offset BIGINT, arrived DOUBLE PRECISION, data BYTEA,
            PRIMARY KEY (lease_key, seq))
    """

    def __init__(self, table_name: str = RETAINED_TABLE) -> None:
        self.table = sa.Table(
            table_name,
            sa.MetaData(),
            sa.Column("lease_key", sa.String(KEY_CHARACTERS_MAX), primary_key=True),
            sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("journal_offset", sa.BigInteger, nullable=False),
            sa.Column("arrived", sa.Double, nullable=True),
            sa.Column("data", sa.LargeBinary, nullable=False),
        )

    def read(self, connection: Connection, lease_key: str) -> tuple[ProcessorRecord, ...]:
        """Return a lease's records in their order."""
        columns = self.table.c
        query = (
            sa.select(columns.seq, columns.journal_offset, columns.arrived, columns.data)
            .where(columns.lease_key == lease_key)
            .order_by(columns.seq)
        )
        return tuple(
            ProcessorRecord(
                position=Position(str(row.seq), offset=str(row.journal_offset)),
                binary_data=bytes(row.data),
                approximate_arrival_timestamp=(
                    None if row.arrived is None else datetime.fromtimestamp(row.arrived, UTC)
                ),
            )
            for row in connection.execute(query)
        )

    def add(
        self, connection: Connection, lease_key: str, records: Sequence[ProcessorRecord]
    ) -> None:
        """Retain records."""
        if records:
            rows = [_row_of(lease_key, record) for record in records]
            connection.execute(sa.insert(self.table), rows)

    def drop_through(self, connection: Connection, lease_key: str, seq: int) -> None:
        """Drop a lease's records up to a number, inclusive."""
        columns = self.table.c
        connection.execute(
            sa.delete(self.table).where(columns.lease_key == lease_key, columns.seq <= seq)
        )


def _row_of(lease_key: str, record: ProcessorRecord) -> dict[str, object]:
    arrived = record.approximate_arrival_timestamp
    return {
        "lease_key": lease_key,
        "seq": int(record.position.seq),
        "journal_offset": int(record.position.offset or 0),
        "arrived": None if arrived is None else arrived.timestamp(),
        "data": record.binary_data,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTables:
    """Tables of leases and retained records."""

    leases: SqlRecords
    retained: RetainedRecords

    def take(self, connection: Connection, key: str, owner: str) -> Versioned:
        """Begin a new assignment of a lease without checking the caller's right to it; a former holder loses it."""
        seen = self.leases.get(connection, key)
        if seen is None:
            seen = self.leases.create(
                connection, LeaseRecord(key=key, checkpoint=Position(TRIM_HORIZON))
            )
        return self.leases.swap(connection, seen, lambda record: rules.take(record, owner))


class JournalAssignment:
    """A processor from its first record to the end of its primary's life. Only for the shard's worker thread."""

    def __init__(
        self,
        held: Versioned,
        tables: LeaseTables,
        processor: RecordProcessor,
        connection_of: Callable[[], Connection],
    ) -> None:
        """Initialize the processor, and deliver the records that its predecessor did not checkpoint.

        Args:
            held: The lease, just taken.
            tables: Where it is.
            processor: A new one.
            connection_of: Returns the connection of the transaction that is open.
        """
        self._held = held
        self._tables = tables
        self._processor = processor
        self._connection_of = connection_of
        self._progress = ShardProgress(held.record.checkpoint)
        self._checkpointer = SyncLeaseCheckpointer(self._progress, self._write)
        retained = tables.retained.read(connection_of(), held.record.key)
        self._stored = len(retained)
        """Of the records that are not checkpointed, so many are in the table."""
        self._open: list[ProcessorRecord] = list(retained)
        self._number = self._last_number()
        processor.initialize(
            InitializeInput(
                shard_id=held.record.key,
                position=held.record.checkpoint,
                pending_checkpoint=held.record.pending,
                pending_checkpoint_state=held.record.pending_state,
                epoch=held.record.epoch,
            )
        )
        self._give(retained)

    def process(self, batch: MessageBatch) -> None:
        """Deliver committed messages to the processor."""
        records = tuple(
            self._numbered(batch, index)
            for index in range(len(batch))
            if batch.flags[index] != Flags.ACK_TXN
        )
        self._open += records
        self._give(records)

    def settle(self) -> None:
        """Retain the records that the processor has not checkpointed, in the transaction about to commit.

        Raises:
            InvalidStateError: that is too much.
        """
        committed = self._committed_number()
        done = sum(int(record.position.seq) <= committed for record in self._open)
        key, retained = self._held.record.key, self._tables.retained
        if done and self._stored:
            retained.drop_through(self._connection_of(), key, committed)
        self._open = self._open[done:]
        self._stored = max(0, self._stored - done)
        if len(self._open) > RETAINED_RECORDS_MAX:
            raise InvalidStateError(
                f"record processor of {key}: {len(self._open)} records since its last checkpoint,"
                f" expected at most {RETAINED_RECORDS_MAX}; let it checkpoint more often"
            )
        retained.add(self._connection_of(), key, self._open[self._stored :])
        self._stored = len(self._open)

    def lose(self) -> None:
        """Tell the processor that its lease is lost: a successor may have begun."""
        self._processor.lease_lost(LeaseLostInput())

    def _give(self, records: tuple[ProcessorRecord, ...]) -> None:
        new = self._progress.deliver(records)
        if new:
            self._processor.process_records(
                ProcessRecordsInput(records=new, checkpointer=self._checkpointer)
            )

    def _numbered(self, batch: MessageBatch, index: int) -> ProcessorRecord:
        self._number += 1
        clock = int(batch.clocks[index])
        return ProcessorRecord(
            position=Position(str(self._number), offset=str(batch.begins[index])),
            binary_data=batch.payloads[index],
            approximate_arrival_timestamp=(
                datetime.fromtimestamp(unix_seconds_of(clock), UTC) if clock else None
            ),
        )

    def _write(self, change: Change) -> None:
        """Write the lease in the open transaction."""
        try:
            self._held = self._tables.leases.swap(
                self._connection_of(), self._held, lambda record: rules.update(record, change)
            )
        except RecordConflictError as conflict:
            raise ShutdownError(
                f"lease {self._held.record.key} is not held any more: {conflict}"
            ) from conflict

    def _committed_number(self) -> int:
        committed = self._progress.bounds.committed
        return 0 if committed is None or committed.is_name else int(committed.seq)

    def _last_number(self) -> int:
        """Return the number of the last record ever delivered; every record without a checkpoint is retained."""
        return int(self._open[-1].position.seq) if self._open else self._committed_number()
