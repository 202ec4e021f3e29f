"""Records that a processor was given and has not checkpointed, kept until it does.

A shard's own checkpoint says what was *read*: with it the records are gone from the journal's point of view. A
processor may lag behind, so what lies between is kept in the same transaction, and given to its successor first.

    CREATE TABLE broadsheet_retained_records (
        lease_key VARCHAR(255), seq BIGINT, journal_offset BIGINT, arrived DOUBLE PRECISION, data BYTEA,
        PRIMARY KEY (lease_key, seq))
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from consumer.leasing.position import Position
from consumer.leasing.record import KEY_CHARACTERS_MAX
from consumer.leasing.record_processor.records import ProcessorRecord

RETAINED_TABLE = "broadsheet_retained_records"


class RetainedRecords:
    """Reads and writes them in transactions of the caller's."""

    def __init__(self, table_name: str = RETAINED_TABLE) -> None:
        """Describe the table."""
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
        """Keep records."""
        if records:
            rows = [_row_of(lease_key, record) for record in records]
            connection.execute(sa.insert(self.table), rows)

    def drop_through(self, connection: Connection, lease_key: str, seq: int) -> None:
        """Drop a lease's records up to a number, itself included."""
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
