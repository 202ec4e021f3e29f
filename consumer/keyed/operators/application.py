"""A stream as an application: journals in, rows through the plan, output and rows set apart to journals or topics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broadsheet.consumer.application import MessageProducer, Shard
from broadsheet.consumer.direct import KafkaOutput
from broadsheet.consumer.errors import ApplicationError, StoreClosedError
from broadsheet.consumer.keyed.application import (
    INPUT_SHARE,
    TOPIC_TXN_ROWS_MAX,
    TXN_ROWS_MAX,
    JournalOutput,
    RowOutput,
    StateOptions,
    topics_among,
)
from broadsheet.consumer.keyed.follower import KeyedFollower
from broadsheet.consumer.keyed.grouping import rows_of
from broadsheet.consumer.keyed.operators.durations import Duration, duration_ms
from broadsheet.consumer.keyed.operators.plan import OperatorPlan
from broadsheet.consumer.keyed.operators.run import RunSettings, StreamRun
from broadsheet.consumer.keyed.queries import StoreQueries
from broadsheet.consumer.keyed.run import LATE_REASON
from broadsheet.consumer.keyed.store import KeyedStore, new_follower
from broadsheet.consumer.keyed.watermark import MAX_FUTURE_MS, WatermarkRules
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.keyed_queries import KeyedCounts
from broadsheet.consumer.stores.state_tables import (
    ROWS_PER_BATCH,
    TableScan,
    picked,
    require_table,
)
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.content.registry import content_of
from broadsheet.journals.message.batch import Envelope, MessageBatch
from broadsheet.journals.message.partitioning import BatchMapping, MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import Flags
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, value_of
from broadsheet.wire.shard_pb2 import Checkpoint

_JSON: Final = JsonType()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a stream's application."""

    message_type: MessageType = _JSON
    """Encoding of the output in journals: `JsonType()` or `ArrowType()`."""
    side: RowOutput | None = None
    """Output of rows that are late, have no event time, or one too far in the future, with `late_reason`; None: they
    are dropped and counted, those of the future handled."""
    state: StateOptions = field(default_factory=StateOptions)
    """The place and the bounds of state."""
    source: MessageProducer[Any] | None = None
    """Brings the messages, in place of journals, such as a `KafkaSource`."""
    source_type: Callable[[JournalSpec], MessageType] | None = None
    """Returns the encoding of a source's messages; None: by the journal's content type."""
    idle: Duration | None = None
    """A source without rows for so long does not hold the watermark; None: it does for ever."""
    max_future: Duration = MAX_FUTURE_MS
    """Event times further ahead of the clock do not move the watermark."""
    clock: Clock = field(default_factory=SystemClock)
    """Of transactions."""


