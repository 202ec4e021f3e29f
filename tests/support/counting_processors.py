"""Record processors as shards: they count keys in the shard's database."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import sqlalchemy as sa

from broadsheet.consumer.application import Shard
from broadsheet.consumer.member.service import Service
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
from broadsheet.runtime.task_group import TaskGroup
from tests.support.members import Cluster
from tests.support.tally import database_of

ADD = sa.text(
    "INSERT INTO counts VALUES (:key, :count)"
    " ON CONFLICT (key) DO UPDATE SET count = counts.count + excluded.count"
)


@dataclass
class Lives:
    """What the processors of one test saw, over all members."""

    initialized: list[InitializeInput] = field(default_factory=list)
    delivered: Counter[int] = field(default_factory=Counter)
    """How often each message was given to a processor."""
    lost: int = 0
    fails_after: set[int] = field(default_factory=set)
    """Messages whose checkpoint was written, and whose transaction then fails, once each."""


class CountingProcessor:
    """Counts in memory, and writes what it counted when it checkpoints: every so many records."""

    def __init__(self, context: ProcessorContext, lives: Lives, *, checkpoint_every: int) -> None:
        self._context = context
        self._lives = lives
        self._every = checkpoint_every
        self._counted: Counter[str] = Counter()

    def initialize(self, initialize_input: InitializeInput, /) -> None:
        """Note what was left."""
        self._lives.initialized.append(initialize_input)

    def process_records(
        self, process_records_input: ProcessRecordsInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Count; and write, after so many records, what was counted up to there."""
        for record in process_records_input.records:
            message = msgspec.json.decode(record.binary_data)
            self._lives.delivered[message["n"]] += 1
            self._counted[message["key"]] += 1
            if self._counted.total() == self._every:
                connection = self._context.store.connection
                connection.execute(
                    sa.text(
                        "CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, count INTEGER NOT NULL)"
                    )
                )
                rows = [{"key": key, "count": count} for key, count in self._counted.items()]
                connection.execute(ADD, rows)
                process_records_input.checkpointer.checkpoint(record)
                self._counted.clear()
                if message["n"] in self._lives.fails_after:
                    self._lives.fails_after.discard(message["n"])
                    raise OSError("as the test asked for, before the commit")

    def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Count it."""
        self._lives.lost += 1

    def shard_ended(
        self, shard_ended_input: ShardEndedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Journals do not end."""
        raise AssertionError

    def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Shards are not asked."""
        raise AssertionError


@asynccontextmanager
async def counting_member(
    cluster: Cluster,
    name: str,
    lives: Lives,
    *,
    checkpoint_every: int,
    open_engine: Callable[[], sa.Engine] | None = None,
) -> AsyncIterator[Service]:
    """A ready member; it ends as one that crashes does.

    Args:
        cluster: Where.
        name: Of the member.
        lives: Where its processors note what they see.
        checkpoint_every: Records between checkpoints.
        open_engine: Opens the database of all shards; None: each has a file.
    """
    engines: list[sa.Engine] = []

    def new_engine(shard: Shard) -> sa.Engine:
        address = f"sqlite:///{database_of(cluster.directory, shard.id)}"
        engines.append(open_engine() if open_engine else sa.create_engine(address))
        return engines[-1]

    application = RecordProcessorApplication(
        new_engine=new_engine,
        new_processor=lambda context: CountingProcessor(
            context, lives, checkpoint_every=checkpoint_every
        ),
        message_type=JsonType(),
    )
    service = Service(application, cluster.config(name))
    try:
        async with TaskGroup() as group:
            group.start_soon(service.run(), name=f"member {name}")
            await service.ready
            try:
                yield service
            finally:
                service.force_stop()
    finally:
        for engine in engines:
            engine.dispose()


def row_of(directory: Path, shard_id: str, query: str) -> tuple[object, ...] | None:
    """Return the first row of a query of the shard's database."""
    engine = sa.create_engine(f"sqlite:///{database_of(directory, shard_id)}")
    try:
        with engine.connect() as connection:
            row = connection.execute(sa.text(query)).first()
            return None if row is None else tuple(row)
    finally:
        engine.dispose()
