"""Processors as applications would ship them to Spark: one of records, which counts keys, and one of keyed state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from broadsheet.consumer.application import Shard
from broadsheet.journals.content.json import JsonType
from broadsheet.leases.record_processor.application import RecordProcessorApplication
from broadsheet.leases.record_processor.processor import (
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    RecordProcessorCheckpointer,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from broadsheet.leases.record_processor.processor_store import ProcessorContext
from tests.support.tally import database_of

_TABLE = sa.text("CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, count INTEGER NOT NULL)")
_ADD = sa.text(
    "INSERT INTO counts VALUES (:key, :count)"
    " ON CONFLICT (key) DO UPDATE SET count = counts.count + excluded.count"
)


class KeyCounter:
    """Implements `RecordProcessor`."""

    def __init__(self, context: ProcessorContext) -> None:
        self._store = context.store

    def initialize(self, initialize_input: InitializeInput, /) -> None:
        """Nothing is kept in memory."""

    def process_records(
        self, process_records_input: ProcessRecordsInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Add to the counts, and checkpoint."""
        keys = (
            msgspec.json.decode(record.binary_data)["key"]
            for record in process_records_input.records
        )
        connection = self._store.connection
        connection.execute(_TABLE)
        for key, count in Counter(keys).items():
            connection.execute(_ADD, {"key": key, "count": count})
        process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Whoever has the lease goes on from the checkpoint."""

    def shard_ended(
        self, shard_ended_input: ShardEndedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Journals do not end."""

    def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """All is checkpointed."""


def key_counters(directory: Path) -> RecordProcessorApplication:
    """Return the application; each shard has a database in `directory`."""

    def new_engine(shard: Shard) -> sa.Engine:
        return sa.create_engine(f"sqlite:///{database_of(directory, shard.id)}")

    return RecordProcessorApplication(
        new_engine=new_engine, new_processor=KeyCounter, message_type=JsonType()
    )


class Totals(StatefulProcessor):
    """Adds up the cents of each user."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the total."""
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Add, and tell each new total."""
        for row in rows:
            total = (self._total.get() or (0,))[0] + row.cents
            self._total.update((total,))
            yield Row(user=key[0], total=total)

    def close(self) -> None:
        """Nothing is open."""
