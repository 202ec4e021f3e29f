"""Pure state machine of transactions: begin, take input, close, commit, acknowledge.

    events ──► TransactionMachine ──► instructions       transaction N+1:  begin ─ deliver … ─ finalize ─ start commit
                                                         transaction N:    ── committing ── acknowledging ──┘

Transaction N+1 consumes while N commits, but it closes only after N is durable *and* N's acknowledgements are written;
so at most two transactions exist and commits never overlap. A transaction closes

* not before it consumed something or has a note to commit, nor before its minimum duration,
* not while a producer's messages were read but not yet acknowledged (unless told not to wait),
* then at the first instant at which no input is ready (the *idle rule*), the first one soon even if some is, and a
  busy one once it has been open for a few times as long as the one before it took to commit: under load some input is
  always ready, and the maximum duration is long for a message. If more waits than may be read ahead,
  it does go on: then latency is lost anyway, and fewer commits catch up sooner,
* once its records for other systems, which its commit holds, reach a bound,
* at the latest when its maximum duration is over: input is left to the next transaction, even in the middle of a
  committed sequence, and the checkpoint says where to resume.

Acknowledgements are not delivered to the application; they count as consumed, because they move the offset. A *note*, a
batch of no messages, states only where a source resumes: it is committed by itself, because a source may be silent
until the shard stops, and its successor must not settle the position a second time. Nor does a transaction that the
application asked to begin at a time (`wake_at`) need any message: it is committed for what the application changes.

Three things say where the machine is. The *phase* is the callback under way; orders leave CONSUMING, answers return to
it:

                 ┌─ BeginTxn ─► BEGINNING ─── TxnBegan ──────────────────────────────┐
    CONSUMING ───┼─ Deliver ──► DELIVERING ── BatchDelivered ────────────────────────┼─► CONSUMING
                 └─ Finalize ─► FINALIZING ── TxnFinalized ─► COMMITTING ─ CommitStarted ─┘
    CONSUMING ── Finish ──► ENDED          any phase ── Fail ──► ENDED

The *intake* is what may still be read. It never opens again:

        ┌───────── any other event ─────────┐
        ▼                                   │
      OPEN ─────────── InputIdle ────────► IDLE
        └─────────┬───── SourcesClosed ─────┘
                  ▼
               CLOSED ── StopRequested ──► STOPPED ◄── StopRequested ── OPEN, IDLE

A *hold* is asked for while another shard takes over a part of the keys. The running transaction closes as if its
maximum duration were over; then nothing begins, and `Held` is ordered, until the hold is released:

    NONE ── HoldRequested ─► CLOSING ── all is durable and acknowledged: Held ─► HELD ── HoldReleased ─► NONE

The *prior* transaction is none, committing (until `CommitResolved`) or acknowledging (until the last `AckResolved`).

Source: gazette/core consumer/transaction.go (the rules; here batch-wise, with callbacks that answer by events). That
the first one and busy ones close soon is ours: behind a fail-over, and under load, output is waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, assert_never

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import (
    Activity,
    Event,
    InputDemand,
    Instruction,
    RecordTxn,
    TxnLimits,
    TxnTimings,
)
from broadsheet.journals.errors import ReplayError
from broadsheet.journals.message.batch import MessageBatch, payload_sizes
from broadsheet.journals.message.checkpoint import SourceOrigins, build_checkpoint, read_through_of
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import Flags
from broadsheet.runtime.story import new_story, noting, story_text
from broadsheet.wire.shard_pb2 import Checkpoint

# The two transactions that may exist at a time: one consumes, the one before it commits and
# acknowledges.
FIRST_TXN_SECONDS: Final = 0.02
"""How long the first transaction from a restored checkpoint goes on taking input only because some is ready."""
BUSY_TXN_SECONDS_LEAST: Final = 0.02
"""How long any other one does, at least."""
COMMITS_PER_BUSY_TXN: Final = 4
"""How many times as long as the commit before it a busy transaction does, so that commits take a fifth of the time at
most: a shard that sums a thousand keys in SQLite needs some 30 ms for one."""


RUN_MESSAGES_MAX: Final = 16_384
"""Messages of a run: an application that takes runs needs a few milliseconds for so many, and as long for a new table
as for some thousand rows of it."""

# How much of a committed sequence is handed to the application at once.


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    """Bounds on what the application is handed at once.

    The timer and the commit of the transaction before are noticed between deliveries, so these bound how late.
    """

    messages_max: int = 4096
    """Of applications that take messages in runs, `RUN_MESSAGES_MAX`."""
    bytes_max: int = 4 << 20
    """Payload bytes; a single larger message is still delivered."""


def leading_acks(batch: MessageBatch) -> int:
    """Return how many acknowledgements are at the front of a batch."""
    if batch.flags[0] != Flags.ACK_TXN:
        return 0  # The usual case.
    others = (batch.flags != Flags.ACK_TXN).nonzero()[0]
    return int(others[0]) if len(others) else len(batch)


def before_ack(batch: MessageBatch) -> MessageBatch:
    """Return the messages ahead of the first acknowledgement, which ends an emission and so is the last, if any."""
    stop = len(batch)
    while stop > 0 and batch.flags[stop - 1] == Flags.ACK_TXN:
        stop -= 1
    return batch if stop == len(batch) else batch.span(0, stop)


def bounded(batch: MessageBatch, bytes_max: int) -> MessageBatch:
    """Return as many messages as fit in `bytes_max`, one at least."""
    # Frames are no smaller than their payloads, so where the whole range fits nothing need be added up.
    if batch.ends[-1] - batch.begins[0] <= bytes_max:
        return batch
    totals = payload_sizes(batch).cumsum()
    fitting = max(1, int(totals.searchsorted(bytes_max, side="right")))
    return batch if fitting == len(batch) else batch.span(0, fitting)


@dataclass(slots=True)
class RunningTxn:
    """The transaction that consumes. Times are monotonic seconds."""

    limits: TxnLimits
    prior_prepared: float
    """When the transaction before it had started its commit."""
    began: float | None = None
    is_first: bool = False
    """The machine's first: the shard had no primary before it, and somebody waits for what comes of its input."""
    accepts_input: bool = True
    """False once its maximum duration is over, the application deferred, or the shard stops."""
    messages: int = 0
    message_bytes: int = 0
    has_note: bool = False
    """A source's position is to be committed, perhaps without any message."""
    is_woken: bool = False
    """Time began it, so it is committed, perhaps without any message."""
    stalled: float | None = None
    finalizing: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Report whether there is nothing to commit."""
        return self.messages == 0 and not self.has_note and not self.is_woken

    def min_elapsed(self, now: float) -> bool:
        """Return whether it has been open for its minimum duration."""
        return self.began is not None and now >= self.began + self.limits.min_seconds

    def max_elapsed(self, now: float) -> bool:
        """Return whether it has been open for its maximum duration."""
        return self.began is not None and now >= self.began + self.limits.max_seconds

    def has_been_open_for(self, seconds: float, now: float) -> bool:
        """Return whether it began so long ago."""
        return self.began is not None and now >= self.began + seconds

    def next_decision(self, now: float) -> float | None:
        """Return when time alone will next change what it may do; None if never."""
        if self.began is None:
            return None
        if not self.min_elapsed(now):
            return self.began + self.limits.min_seconds
        return self.began + self.limits.max_seconds if self.accepts_input else None


@dataclass(slots=True)
class PriorTxn:
    """The transaction that commits and acknowledges. Times are monotonic seconds."""

    read_through: dict[str, int]
    """What its completion makes visible, bytes by journal."""
    ack_intents: Mapping[str, bytes]
    closed: RunningTxn | None = None
    """The transaction as it was when it closed; None for the one that a restored checkpoint stands for."""
    prepared: float = 0.0
    committed: float | None = None
    publish_at: dict[str, int] = field(default_factory=dict)
    append_error: BaseException | None = None
    """Held until the commit's own outcome is known: a failed commit fails the appends that wait for it."""
    unacknowledged: set[str] = field(init=False)
    checkpointed: Mapping[str, int] = field(init=False)
    """What its checkpoint has read, bytes by journal."""

    def __post_init__(self) -> None:
        self.unacknowledged = set(self.ack_intents)
        self.checkpointed = dict(self.read_through)

    def extend(self, journal: str, through: int) -> None:
        """Let its completion tell that `journal` was read further, though its checkpoint does not say so."""
        self.read_through[journal] = max(self.read_through.get(journal, 0), through)

    def record_or_none(self, now: float) -> RecordTxn | None:
        """Return what to count of it, now that it is complete."""
        closed = self.closed
        if closed is None:
            return None
        assert closed.began is not None, "it consumed something"
        assert self.committed is not None, "it is complete"
        timings = TxnTimings(
            prior_prepared=closed.prior_prepared,
            began=closed.began,
            stalled=closed.finalizing if closed.stalled is None else closed.stalled,
            finalizing=closed.finalizing,
            prepared=self.prepared,
            committed=self.committed,
            acknowledged=now,
        )
        return RecordTxn(closed.messages, closed.message_bytes, timings)


