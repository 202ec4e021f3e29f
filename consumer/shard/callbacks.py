"""Calls of the application and the store on a shard's worker thread, one batch a call.

Each call drains the application's published messages, so that the event loop can append them. Errors are told apart:
the application's own errors become `ApplicationError`, those of the store and the framework are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from broadsheet.consumer.application import (
    Application,
    BatchConsumer,
    BeginFinisher,
    DeferToNextTxnError,
    MessageProducer,
    SelfWaking,
    Shard,
    Store,
)
from broadsheet.consumer.errors import ApplicationError
from broadsheet.consumer.shard.dead_letters import (
    DeadLetters,
    dead_letter_journal,
    publish_dead_letter,
)
from broadsheet.consumer.shard.record_outputs import RecordOutputs
from broadsheet.consumer.shard.supervision import MessagePosition
from broadsheet.consumer.shard.transaction_events import Finalize
from broadsheet.consumer.shard.transaction_traces import TransactionTraces
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import (
    Envelope,
    MessageBatch,
    unreadable_apart,
    why_unreadable,
)
from broadsheet.journals.message.checkpoint import build_checkpoint
from broadsheet.journals.message.clock_watch import clock_ahead, first_ahead, latest_clock
from broadsheet.journals.message.division import DividedJournals
from broadsheet.journals.message.publisher import PendingAppend, Publisher
from broadsheet.journals.message.rollback import Rollback
from broadsheet.journals.message.uuid import MessageClock
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.op_future import OpFuture, failed
from broadsheet.serving.tracing import tracing
from broadsheet.wire.shard_pb2 import Checkpoint


@dataclass(frozen=True, slots=True)
class Delivered:
    """Result of a delivery."""

    consumed: int
    appends: list[PendingAppend]
    rollbacks: list[Rollback]
    """To be kept before the appends: of journals that this producer publishes into for the first time."""
    record_bytes: int = 0
    """Of all records for other systems that the transaction has published."""


@dataclass(frozen=True, slots=True)
class StartedCommit:
    """A commit under way, and its transaction."""

    checkpoint: Checkpoint
    commit: OpFuture


@dataclass(frozen=True, slots=True)
class Finalized:
    """Result of finishing a transaction."""

    appends: list[PendingAppend]
    rollbacks: list[Rollback]
    """As in `Delivered`."""
    ack_intents: dict[str, bytes]
    last_acknowledgement: dict[str, bytes]
    """Of the intents' last, the acknowledgement alone."""
    started: StartedCommit | None = None
    """Its commit, if that could be started at once."""
    wake_at: float | None = None
    """When the next transaction begins though nothing is read, monotonic seconds; None: only with input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPolicy:
    """Treatment of input that the application must not get as it is."""

    dead_letters: DeadLetters
    """What to leave out and what to consume with care."""
    count_unreadable: Callable[[], None] = lambda: None
    """Called for each stretch of bytes that is left out because it is no message."""
    ahead_seconds_max: float | None = None
    """Messages whose clock is further ahead of wall time are refused; None: none are."""


class StampedPublisher:
    """The publisher of one attempt, which stamps messages with this process's time as of their transaction's begin."""

    def __init__(
        self,
        producer_id: int,
        clock: Clock,
        *,
        carried_bytes_max: int,
        clock_delta_seconds: float = 0.0,
        records: RecordOutputs | None = None,
        divided: DividedJournals | None = None,
    ) -> None:
        """Create the publisher.

        Args:
            producer_id: Of what this attempt publishes; fresh, 48 bits.
            clock: Tells wall time.
            carried_bytes_max: How much of a transaction's messages its acknowledgement intents may carry, bytes.
            clock_delta_seconds: Added to wall time in the UUIDs of published messages.
            records: Takes what is published into other systems; None: there are none.
            divided: Journals that are divided; None: none is.
        """
        self.records = records
        self.clock = clock
        self._delta_seconds = clock_delta_seconds
        self._message_clock = MessageClock()
        self.publisher = Publisher(
            self._message_clock,
            producer_id,
            carried_bytes_max=carried_bytes_max,
            records=records,
            divided=divided,
        )

    def begin(self) -> None:
        """Stamp what is published from now on with the present time."""
        self._message_clock.update(self.clock.wall_seconds() + self._delta_seconds)


class Callbacks:
    """Calls one application for one shard; every method runs on the worker thread, one at a time."""

    def __init__(
        self,
        shard: Shard,
        # The store's type is between the application and itself.
        application: Application[Any],
        store: Store,
        publishing: StampedPublisher,
        input_policy: InputPolicy,
    ) -> None:
        """Bind the callbacks.

        Args:
            shard: Given to each callback.
            application: Whose callbacks.
            store: Given to each callback.
            publishing: Publishes for this attempt.
            input_policy: What to leave out, and what to refuse.
        """
        self.failed_at: MessagePosition | None = None
        """What the application was consuming when it failed; None if it did not, or failed elsewhere."""
        self.deliveries = 0
        """How often it came further: by a message, or by a batch where it takes batches. Read on any thread."""
        self._shard = shard
        self._shard_id = shard.id
        self._application = application
        # Asked once, because `isinstance` of a protocol looks for each of its methods.
        self._begin_finisher = application if isinstance(application, BeginFinisher) else None
        self._self_waking = application if isinstance(application, SelfWaking) else None
        self._batch_consumer = application if isinstance(application, BatchConsumer) else None
        self._brings_messages = isinstance(application, MessageProducer)
        self._store = store
        self._publishing = publishing
        self._publisher = publishing.publisher
        self._records = publishing.records
        self._clock = publishing.clock
        self._dead_letters = input_policy.dead_letters
        self._count_unreadable = input_policy.count_unreadable
        self._ahead_seconds_max = input_policy.ahead_seconds_max
        traced = tracing()
        self.traces = None if traced is None else TransactionTraces(traced, shard.id)
        """Spans of the transactions; None if tracing is off."""
        self._begun = False
        """`finished_txn` is owed for the running transaction."""
        # Entered for each delivery and each transaction, so they are made once.
        self._consuming = _Named(shard.id, "consume_batch")
        self._finalizing = _Named(shard.id, "finalize_txn")
        self._starting_commit = _Named(shard.id, "start_commit")

    @property
    def asks_to_begin(self) -> bool:
        """Report whether `begin` runs application code; if not, it may be called on any thread."""
        return self._begin_finisher is not None

    @property
    def wakes_itself(self) -> bool:
        """Report whether the application has transactions that begin by time."""
        return self._self_waking is not None

    def begin(self) -> None:
        """Begin a transaction in the application, then stamp its messages with the time after that."""
        if self._begin_finisher is not None:
            with self._named("begin_txn"):
                self._begin_finisher.begin_txn(self._shard, self._store)
        self._begun = True
        self._publishing.begin()
        if self.traces is not None:
            self.traces.begin()

    def deliver(self, batch: MessageBatch, first: bool) -> Delivered:
        """Let the application consume `batch`; at least one message if it is the `first` of its transaction."""
        if self.traces is None:
            return self._deliver(batch, first)
        with self.traces.consuming(batch):
            return self._deliver(batch, first)

    def _deliver(self, batch: MessageBatch, first: bool) -> Delivered:
        consumed = 0
        for part, poison in self._parts(batch):
            if poison is None:
                taken = self._consume_if_timely(part, first=first and not consumed)
            else:
                taken = self._leave_out(part, poison)
            consumed += taken
            if taken < len(part):
                break
        if first and consumed == 0:
            raise self._error(
                "consume_message", ValueError("deferred the first message of a transaction")
            )
        record_bytes = 0 if self._records is None else self._records.queued_bytes
        if not self._publisher.has_published:
            return Delivered(consumed, [], [], record_bytes)
        return Delivered(
            consumed,
            self._publisher.take_appends(),
            self._publisher.take_rollbacks(),
            record_bytes,
        )

    def finalize(self) -> Finalized:
        """Finish the application's transaction, then build the acknowledgements of its published messages."""
        if self.traces is None:
            self._finalize()
        else:
            with self.traces.newest():
                self._finalize()
        wake_at = self.wake_at()
        records = {} if self._records is None else self._records.take_intents()
        if not self._publisher.has_published:
            return Finalized([], [], records, last_acknowledgement={}, wake_at=wake_at)
        rollbacks = self._publisher.take_rollbacks()
        intents = self._publisher.build_ack_intents()
        return Finalized(
            self._publisher.take_appends(),
            rollbacks,
            ack_intents={intent.journal: intent.content for intent in intents} | records,
            last_acknowledgement={last.journal: last.acknowledgement for last in intents[-1:]},
            wake_at=wake_at,
        )

    def _finalize(self) -> None:
        with self._finalizing:
            self._application.finalize_txn(self._shard, self._store, self._publisher)

    def wake_at(self) -> float | None:
        """Return when the next transaction begins though nothing is read, monotonic seconds; None: only with input."""
        if self._self_waking is None:
            return None
        with self._named("next_txn_after"):
            seconds = self._self_waking.next_txn_after(self._shard, self._store)
        return None if seconds is None else self._clock.monotonic_seconds() + max(0.0, seconds)

    def finalize_and_commit(
        self,
        order: Finalize,
        wait_for: Collection[Future[object]],
        *,
        is_wanted: Callable[[], bool],
    ) -> Finalized:
        """Finalize as `finalize` does, then start the commit unless something must be appended before it.

        Args:
            order: Of the transaction machine.
            wait_for: What must succeed before the commit does.
            is_wanted: Whether the transaction may still be committed: the shard may have been stopped meanwhile.
        """
        finalized = self.finalize()
        if finalized.appends or finalized.rollbacks or not is_wanted():
            return finalized
        checkpoint = build_checkpoint(
            order.sources, finalized.ack_intents, order.prior_acknowledgement
        )
        started = StartedCommit(checkpoint, self.start_commit(checkpoint, wait_for))
        return replace(finalized, started=started)

    def start_commit(
        self, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Start the store's commit, and inform the application."""
        try:
            with self._starting_commit:
                commit = self._store.start_commit(self._shard, checkpoint, wait_for)
        except Exception as error:
            self.finish(failed(error))
            raise
        self.finish(commit)
        return commit

    def finish(self, commit: OpFuture) -> None:
        """Inform the application that its transaction is committing, or has failed."""
        self._begun = False
        if self._begin_finisher is not None:
            with self._named("finished_txn"):
                self._begin_finisher.finished_txn(self._shard, self._store, commit)

    def abandon(self, cause: BaseException) -> None:
        """Inform the application that its unfinished transaction, if any, will not commit. Idempotent."""
        if self.traces is not None:
            self.traces.abandon(cause)
        if self._begun:
            self.finish(failed(cause))

    def _parts(self, batch: MessageBatch) -> Iterator[tuple[MessageBatch, str | None]]:
        """Yield the parts of a batch that the application consumes together; skipped parts come with the reason."""
        letters = self._dead_letters
        if letters.keeps_unreadable or self._brings_messages:
            yield from self._readable_parts(batch)
        elif letters.poison or letters.suspect is not None:
            yield from letters.parts(batch)
        else:
            yield batch, None  # The usual case.

    def _readable_parts(self, batch: MessageBatch) -> Iterator[tuple[MessageBatch, str | None]]:
        for part, unreadable in unreadable_apart(batch):
            if not unreadable:
                yield from self._dead_letters.parts(part)
                continue
            why = why_unreadable(part.payloads[0], part.message_type)
            # The application brought it, or the journal was taken from the spec since the attempt began.
            if not dead_letter_journal(self._shard.spec):
                self.failed_at = _place_of(part)
                raise FramingError(
                    part.journal, offset=int(part.begins[0]), end=int(part.ends[0]), detail=why
                )
            self._count_unreadable()
            yield part, why

    def _leave_out(self, message: MessageBatch, cause: str) -> int:
        self.deliveries += 1
        publish_dead_letter(self._publisher, self._shard.spec, message, cause, self._clock)
        return len(message)

    def _consume_if_timely(self, batch: MessageBatch, *, first: bool) -> int:
        """Let the application consume a part up to the first message that is refused.

        A message is refused only as the first of a transaction, so that everything before it is committed first.
        """
        if self._ahead_seconds_max is None:
            return self._consume(batch)
        wall_seconds = self._clock.wall_seconds()
        latest = latest_clock(wall_seconds, ahead_seconds=self._ahead_seconds_max)
        stop = first_ahead(batch, latest)
        if stop is None:
            return self._consume(batch)
        if stop > 0:
            return self._consume(batch.span(0, stop))
        if not first:
            return 0
        self.failed_at = _place_of(batch.span(0, 1))
        raise clock_ahead(batch, 0, wall_seconds=wall_seconds).error

    def _consume(self, batch: MessageBatch) -> int:
        """Let the application consume a part."""
        if self._batch_consumer is None:
            return self._consume_messages(batch)
        try:
            return self._consume_batch(self._batch_consumer, batch)
        except BaseException:
            self.failed_at = _place_of(batch)
            raise

    def _consume_batch(self, application: BatchConsumer[Any], batch: MessageBatch) -> int:
        with self._consuming:
            consumed = application.consume_batch(self._shard, self._store, batch, self._publisher)
        self.deliveries += 1
        if consumed is None:
            return len(batch)
        if not 0 <= consumed <= len(batch):
            problem = f"returned {consumed}, expected 0 to {len(batch)} consumed messages"
            raise self._error("consume_batch", ValueError(problem))
        return consumed

    def _consume_messages(self, batch: MessageBatch) -> int:
        consume, envelopes = self._application.consume_message, batch.envelopes()
        if self._records is not None:
            envelopes = _until_full(envelopes, self._records)
        consumed = 0
        try:
            with self._named("consume_message"):
                for envelope in envelopes:
                    try:
                        consume(self._shard, self._store, envelope, self._publisher)
                    except DeferToNextTxnError:
                        return consumed
                    consumed += 1
                    self.deliveries += 1
        except BaseException:
            self.failed_at = _place_of(batch.span(consumed, consumed + 1))
            raise
        return consumed

    def _named(self, operation: str) -> _Named:
        return _Named(self._shard_id, operation)

    def _error(self, operation: str, error: BaseException) -> ApplicationError:
        return ApplicationError(self._shard_id, operation, error)


class _Named:
    """Block of a callback: an error that leaves it names the shard and the operation. May be entered again."""

    __slots__ = ("_operation", "_shard_id")

    def __init__(self, shard_id: str, operation: str) -> None:
        self._shard_id = shard_id
        self._operation = operation

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Any other, e.g. of sys.exit(): only this shard fails.
        if error is not None and not isinstance(error, ServiceError):
            raise ApplicationError(self._shard_id, self._operation, error) from error


def _until_full(envelopes: Iterator[Envelope], records: RecordOutputs) -> Iterator[Envelope]:
    """Yield messages until the transaction's records are many: the commit holds them, so the next one takes the rest.

    In an iterator of its own, so that applications without such records pay nothing for each message.
    """
    for envelope in envelopes:
        yield envelope
        if records.is_full:
            return


def _place_of(batch: MessageBatch) -> MessagePosition:
    begin, end = int(batch.begins[0]), int(batch.ends[-1])
    return MessagePosition(batch.journal, begin, end, messages=len(batch))
