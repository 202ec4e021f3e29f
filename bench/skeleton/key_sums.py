"""The application that is measured: count and sum by key, in SQLite, the whole batch at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import sqlalchemy as sa

from broadsheet.consumer.application import Shard
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import Envelope, MessageBatch, MessageType
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire import journal_pb2

DIRECTORY_VARIABLE = "KEY_SUMS_DIRECTORY"

UPSERT = sa.text(
    "INSERT INTO sums (k, n, total) VALUES (:k, :n, :total) "
    "ON CONFLICT (k) DO UPDATE SET n = sums.n + excluded.n, total = sums.total + excluded.total"
)
_SUMS = sa.Table(
    "sums",
    sa.MetaData(),
    sa.Column("k", sa.String, primary_key=True),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("total", sa.Integer, nullable=False),
)


class Record(msgspec.Struct):
    """The fields of a message that are counted."""

    k: str
    v: int


Decode: TypeAlias = Callable[[bytes], Record]


class KeySums:
    """Counts and sums `v` by `k`."""

    def __init__(self) -> None:
        self._directory = Path(os.environ[DIRECTORY_VARIABLE])
        self._decode = msgspec.json.Decoder(Record).decode

    def new_store(self, shard: Shard) -> SqlStore:
        """A SQLite file."""
        engine = sa.create_engine(f"sqlite:///{self._directory / 'sums.db'}")
        with engine.begin() as connection:
            _SUMS.create(connection, checkfirst=True)
        return SqlStore(shard, engine)

    def message_type(self, journal_spec: journal_pb2.JournalSpec) -> MessageType:
        """JSON lines."""
        return JsonType()

    def consume_batch(
        self, shard: Shard, store: SqlStore, batch: MessageBatch, publisher: Publisher
    ) -> None:
        """Fold the batch by key, then write each key once."""
        add_sums(store.connection, fold(self._decode, batch.payloads))

    def consume_message(
        self, shard: Shard, store: SqlStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Messages come in batches."""
        raise NotImplementedError("consume_batch is used")

    def finalize_txn(self, shard: Shard, store: SqlStore, publisher: Publisher) -> None:
        """Nothing is cached."""


def fold(decode: Decode, payloads: Sequence[bytes]) -> list[dict[str, object]]:
    """Return a row a key: `k`, `n` messages, `total` of their values."""
    counts: dict[str, list[int]] = {}
    for payload in payloads:
        record = decode(payload)
        found = counts.get(record.k)
        if found is None:
            counts[record.k] = [1, record.v]
        else:
            found[0] += 1
            found[1] += record.v
    return [{"k": key, "n": n, "total": total} for key, (n, total) in counts.items()]


def add_sums(connection: sa.Connection, rows: list[dict[str, object]]) -> None:
    """Add rows to the table."""
    if rows:
        connection.execute(UPSERT, rows)