class _Phase(Enum):
    """The callback that is under way, or none."""

    CONSUMING = "consuming"
    BEGINNING = "beginning"
    DELIVERING = "delivering"
    FINALIZING = "finalizing"
    COMMITTING = "committing"
    """`start_commit` is being called; the commit itself goes on during the next transaction."""
    ENDED = "ended"


class _Intake(Enum):
    """The input that may still be read from the sources."""

    OPEN = "open"
    IDLE = "idle"
    """Nothing was ready at the last event."""
    CLOSED = "closed"
    """The sources ended: what was read is consumed, and the last transaction keeps its minimum duration."""
    STOPPED = "stopped"
    """A stop was asked for: nothing more is taken, and the last transaction does not wait for its minimum duration."""


class _Hold(Enum):
    """True if transactions may begin."""

    NONE = "none"
    CLOSING = "closing"
    """The running one is the last before the hold."""
    HELD = "held"


_STORY_FIELDS: Final = ("phase", "intake", "demand", "prior", "replay", "messages", "hold")
# A table, because a `match` of so many kinds takes as long as the machine takes for a small event.
_OUTLINES: Final[Mapping[type, Callable[[Any], tuple[object, ...]]]] = {
    tx.BatchRead: lambda event: (event.batch.journal, len(event.batch)),
    tx.ReplayRead: lambda event: (event.batch.journal, len(event.batch)),
    tx.BatchDelivered: lambda event: (event.consumed,),
    tx.TxnFinalized: lambda event: (len(event.ack_intents),),
    tx.CommitResolved: lambda event: _outcome(event.error, "durable"),
    tx.AckResolved: lambda event: (event.journal, *_outcome(event.error, event.committed_end)),
    tx.SourceIdentified: lambda event: (event.journal,),
    tx.SourceFailed: lambda event: _outcome(event.error, None),
    tx.CallbackFailed: lambda event: _outcome(event.error, None),
    tx.AppendFailed: lambda event: _outcome(event.error, None),
}


