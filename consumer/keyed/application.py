"""Keyed state as an application: sources in, rows by key to a processor, output and late rows to journals or topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from broadsheet.consumer.application import MessageProducer, Shard
from broadsheet.consumer.direct import KafkaOutput
from broadsheet.consumer.errors import ApplicationError, StoreClosedError
from broadsheet.consumer.keyed.follower import KeyedFollower
from broadsheet.consumer.keyed.grouping import rows_of
from broadsheet.consumer.keyed.imports.loading import (
    StateImport,
    begun_with_import,
    check_import,
    require_complete,
)
from broadsheet.consumer.keyed.imports.manifest import ImportManifest
from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.output_rows import output_table
from broadsheet.consumer.keyed.processor import KeyedProcessor
from broadsheet.consumer.keyed.queries import StoreQueries
from broadsheet.consumer.keyed.recording import SNAPSHOT_BYTES_MIN
from broadsheet.consumer.keyed.row_types import Declared, StateRowType
from broadsheet.consumer.keyed.run import KeyedRun, KeyedSettings
from broadsheet.consumer.keyed.state_table import STATE_TABLE
from broadsheet.consumer.keyed.store import CACHE_BYTES, IndexKind, KeyedStore, new_follower
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.consumer.keyed.watermark import MAX_FUTURE_MS, WatermarkRules
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.commit_thread import CommitRunner
from broadsheet.consumer.stores.keyed_queries import KeyedCounts
from broadsheet.consumer.stores.state_tables import TableScan, picked, require_table
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.content.registry import content_of
from broadsheet.journals.message.batch import Envelope, MessageBatch
from broadsheet.journals.message.partitioning import BatchMapping, MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.key_range import key_range_of
from broadsheet.wire.labels import CONTENT_TYPE, value_of
from broadsheet.wire.shard_pb2 import Checkpoint

TXN_ROWS_MAX = 65_536
"""Rows of a transaction: their columns, and what handlers make of them, are in memory at once."""
TOPIC_TXN_ROWS_MAX = 4_096
"""As many where rows go to topics: the commit holds the records, which are made at its end."""
INPUT_SHARE = 4
"""Part of the cache, one divided by this, that a transaction's input may take."""


@dataclass(frozen=True, slots=True)
class JournalOutput:
    """A destination of rows."""

    journals: MappedJournal | BatchMapping
    """The journal, or what chooses one for each row: `KeyColumn`."""
    message_type: MessageType
    """Encoding: `JsonType()` or `ArrowType()`."""
    schema: Declared = ""
    """Of the rows; of the side journal it is the input's, and a text `late_reason`."""

    def publish_rows(self, publisher: Publisher, rows: pa.Table) -> None:
        """Publish rows."""
        publisher.publish_batch(self.journals, rows, self.message_type)


RowOutput: TypeAlias = JournalOutput | KafkaOutput
"""A destination of rows: journals, or a topic of Kafka."""