class StreamStore(KeyedStore):
    """The store of a stream's shard, with the plan that runs over it."""

    def __init__(
        self, shard: Shard, local_state: LocalState | None, application: StreamApplication
    ) -> None:
        state = application.options.state
        super().__init__(shard, local_state, index=state.index, cache_bytes=state.cache_bytes)
        self._application = application
        self._run: StreamRun | None = None
        self._shard = shard

    @property
    def run(self) -> StreamRun:
        """The plan's transactions.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        if self._run is None:
            raise StoreClosedError(self._shard.fqn)
        return self._run

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Restore, and check the plan against what was restored."""
        checkpoint = super().restore_checkpoint(shard)
        try:
            self._run = self._application.new_run(shard, self)
        except Exception as error:
            raise ApplicationError(shard.id, "init", error) from error
        return checkpoint

    @property
    def queries(self) -> StoreQueries:
        """Answers about keys as of the last durable commit, on any thread.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        return self.run.queries

    def counts(self) -> KeyedCounts:
        """Return the state in numbers, in constant time; on any thread.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        run = self.run
        rows, state_bytes = self.size()
        return KeyedCounts(
            rows=rows,
            state_bytes=state_bytes,
            watermark_ms=run.watermark_ms,
            next_timer_ms=run.next_due_ms,
            late_rows=run.apart_rows,
        )

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the tables of what operators have open: windows, sessions, aggregates, lists."""
        return self.run.tables()

    @contextmanager
    def scan(self, table: str, columns: Sequence[str] = ()) -> Iterator[TableScan]:
        """Return what an operator has open as of the last durable commit, and its checkpoint."""
        run = self.run
        schema = picked(require_table(run.tables(), table), columns)
        with (
            self.view() as view,
            closing(_batches(run.open_rows(view, table, ROWS_PER_BATCH), schema)) as batches,
        ):
            yield TableScan(view.checkpoint, schema, batches)

    def open_copy(self) -> None:
        """Read a copy of what a standby played, for scans only."""
        super().open_copy()
        self._run = self._application.new_run(self._shard, self)

    def destroy(self) -> None:
        """Close the store."""
        self._run = None
        super().destroy()


def _batches(
    tables: Iterator[pa.Table], schema: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    for table in tables:
        yield from table.select(schema.names).to_batches()


class StreamApplication:
    """The application of a stream; `Stream.to` makes it."""

    def __init__(
        self,
        plan: OperatorPlan,
        to: str | MappedJournal | BatchMapping | KafkaOutput,
        options: StreamOptions,
    ) -> None:
        """Describe it.

        Args:
            plan: From the sources to the output.
            to: The journal of the output, of JSON lines if its name alone is given; or what chooses one for each row;
                or a topic of Kafka.
            options: Its options.

        Raises:
            ValidationError: a length of time is none.
        """
        self.plan = plan
        self.options = options
        self._output: RowOutput
        if isinstance(to, KafkaOutput):
            self._output = to
        else:
            journals = MappedJournal(to, NDJSON) if isinstance(to, str) else to
            self._output = JournalOutput(journals, options.message_type)
        self.record_outputs = topics_among(self._output, options.side)
        """Topics to which rows are sent straight."""
        self._rules = WatermarkRules(
            idle_ms=None if options.idle is None else duration_ms("idle", options.idle, least=1),
            max_future_ms=duration_ms("max_future", options.max_future, least=0),
        )
        if options.source is not None:
            self.read_messages = options.source.read_messages
            self.replay_range = options.source.replay_range
            self.read_through = options.source.read_through

    def explain(self) -> str:
        """Return the plan as text."""
        return self.plan.explain()

    def new_run(self, shard: Shard, store: KeyedStore) -> StreamRun:
        """Return the transactions of the plan over a restored store."""
        settings = RunSettings(
            journals=[source.journal for source in shard.spec.sources],
            rules=self._rules,
            has_side=self.options.side is not None,
            clock=self.options.clock,
        )
        return StreamRun(self.plan, store, settings)

    def why_indivisible(self) -> str:
        """Return that operators may have keys of their own each, so that no division suits all of them."""
        return "it is a stream of operators, each of which may have another key"

    # -- the shard's interface

    def new_store(self, shard: Shard) -> StreamStore:
        """Return the shard's store."""
        directory = self.options.state.directory
        return StreamStore(shard, None if directory is None else directory(shard), self)

    def new_follower(self, shard: Shard, directory: Path) -> KeyedFollower:
        """Return what keeps a standby's index current."""
        return new_follower(shard.fqn, self.options.state.index, directory)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return the encoding of a source's messages."""
        if self.options.source_type is not None:
            return self.options.source_type(journal_spec)
        labels = journal_spec.labels
        content = content_of(value_of(labels, CONTENT_TYPE), journal=journal_spec.name)
        return content.message_type(labels, None)

    def begin_txn(self, shard: Shard, store: StreamStore) -> None:
        """Freeze the transaction's times."""
        del shard
        store.run.begin()

    def consume_batch(
        self, shard: Shard, store: StreamStore, batch: MessageBatch, publisher: Publisher
    ) -> int | None:
        """Take rows in; leave them to the next transaction if this one has as many as it may have."""
        del shard
        run = store.run
        if run.rows and not self._has_room(run, len(batch)):
            return 0
        source = run.source_of(batch.journal)
        table = rows_of(batch, source.schema)
        clocks = batch.clocks[batch.flags != Flags.ACK_TXN]
        run.add(table, batch.journal, clocks, partial(self._set_apart, publisher))
        return None

    def consume_message(
        self, shard: Shard, store: StreamStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Refuse: messages come in batches."""
        raise NotImplementedError("messages come in batches")

    def finalize_txn(self, shard: Shard, store: StreamStore, publisher: Publisher) -> None:
        """Take the rows through the plan, and close what is due."""
        del shard
        store.run.finish(
            partial(self._output.publish_rows, publisher),
            partial(self._set_apart, publisher),
        )

    def finished_txn(self, shard: Shard, store: StreamStore, commit: object) -> None:
        """Nothing is left to do."""

    def next_txn_after(self, shard: Shard, store: StreamStore) -> float | None:
        """Return when windows or the watermark ask for a transaction."""
        del shard
        return store.run.next_txn_after()

    def _has_room(self, run: StreamRun, rows: int) -> bool:
        bytes_max = self.options.state.cache_bytes // INPUT_SHARE
        rows_max = TOPIC_TXN_ROWS_MAX if self.record_outputs else TXN_ROWS_MAX
        return run.rows + rows <= rows_max and run.input_bytes < bytes_max

    def _set_apart(self, publisher: Publisher, rows: pa.Table, reason: str) -> None:
        side = self.options.side
        if side is not None:
            reasons = pa.array(np.full(len(rows), reason), pa.string())
            table = rows.append_column(LATE_REASON, reasons)
            side.publish_rows(publisher, table)