def _outline(event: Event) -> tuple[object, ...]:
    """Return what is worth telling of an event later: names and numbers, no messages, and no error with its frames."""
    of_its_kind = _OUTLINES.get(type(event))
    return () if of_its_kind is None else of_its_kind(event)


def _outcome(error: BaseException | None, success: object) -> tuple[object, ...]:
    return (success if error is None else type(error).__name__,)


class TransactionMachine:
    """Runs transactions of one sequencer, from one restored checkpoint on."""

    def __init__(
        self,
        sequencer: Sequencer,
        recovered: Checkpoint,
        *,
        limits: TxnLimits,
        delivery: DeliveryLimits | None = None,
        wake_at: float | None = None,
        holds: bool = False,
    ) -> None:
        """Create a machine; call `start` once.

        Args:
            sequencer: Made from the same checkpoint; the machine's own from now on.
            recovered: The checkpoint that the store restored.
            limits: When transactions close.
            delivery: How much is handed to the application at once.
            wake_at: When the first transaction begins though nothing is read, monotonic seconds; None: only with input.
            holds: As if a hold were asked for before anything is read.
        """
        self._sequencer = sequencer
        self._recovered = recovered
        self._origins = SourceOrigins(recovered)
        self._limits = limits
        self._delivery = delivery or DeliveryLimits()
        self._phase = _Phase.CONSUMING
        self._evicted = 0
        """Producers that the sequencer had forgotten for lack of room when its last checkpoint was recorded."""
        self._input: MessageBatch | None = None
        self._input_next = 0
        self._is_behind = False
        """Whether more waited than may be read ahead when input was last taken."""
        self._commit_seconds = 0.0
        """How long the last transaction took from its close to its last acknowledgement."""
        self._input_outcomes: Counter[SequenceOutcome] = Counter()
        self._intake = _Intake.OPEN
        self._hold = _Hold.CLOSING if holds else _Hold.NONE
        self._replay: tx.StartReplay | None = None
        """Under way, beside whatever phase: what it has brought so far may be delivered already."""
        self._delivered: MessageBatch | None = None
        self._finalize: tx.Finalize | None = None
        """The last order of its kind."""
        self._timer: float | None = None
        self._wake_at = wake_at
        """When the next transaction begins at the latest; None once it began, or if only input begins it."""
        self._out: list[Instruction] = []
        self.demand = InputDemand.NOTHING
        """The input that the machine can take, as of the last event."""
        self._running = RunningTxn(limits, 0.0, is_first=True)
        self._prior: PriorTxn | None = None
        self._last_acknowledgement: Mapping[str, bytes] = {}
        """The one that this machine's transactions made last, with its journal."""
        self._story = new_story()
        self._tell("created", (), 0.0, ())

    @property
    def activity(self) -> Activity:
        """The event that it waits for, as of the last one: while it works, something must move."""
        if self._phase is not _Phase.CONSUMING or self._prior is not None or self._replay:
            return Activity.WORKING
        return Activity.WAITING if self.demand is InputDemand.NOTHING else Activity.READING

    @property
    def has_used_input(self) -> bool:
        """Report whether all that was taken is handed to the application, but for what is not acknowledged."""
        return (
            self._phase is _Phase.CONSUMING
            and self._input is None
            and self._replay is None
            and not self._sequencer.emitting
        )

    def is_due(self, now: float) -> bool:
        """Report whether time has come for a transaction that needs no input, and it has not begun."""
        return self._wake_at is not None and now >= self._wake_at and self._may_wake()

    @property
    def delivers_alone(self) -> bool:
        """Report whether a delivery is all that goes on: no transaction is before this one, and no replay beside it."""
        return self._phase is _Phase.DELIVERING and self._prior is None and self._replay is None

    def story(self) -> str:
        """Return the recent events with what each changed, as text; a failed assertion here has it as a note."""
        return story_text("the transaction machine", self._story, _STORY_FIELDS)

    def start(self, now: float) -> tuple[Instruction, ...]:
        """Begin: as if the transaction of the restored checkpoint had just committed, and acknowledge it again.

        Args:
            now: Monotonic seconds.
        """
        # A protobuf map has no order of its own, and a simulated run must be the same again.
        intents = dict(sorted(self._recovered.ack_intents.items()))
        self._running.prior_prepared = now
        self._prior = PriorTxn(read_through_of(self._recovered), intents, committed=now)
        if intents:
            self._out.append(tx.AppendAcks(intents, recovered=True))
        with noting(self.story):
            out = self._settle(now)
        self._tell("start", (), now, out)
        return out

    def on(self, event: Event, now: float) -> tuple[Instruction, ...]:
        """Take in what happened and return what is to be done.

        Args:
            event: What happened.
            now: Monotonic seconds.
        """
        if self._phase is _Phase.ENDED:
            return ()
        if self._intake is _Intake.IDLE:
            self._intake = _Intake.OPEN
        try:
            self._take(event, now)
            out = self._settle(now)
        except AssertionError as error:
            self._tell(type(event).__name__, _outline(event), now, ())
            error.add_note(self.story())
            raise
        self._tell(type(event).__name__, _outline(event), now, out)
        return out

    def _tell(
        self, event: str, details: tuple[object, ...], now: float, out: tuple[Instruction, ...]
    ) -> None:
        """Remember an event. The ring holds no event or instruction itself, because that would pin its batch."""
        prior = self._prior
        stage = "none"
        if prior is not None:
            stage = "committing" if prior.committed is None else "acknowledging"
        state = (
            self._phase,
            self._intake,
            self.demand,
            stage,
            self._replay,
            self._running.messages,
            self._hold,
        )
        self._story.append((now, event, details, state, tuple(map(type, out)) if out else ()))

    def _settle(self, now: float) -> tuple[Instruction, ...]:
        if self._prior is not None and self._phase is not _Phase.ENDED:
            self._complete_prior(self._prior, now)
        if self._phase is _Phase.CONSUMING:
            self._advance(now)
        else:
            self.demand = InputDemand.NOTHING
        out, self._out = tuple(self._out), []
        return out

    # -- events

    def _take(self, event: Event, now: float) -> None:  # noqa: C901 - a line a word
        match event:
            case tx.BatchRead(batch, is_behind):
                assert self._input is None, "a batch was handed over unasked"
                self._input, self._input_next = batch, 0
                self._is_behind = is_behind
            case tx.SourceIdentified(journal, epoch):
                self._origins.note(journal, epoch)
            case tx.InputIdle():
                # What is closed is not merely idle: it must not open again at the next event.
                if self._intake is _Intake.OPEN:
                    self._intake = _Intake.IDLE
            case tx.SourcesClosed():
                if self._intake is not _Intake.STOPPED:
                    self._intake = _Intake.CLOSED
            case tx.SourceFailed(error) | tx.CallbackFailed(error):
                self._fail(error)
            case tx.ReplayRead(batch):
                self._on_replay_read(batch)
            case tx.ReplayEnded():
                self._replay = None
                self._sequencer.end_replay()
            case tx.Ticked():
                self._timer = None
            case tx.TimePassed():
                self._sequencer.pass_time(now)
            case tx.TxnBegan():
                self._running.began = now
                self._phase = _Phase.CONSUMING
            case tx.BatchDelivered(consumed, record_bytes):
                self._on_delivered(consumed, record_bytes)
            case tx.TxnFinalized():
                self._on_finalized(event)
            case tx.CommitStarted():
                self._on_commit_started(now)
            case tx.CommitResolved(error):
                self._on_commit_resolved(error, now)
            case tx.AckResolved():
                self._on_ack_resolved(event)
            case tx.AppendFailed(error):
                self._on_append_failed(error)
            case tx.LimitsChanged(limits):
                self._limits = limits
            case tx.StopRequested():
                self._intake = _Intake.STOPPED
            case tx.HoldRequested():
                # Asked for once more, it is answered once more: the first answer may have been lost.
                self._hold = _Hold.CLOSING
            case tx.HoldReleased():
                self._release(now)
            case tx.WakeRequested():
                if self._running.began is None:
                    self._wake_at = now
            case _:
                assert_never(event)

    def _on_replay_read(self, batch: MessageBatch) -> None:
        try:
            self._sequencer.feed_replay(batch)
        except ReplayError as error:
            self._fail(error)

    def _on_delivered(self, consumed: int, record_bytes: int) -> None:
        batch = self._delivered
        assert batch is not None, "nothing was delivered"
        assert 0 <= consumed <= len(batch), f"{consumed} of {len(batch)} messages consumed"
        self._delivered = None
        self._phase = _Phase.CONSUMING
        if consumed > 0:
            self._consume(batch, consumed)
        if consumed < len(batch):
            assert self._running.messages > 0, "the first message of a transaction was deferred"
            self._running.accepts_input = False
        if record_bytes >= self._running.limits.intent_bytes_max:
            # The commit holds them, so that they can be sent again: it must not grow with what is ready.
            self._running.accepts_input = False

    def _on_finalized(self, finalized: tx.TxnFinalized) -> None:
        assert self._finalize is not None, "nothing was to be finalized"
        ack_intents, last = finalized.ack_intents, finalized.last_acknowledgement
        self._last_acknowledgement = last or self._last_acknowledgement
        self._wake_at = finalized.wake_at
        checkpoint = finalized.checkpoint
        if checkpoint is None:
            order = self._finalize
            checkpoint = build_checkpoint(order.sources, ack_intents, order.prior_acknowledgement)
        self._phase = _Phase.COMMITTING
        # The prior transaction is complete by now; what commits takes its place before its outcome can be known.
        self._prior = PriorTxn(read_through_of(checkpoint), ack_intents, closed=self._running)
        self._out.append(tx.StartCommit(checkpoint, self._record_of(checkpoint)))

    def _on_commit_started(self, now: float) -> None:
        assert self._phase is _Phase.COMMITTING, "no commit was asked for"
        assert self._prior is not None, "the committing transaction is the prior one"
        self._prior.prepared = now
        if self._prior.ack_intents:
            self._out.append(tx.AppendAcks(self._prior.ack_intents, recovered=False))
        self._running = RunningTxn(self._limits, prior_prepared=now)
        self._timer = None
        self._phase = _Phase.CONSUMING

    def _on_commit_resolved(self, error: BaseException | None, now: float) -> None:
        assert self._prior is not None, "no commit is under way"
        if error is not None:
            self._fail(error)
            return
        self._prior.committed = now

    def _on_ack_resolved(self, event: tx.AckResolved) -> None:
        prior = self._prior
        assert prior is not None, "no acknowledgement is under way"
        prior.unacknowledged.discard(event.journal)
        if event.error is not None:
            prior.append_error = event.error
        elif event.committed_end is not None:
            prior.publish_at[event.journal] = event.committed_end

    def _on_append_failed(self, error: BaseException) -> None:
        if self._prior is not None and self._prior.committed is None:
            self._prior.append_error = error
        else:
            self._fail(error)

    def _complete_prior(self, prior: PriorTxn, now: float) -> None:
        """Notice that the prior transaction is durable and acknowledged, or that its acknowledgements failed."""
        if prior.committed is None or self._phase is _Phase.COMMITTING:
            return
        if prior.append_error is not None:
            self._fail(prior.append_error)
            return
        if prior.unacknowledged:
            return
        self._prior = None
        self._out.append(
            tx.PublishProgress(prior.read_through, prior.publish_at, prior.checkpointed)
        )
        record = prior.record_or_none(now)
        if record is not None:
            self._out.append(record)
            self._commit_seconds = now - record.timings.finalizing

    def _fail(self, cause: BaseException) -> None:
        self._phase = _Phase.ENDED
        self._out.append(tx.Fail(cause))

    def _release(self, now: float) -> None:
        if self._hold is _Hold.NONE:
            return
        self._hold = _Hold.NONE
        # One transaction follows though nothing is read: what the hold changed may leave the application work.
        self._wake_at = now
        if self._running.is_empty and self._running.began is None:
            # It took no input only because of the hold; a stop is judged again below.
            self._running.accepts_input = True

    # -- decisions, made whenever no callback is under way

    def _advance(self, now: float) -> None:
        running = self._running
        if self._hold is not _Hold.NONE and self._holds_now():
            return
        has_begun = running.began is not None
        if self._intake is _Intake.STOPPED or (has_begun and running.max_elapsed(now)):
            running.accepts_input = False
        while running.accepts_input:
            if not self._sequencer.emitting and not self._sequence(now):
                break
            if self._draw(now):
                return
        if self._wake_at is not None and self.is_due(now):
            running.is_woken = True
            self._begin()
            return
        if running.has_note and running.began is None:
            self._begin()
            return
        if not running.accepts_input and running.stalled is None and self._prior is not None:
            running.stalled = now
        self._close_or_wait(now)

    def _holds_now(self) -> bool:
        """Close what runs, if a hold is asked for; return whether all rests now."""
        running = self._running
        # One that began for input that is there, and has none yet, takes a delivery: so it can close.
        if self._hold is _Hold.NONE or (running.is_empty and running.began is not None):
            return False
        running.accepts_input = False
        ends = self._intake is _Intake.CLOSED or self._intake is _Intake.STOPPED
        if ends or not running.is_empty:
            return False
        self.demand = InputDemand.NOTHING
        if self._hold is _Hold.CLOSING and self._prior is None:
            self._hold = _Hold.HELD
            self._out.append(tx.Held())
        return True

    def _record_of(self, checkpoint: Checkpoint) -> tx.RecordCheckpoint:
        producers = self._sequencer.producer_counts()
        evicted, self._evicted = producers.evicted - self._evicted, producers.evicted
        return tx.RecordCheckpoint(checkpoint.ByteSize(), producers, evicted)

    def _sequence(self, now: float) -> bool:
        """Sequence the input at hand until messages commit; False if it is used up."""
        while self._input is not None:
            if len(self._input) == 0:
                self._running.has_note = True
            queued = self._sequencer.queue(self._input, self._input_next, now_seconds=now)
            if queued.visible_through is not None:
                self._note_read(self._input.journal, queued.visible_through)
            self._input_next = queued.next_index
            self._input_outcomes.update(queued.outcomes)
            if self._input_next >= len(self._input):
                if len(self._input) > 0:
                    self._record_sequenced(self._input)
                self._input = None
            if queued.emitting:
                return True
        return False

    def _record_sequenced(self, batch: MessageBatch) -> None:
        outcomes, self._input_outcomes = self._input_outcomes, Counter()
        self._out.append(
            tx.RecordSequenced(batch.journal, outcomes, int(batch.begins[0]), int(batch.ends[-1]))
        )

    def _note_read(self, journal: str, through: int) -> None:
        """Make it visible that messages were read which will never be delivered, or a reader might wait for ever."""
        if not self._running.is_empty:
            return  # Its own commit will tell.
        if self._prior is None:
            self._out.append(tx.PublishProgress({journal: through}, {}))
            return
        self._prior.extend(journal, through)

    def _draw(self, now: float) -> bool:
        """Take committed messages; return whether the machine must now await an answer."""
        batch = self._sequencer.peek(self._delivery.messages_max)
        if batch is None:
            self._ask_replay(now)
            return True
        if self._running.began is None:
            self._begin()
            return True
        acks = leading_acks(batch)
        if acks > 0:
            self._consume(batch, acks)
            return False
        self._delivered = bounded(before_ack(batch), self._delivery.bytes_max)
        self._phase = _Phase.DELIVERING
        self._out.append(tx.Deliver(self._delivered, first=self._running.messages == 0))
        self.demand = InputDemand.NOTHING
        return True

    def _may_wake(self) -> bool:
        """Return whether time may begin the running transaction: not any more once the shard stops or reads again."""
        is_read = self._intake is _Intake.OPEN or self._intake is _Intake.IDLE
        return is_read and self._running.began is None

    def _begin(self) -> None:
        self._wake_at = None
        self._phase = _Phase.BEGINNING
        self._out.append(tx.BeginTxn())
        self.demand = InputDemand.NOTHING

    def _consume(self, batch: MessageBatch, count: int) -> None:
        self._sequencer.consume(count)
        self._running.messages += count
        self._running.message_bytes += int((batch.ends[:count] - batch.begins[:count]).sum())

    def _ask_replay(self, now: float) -> None:
        if self._replay is None:
            replay = self._sequencer.replay_range()
            assert replay is not None, "the sequencer wants neither input nor a replay"
            self._replay = tx.StartReplay(replay.journal, replay.begin, replay.end)
            self._out.append(self._replay)
        self.demand = InputDemand.REPLAY
        # What it brings begins the transaction: a wake that is due has nothing to do before, and would tick for ever.
        self._tick_at(self._running.next_decision(now))

    def _close_or_wait(self, now: float) -> None:
        running = self._running
        ends_here = self._intake is _Intake.CLOSED or self._intake is _Intake.STOPPED
        can_read = running.accepts_input and not ends_here
        if self._prior is None and running.is_empty and ends_here:
            self._phase = _Phase.ENDED
            self.demand = InputDemand.NOTHING
            self._out.append(tx.Finish())
        elif self._must_wait(now, can_read=can_read):
            self._wait(InputDemand.BATCH if can_read else InputDemand.NOTHING, now)
        elif can_read and self._intake is not _Intake.IDLE and not self._leaves_ready_input(now):
            self._wait(InputDemand.BATCH_IF_READY, now)
        else:
            self._close(now)

    def _leaves_ready_input(self, now: float) -> bool:
        """Return whether the running transaction leaves input that is ready to the next one, though it may take it."""
        if self._running.is_first:
            return self._running.has_been_open_for(FIRST_TXN_SECONDS, now)
        seconds = max(BUSY_TXN_SECONDS_LEAST, COMMITS_PER_BUSY_TXN * self._commit_seconds)
        return not self._is_behind and self._running.has_been_open_for(seconds, now)

    def _must_wait(self, now: float, *, can_read: bool) -> bool:
        """Return whether something forbids to close the running transaction now."""
        running = self._running
        if self._prior is not None or running.is_empty:
            return True
        hurries = self._intake is _Intake.STOPPED or self._hold is not _Hold.NONE
        if not hurries and not running.min_elapsed(now):
            return True
        if running.is_woken and not running.messages:
            return False  # It was asked for because of the time, whatever a producer is about to acknowledge.
        return can_read and running.limits.wait_for_ack and self._sequencer.has_pending()

    def _wait(self, demand: InputDemand, now: float) -> None:
        self.demand = demand
        self._arm(now)

    def _arm(self, now: float) -> None:
        """Set the timer to the next moment at which the running transaction decides again."""
        at = self._running.next_decision(now)
        if self._wake_at is not None and self._may_wake():
            at = self._wake_at
        self._tick_at(at)

    def _tick_at(self, at: float | None) -> None:
        if at is not None and at != self._timer:
            self._timer = at
            self._out.append(tx.SetTimer(at))

    def _close(self, now: float) -> None:
        self._running.finalizing = now
        self._phase = _Phase.FINALIZING
        self.demand = InputDemand.NOTHING
        sources = self._origins.stamped(self._sequencer.take_checkpoint())
        self._finalize = tx.Finalize(sources, self._last_acknowledgement)
        self._out.append(self._finalize)