def topics_among(*outputs: RowOutput | None) -> Sequence[KafkaOutput]:
    """Return those outputs that are topics."""
    return [each for each in outputs if isinstance(each, KafkaOutput)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """The store in which an application keeps its state."""

    directory: Callable[[Shard], LocalState] | None = None
    """Returns where the files of a shard without a recovery log are."""
    index: IndexKind = "rocksdb"
    """Where rows are looked up: in a local RocksDB, or in memory, where all of them must fit."""
    cache_bytes: int = CACHE_BYTES
    """Rows that are kept in memory beside those that a transaction changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    """The event time of rows, and when they are late."""

    column: str
    """Of the input: a timestamp, or an integer of epoch milliseconds. A row whose time is null is never late."""
    delay_ms: int = 0
    """The watermark is so far behind the latest event time."""
    idle_ms: int | None = None
    """A source without rows for so long does not hold the watermark; None: it does for ever."""
    max_future_ms: int = MAX_FUTURE_MS
    """Event times further ahead of the clock do not move the watermark."""
    late: Literal["previous", "immediate"] = "previous"
    """Judge rows by the watermark of the transaction before, as Spark does, or by the transaction's own."""

    @property
    def rules(self) -> WatermarkRules:
        """The rules of the watermark."""
        return WatermarkRules(
            delay_ms=self.delay_ms, idle_ms=self.idle_ms, max_future_ms=self.max_future_ms
        )


class KeyedShardStore(KeyedStore):
    """The store of a keyed shard, with the processor that runs over it."""

    def __init__(
        self,
        shard: Shard,
        local_state: LocalState | None,
        application: KeyedApplication,
        *,
        snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
        commits: CommitRunner | None = None,
    ) -> None:
        options = application.state
        super().__init__(
            shard,
            local_state,
            index=options.index,
            cache_bytes=options.cache_bytes,
            snapshot_bytes_min=snapshot_bytes_min,
            commits=commits,
        )
        self._application = application
        self._run: KeyedRun | None = None
        self._shard = shard

    @property
    def run(self) -> KeyedRun:
        """The processor's transactions.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        if self._run is None:
            raise StoreClosedError(self._shard.fqn)
        return self._run

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Restore, with the state of an import if there is one to load, and initialise a processor over it."""
        checkpoint = super().restore_checkpoint(shard)
        self._close_run()
        application = self._application
        if begun_with_import(self, shard, checkpoint, application.settings, application.imported):
            checkpoint = super().restore_checkpoint(shard)
        try:
            self._run = self._application.new_run(shard, self)
        except Exception as error:
            raise ApplicationError(shard.id, "init", error) from error
        return checkpoint

    def state(self, name: str, *key: Any) -> Any:
        """Return a variable of a key as of the last durable commit: a value, a list, a dict, or None. On any thread.

        Args:
            name: Of the variable.
            key: Its fields.

        Raises:
            ValidationError: there is no such variable, or the key is of another type.
            StoreClosedError: the store is not restored, or is destroyed.
        """
        return self.run.committed(name, key)

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
            late_rows=run.late_rows,
            failed_calls=run.failed_calls,
        )

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the table of keys: its fields, a column for each variable, and the times of its timers."""
        return {STATE_TABLE: self.run.state_table.schema}

    @contextmanager
    def scan(self, table: str, columns: Sequence[str] = ()) -> Iterator[TableScan]:
        """Return the state of all keys as of the last durable commit, and its checkpoint; expired state is left out."""
        state = self.run.state_table
        schema = picked(require_table(self.tables(), table), columns)
        with self.view() as view:
            now_ms = self._application.now_ms()
            with closing(state.batches(view, schema, now_ms=now_ms)) as batches:
                yield TableScan(view.checkpoint, schema, batches)

    def open_copy(self) -> None:
        """Read a copy of what a standby played, for scans only; a processor is made to learn its variables."""
        super().open_copy()
        require_complete(self, self._shard)
        self._run = self._application.new_run(self._shard, self)

    def destroy(self) -> None:
        """Close the processor and the store."""
        try:
            self._close_run()
        finally:
            super().destroy()

    def _close_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()


class KeyedApplication:
    """An application of a keyed processor.

    KeyedApplication(
        Counter,
        key="user string",
        rows="user string, amount double",
        output=JournalOutput(MappedJournal("totals", NDJSON), JsonType(), "user string, count long"),
    )
    """

    def __init__(
        self,
        processor: Callable[[], KeyedProcessor],
        *,
        key: Declared,
        rows: Declared,
        output: RowOutput | None = None,
        time: Literal["none", "processing", "event"] = "none",
        event_time: EventTime | None = None,
        side: RowOutput | None = None,
        on_error: Literal["fail", "side_journal"] = "fail",
        state: StateOptions | None = None,
        imported: StateImport | None = None,
        source: MessageProducer[Any] | None = None,
        message_type: Callable[[JournalSpec], MessageType] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Describe it.

        Args:
            processor: Makes a processor, one for each life of a shard; its class will do.
            key: The fields to group by, with their types; columns of `rows`.
            rows: The columns of the input; a field that a message lacks is null.
            output: Where the rows go that handlers return: a `JournalOutput`, or a `KafkaOutput`; None: handlers return
                none.
            time: The kind of time of timers.
            event_time: The event time of rows; needed for timers in event time.
            side: Where rows go that are late, or too far in the future; None: late ones are dropped, and counted.
            on_error: What becomes of a call of the processor that raises. "fail": the shard fails, and restarts from
                its last commit. "side_journal": its changes and its output are dropped, its rows go to `side` with the
                error, and the transaction goes on.
            state: Where state is kept.
            imported: State of another system that a shard begins with.
            source: Brings the messages, in place of journals, such as a `KafkaSource`. Each of its partitions
                counts for the watermark once it had a row.
            message_type: Returns the encoding of a source's messages; None: by the journal's content type.
            clock: For the batch time; None: the machine's.

        Raises:
            ValidationError: a schema is none, or parts do not fit each other.
        """
        self.state = state or StateOptions()
        self.imported = imported
        """State that shards begin with."""
        self._processor = processor
        self._clock = clock or SystemClock()
        self._message_type = message_type
        if source is not None:
            self.read_messages = source.read_messages
            self.replay_range = source.replay_range
            self.read_through = source.read_through
        self._output = output
        self._side = side
        self.record_outputs = topics_among(output, side)
        """Topics to which rows are sent straight."""
        input_schema = _named(StateRowType, "rows", rows).schema
        mode = TimeMode(time)
        _check_key(_named(StateRowType, "key", key).schema, input_schema)
        if mode is TimeMode.EVENT and event_time is None:
            raise ValidationError("event_time", "expected one, because time is 'event'")
        if on_error == "side_journal" and side is None:
            raise ValidationError("side", "expected one, because on_error is 'side_journal'")
        if event_time is not None:
            _check_event_time(event_time.column, input_schema)
        self._output_type = (
            None if output is None else _named(StateRowType, "output.schema", output.schema)
        )
        self.settings = KeyedSettings(
            input_schema=input_schema,
            key=_named(KeyCodec, "key", _named(StateRowType, "key", key).schema),
            mode=mode,
            event_time="" if event_time is None else event_time.column,
            rules=WatermarkRules() if event_time is None else event_time.rules,
            late="previous" if event_time is None else event_time.late,
            has_side_journal=side is not None,
            sets_failed_apart=on_error == "side_journal",
        )
        """The parts that transactions have in common."""

    def new_run(self, shard: Shard, store: KeyedStore) -> KeyedRun:
        """Return the transactions of a new processor over a restored store."""
        journals = [source.journal for source in shard.spec.sources]
        return KeyedRun(
            self._processor(),
            self.settings,
            store,
            journals=journals,
            clock=self._clock,
            initial=self.initial_rows(shard),
            owned=lambda: key_range_of(shard.spec.labels),
        )

    def initial_rows(self, shard: Shard) -> pa.Table | None:
        """Return the rows that a shard's state begins with, with the key's columns among theirs; None: there are none.

        An application that has some overrides this; `KeyedProcessor.handle_initial` gets them.
        """
        del shard
        return None

    def output_table(self, rows: Sequence[Any]) -> pa.Table:
        """Return as columns what handlers returned, at least one row.

        Raises:
            ValidationError: the application has no output, or a row does not fit its schema.
        """
        if self._output_type is None:
            raise ValidationError(
                "output",
                f"expected none, because the application has no output; got {rows[0]!r:.80}",
            )
        return output_table(rows, self._output_type)

    def why_indivisible(self) -> str:
        """Return nothing: shards may divide the keys among them."""
        return ""

    def check_import(self, manifest: ImportManifest) -> None:
        """Refuse an import that shards of this application cannot begin with.

        Raises:
            ValidationError: they cannot; the error names variable and field.
        """
        check_import(manifest, self.settings.key, self.settings.mode, self._processor())

    def now_ms(self) -> int:
        """Return the clock, epoch milliseconds."""
        return int(self._clock.wall_seconds() * 1000)

    # -- the shard's interface

    def new_store(self, shard: Shard) -> KeyedShardStore:
        """Return the shard's store."""
        directory = self.state.directory
        return KeyedShardStore(shard, None if directory is None else directory(shard), self)

    def new_follower(self, shard: Shard, directory: Path) -> KeyedFollower:
        """Return what keeps a standby's index current."""
        return new_follower(shard.fqn, self.state.index, directory)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return the encoding of a source's messages."""
        if self._message_type is not None:
            return self._message_type(journal_spec)
        labels = journal_spec.labels
        content = content_of(value_of(labels, CONTENT_TYPE), journal=journal_spec.name)
        return content.message_type(labels, None)

    def begin_txn(self, shard: Shard, store: KeyedShardStore) -> None:
        """Freeze the transaction's times."""
        del shard
        store.run.begin()

    def consume_batch(
        self, shard: Shard, store: KeyedShardStore, batch: MessageBatch, publisher: Publisher
    ) -> int | None:
        """Take rows in; leave them to the next transaction if this one has as many as it may have."""
        del shard
        run = store.run
        if run.rows and not self._has_room(run, batch):
            return 0
        table = rows_of(batch, self.settings.input_schema)
        run.add(table, batch.journal, partial(self._set_apart, publisher))
        return None

    def consume_message(
        self, shard: Shard, store: KeyedShardStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Refuse: messages come in batches."""
        raise NotImplementedError("messages come in batches")

    def finalize_txn(self, shard: Shard, store: KeyedShardStore, publisher: Publisher) -> None:
        """Handle the rows and what is due."""
        del shard
        store.run.finish(partial(self._emit, publisher), partial(self._set_apart, publisher))

    def finished_txn(self, shard: Shard, store: KeyedShardStore, commit: object) -> None:
        """Nothing is left to do."""

    def next_txn_after(self, shard: Shard, store: KeyedShardStore) -> float | None:
        """Return when timers or the watermark ask for a transaction."""
        del shard
        return store.run.next_txn_after()

    # -- input and output

    def _has_room(self, run: KeyedRun, batch: MessageBatch) -> bool:
        bytes_max = self.state.cache_bytes // INPUT_SHARE
        rows_max = TOPIC_TXN_ROWS_MAX if self.record_outputs else TXN_ROWS_MAX
        return run.rows + len(batch) <= rows_max and run.input_bytes < bytes_max

    def _emit(self, publisher: Publisher, rows: Sequence[Any]) -> None:
        table = self.output_table(rows)
        if self._output is not None and len(table):
            self._output.publish_rows(publisher, table)

    def _set_apart(self, publisher: Publisher, rows: pa.Table) -> None:
        if self._side is not None:
            self._side.publish_rows(publisher, rows)


def _named(make: Callable[[Any], Any], field: str, declared: Any) -> Any:
    try:
        return make(declared)
    except ValidationError as error:
        raise error.under(field) from error


def _check_key(key: pa.Schema, rows: pa.Schema) -> None:
    for field in key:
        if field.name not in rows.names or rows.field(field.name).type != field.type:
            raise ValidationError(
                f"key.{field.name}",
                f"expected a column of the rows, of type {field.type}, among {rows.names}",
            )


def _check_event_time(column: str, rows: pa.Schema) -> None:
    type_ = rows.field(column).type if column in rows.names else None
    if type_ is None or not (pa.types.is_timestamp(type_) or pa.types.is_integer(type_)):
        raise ValidationError(
            "event_time.column",
            f"expected a timestamp or an integer among the rows' columns, got {column!r} ({type_})",
        )
