"""The sequencer: from messages as read to messages as committed.

It drops duplicates and delivers transactions whole or not at all. Pure: batches in, batches out. Each (journal,
producer) is sequenced by itself, so none delays another:

    CONTINUE --> pending --> ACK, clock > min --> emitting --> consumed: offset and min move on
                    |
                    +------> ACK, clock <= min --> rolled back

The caller's loop:

    queued = sequencer.queue(batch, start)      # until something commits, or the batch ends
    while sequencer.emitting:
        run = sequencer.peek(limit)
        if run is not None:
            sequencer.consume(len(run))
        else:                                   # read sequencer.replay_range() again
            sequencer.feed_replay(...), ...; sequencer.end_replay()

A checkpoint may be taken between any two calls. Restored from it, a sequencer that is fed the journals from its offsets
emits exactly what was not consumed before.

Source: gazette/core message/sequencer.go (QueueUncommitted, Step, Checkpoint: the classification). Messages that commit
by themselves are emitted in runs here, not one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.producers import (
    PRUNE_HORIZON_SECONDS,
    FilingLimits,
    JournalProducers,
    Producer,
    ProducerCounts,
)
from broadsheet.journals.message.sequence import (
    PendingSpan,
    ReplayRange,
    Ring,
    RunEmission,
    SequenceEmission,
    Stretches,
    committed_part,
    scan_run,
)
from broadsheet.journals.message.sequence_rules import (
    EFFECTS,
    NOTHING_PENDING,
    Effect,
    SequenceOutcome,
    classify,
    decide,
)
from broadsheet.journals.message.uuid import Flags
from broadsheet.wire import shard_pb2

RING_MESSAGES: Final = 131_072
RING_BYTES: Final = 32 << 20
"""Memory for pending messages of one shard; a member may host some dozens. What exceeds it is read a second time."""
SPAN_SECONDS_MAX: Final = 120.0
"""Time for which pending messages stay in memory: far longer than transactions last, but bounded because producers that
die leave some behind. If they are acknowledged later, they are read again."""
PRODUCERS_BYTES_MAX: Final = 64 << 20
"""Memory for producers of one shard: some 170,000. A writer that restarts every hour makes 24 a day."""
PRODUCER_BYTES: Final = 384
"""Memory of one known producer, with its entries in tables (measured: 345 to 370)."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The result of `Sequencer.queue`."""

    next_index: int
    """The batch's first message that was not sequenced; its length if all were."""
    emitting: bool
    """Whether committed messages now await `peek` and `consume`."""
    outcomes: Mapping[SequenceOutcome, int]
    """Number of messages by outcome."""
    visible_through: int | None
    """If nothing is emitted, the end of the last duplicate or rollback, bytes, else None. No message will result from
    it, so reading it must itself become visible to those who wait for it. None if there is none."""


class Sequencer:
    """The sequencing of the messages of one shard's sources."""

    def __init__(
        self,
        sources: Mapping[str, shard_pb2.Checkpoint.Source],
        *,
        ring_messages: int = RING_MESSAGES,
        ring_bytes: int = RING_BYTES,
        producers_bytes_max: int = PRODUCERS_BYTES_MAX,
        filing: FilingLimits | None = None,
    ) -> None:
        """Resume from a checkpoint.

        Args:
            sources: Of the checkpoint; empty if there is none yet.
            ring_messages: Maximum number of pending messages kept in memory; at least one is.
            ring_bytes: Maximum memory of pending messages.
            producers_bytes_max: Maximum memory of producers; above it, those longest silent are forgotten at a
                checkpoint, unless they have something pending.
            filing: Thresholds at which silent producers go into segments, which the store must keep. None if the store
                does not: then each checkpoint names all producers.
        """
        self._producers = {
            journal: JournalProducers.restored(source) for journal, source in sources.items()
        }
        self._producers_max = max(1, producers_bytes_max // PRODUCER_BYTES)
        self._filing = filing
        self._offsets = {journal: source.read_through for journal, source in sources.items()}
        self._resumes = {
            journal: source.resume for journal, source in sources.items() if source.resume
        }
        self._ring = Ring(messages_max=ring_messages, bytes_max=ring_bytes)
        self._now_seconds = 0.0
        """The time last passed in."""
        self._pending: set[Producer] = set()
        self._emission: RunEmission | SequenceEmission | None = None
        self._emitted: Producer | None = None
        """The producer whose sequence is emitted; None during a run."""
        self._outcomes: dict[SequenceOutcome, int] = {}
        self._visible_through: int | None = None
        self._stretches: Stretches | None = None
        """Of the batch that is queued, until its last message is."""

    @property
    def emitting(self) -> bool:
        """True while committed messages await `peek` and `consume`."""
        return self._emission is not None

    @property
    def emits_run(self) -> bool:
        """True while these messages are a run, during which a checkpoint forgets no producer."""
        return isinstance(self._emission, RunEmission)

    @property
    def pending_messages(self) -> int:
        """Number of messages in memory that await their acknowledgement."""
        return self._ring.messages

    @property
    def pending_bytes(self) -> int:
        """Memory of these messages, bytes."""
        return self._ring.size_bytes

    @property
    def offsets(self) -> Mapping[str, int]:
        """Offset by journal below which everything was sequenced, bytes. A live view."""
        return MappingProxyType(self._offsets)

    def has_pending(self) -> bool:
        """Tell whether a span that began since the last checkpoint still awaits its acknowledgement.

        A span from before the last checkpoint does not count, even if it is extended, so that a producer that never
        acknowledges delays one transaction, not all.
        """
        return bool(self._pending)

    def queue(
        self, batch: MessageBatch, start: int = 0, *, now_seconds: float | None = None
    ) -> Queued:
        """Sequence the messages of `batch` from index `start` on, until something is emitted or the batch ends.

        Args:
            batch: Messages that follow those queued before.
            start: Index of the first that was not sequenced yet.
            now_seconds: By a clock of this process that never steps: silent producers age by it. None: none ages.

        Requires:
            Nothing is being emitted.
        """
        assert self._emission is None, "messages were queued while others are emitted"
        self._outcomes = {}
        self._visible_through = None
        # Only once per batch: after an emission it is queued again from a later index.
        if start == 0:
            self._resumes |= batch.resumes
        if len(batch) == 0:  # Only notes of where its source resumes.
            return Queued(0, False, {}, None)
        if now_seconds is not None:
            self._producers_of(batch.journal).reading.advance(now_seconds)
            self.pass_time(now_seconds)
        stretches = self._stretches_of(batch)
        index, count = start, len(batch)
        while index < count and self._emission is None:
            run_end = stretches.end_of_run(index)
            if run_end > index:
                index = self._queue_run(batch, index, run_end)
            elif batch.flags[index] == Flags.CONTINUE_TXN:
                index = self._queue_pending(batch, index, stretches.end_of_stretch(index))
            else:
                self._queue_acknowledgement(batch.span(index, index + 1))
                index += 1
        if index == count:
            self._stretches = None
        emitting = self._emission is not None
        # While something is emitted, its consumption makes the reading visible.
        visible_through = None if emitting else self._visible_through
        return Queued(index, emitting, self._outcomes, visible_through)

    def pass_time(self, now_seconds: float) -> None:
        """Free the memory of messages that have been pending for long; nothing is forgotten.

        Args:
            now_seconds: By the same clock as that of `queue`.
        """
        self._now_seconds = now_seconds
        self._ring.evict_older(now_seconds - SPAN_SECONDS_MAX)

    def replay_range(self) -> ReplayRange | None:
        """Return what must be read again before the emission can go on; None if nothing."""
        return self._emission.replay if self._emission else None

    def feed_replay(self, batch: MessageBatch) -> None:
        """Take messages of the range to replay, in order, of any producer.

        Raises:
            ReplayError: they are not of that range.
        """
        sequence = self._sequence()
        sequence.feed_replay(batch)
        self._note_next_begin(sequence)

    def end_replay(self) -> None:
        """Record that the range was read to its end."""
        sequence = self._sequence()
        sequence.end_replay()
        self._note_next_begin(sequence)
        if sequence.exhausted:
            self._finish_sequence(sequence)

    def peek(self, limit: int) -> MessageBatch | None:
        """Return up to `limit` committed messages that come next, an acknowledgement after what it commits.

        Returns:
            None if the messages must be re-read first (`replay_range`); never an empty batch.

        Requires:
            Something is being emitted, and `limit` is at least 1.
        """
        assert self._emission is not None, "nothing is being emitted"
        assert limit > 0, "a limit of no messages"
        return self._emission.peek(limit)

    def consume(self, count: int) -> None:
        """Record that the next `count` messages were consumed.

        Requires:
            They were peeked at, and `count` is at least 1.
        """
        assert count > 0, "no message was consumed"
        match self._emission:
            case RunEmission() as run:
                self._consume_run(run, count)
            case SequenceEmission() as sequence:
                assert self._emitted is not None
                self._emitted.min_clock = sequence.take(count)
                self._note_next_begin(sequence)
                if sequence.exhausted:
                    self._finish_sequence(sequence)
            case None:
                raise AssertionError("nothing is being emitted")

    def take_checkpoint(
        self, prune_horizon_seconds: float = PRUNE_HORIZON_SECONDS
    ) -> dict[str, shard_pb2.Checkpoint.Source]:
        """Return the sources of a checkpoint as of what was consumed; no span counts as pending any more.

        Args:
            prune_horizon_seconds: Producers silent for longer (`JournalProducers.prune`) are forgotten here too; 0
                forgets none. None is forgotten in the middle of a run, because its duplicates were recognised by what
                the producers had committed when it began.
        """
        self._pending.clear()
        # A run's duplicates were recognised by the present producers, so none may go before it is consumed.
        if not self.emits_run:
            for producers in self._producers.values():
                producers.prune(prune_horizon_seconds, keep=self._emitted)
            self._evict()
        sources = {
            journal: self._source_of(journal, offset) for journal, offset in self._offsets.items()
        }
        for journal, resume in self._resumes.items():
            sources.setdefault(journal, shard_pb2.Checkpoint.Source()).resume = resume
        return sources

    def whole_sources(self) -> dict[str, shard_pb2.Checkpoint.Source]:
        """Return the sources of a checkpoint that names every producer, whatever is filed, and change nothing."""
        return {
            journal: self._producers_of(journal).source(offset)
            for journal, offset in self._offsets.items()
        }

    def producer_counts(self) -> ProducerCounts:
        """Return the numbers of known, filed and evicted producers."""
        journals = self._producers.values()
        return ProducerCounts(
            known=sum(len(producers.by_id) for producers in journals),
            filed=sum(producers.filed for producers in journals),
            evicted=sum(producers.evicted for producers in journals),
        )

    def _source_of(self, journal: str, offset: int) -> shard_pb2.Checkpoint.Source:
        producers = self._producers_of(journal)
        # The store keeps no segments, so the checkpoint names every producer.
        if self._filing is None:
            return producers.source(offset)
        return producers.incremental_source(offset, self._filing, keep=self._emitted)

    def _evict(self) -> None:
        """Forget surplus producers, first of the journal with the most, so that a flood affects its own journal."""
        surplus = sum(len(each.by_id) for each in self._producers.values()) - self._producers_max
        journals = sorted(self._producers.values(), key=lambda each: len(each.by_id), reverse=True)
        for producers in journals:
            if surplus <= 0:
                return
            surplus -= producers.evict(surplus, keep=self._emitted)

    def _producers_of(self, journal: str) -> JournalProducers:
        producers = self._producers.get(journal)
        if producers is None:
            producers = self._producers[journal] = JournalProducers()
        return producers

    def _heard(self, journal: str, producer_id: int, clock: int) -> Producer:
        """Return the producer of a message with this clock, new or known."""
        return self._producers_of(journal).heard(producer_id, clock - 1)

    def _stretches_of(self, batch: MessageBatch) -> Stretches:
        """Return the stretches of a batch; after an emission it is queued again, and they are known."""
        if self._stretches is None or self._stretches.batch is not batch:
            self._stretches = Stretches(batch)
            self._ring.end_batch()
        return self._stretches

    def _queue_run(self, batch: MessageBatch, start: int, stop: int) -> int:
        """Sequence messages that commit by themselves; return the index after them."""
        journal = batch.journal
        producers = self._producers_of(journal)
        run = scan_run(batch, start, stop, producers=producers.by_id)
        for producer_id in run.producer_ids & producers.by_id.keys():
            producers.heard(producer_id, 0)
        self._count(SequenceOutcome.OUTSIDE_COMMIT, len(run.indices))
        self._count(SequenceOutcome.OUTSIDE_ALREADY_ACKED, run.duplicates)
        self._count(SequenceOutcome.UNKNOWN_FLAGS, run.unknown_flags)
        self._count(SequenceOutcome.SPAN_DISCARDED, run.spans_discarded)
        if run.leading_duplicates_end is not None:
            self._offsets[journal] = self._visible_through = run.leading_duplicates_end
        if len(run.indices):
            self._emission = RunEmission(committed_part(batch, run), read_through=run.read_through)
        return run.next_index

    def _queue_pending(self, batch: MessageBatch, start: int, stop: int) -> int:
        """Sequence a producer's messages that await an acknowledgement; return the index after them."""
        producer = self._heard(batch.journal, int(batch.producers[start]), int(batch.clocks[start]))
        part = batch.span(start, stop)
        duplicates, outcomes = classify(Flags.CONTINUE_TXN, part.clocks, producer)
        for outcome, messages in outcomes:
            self._count(outcome, messages)
        self._offsets[batch.journal] = int(part.ends[-1])
        if duplicates:
            self._visible_through = int(part.ends[duplicates - 1])
            if duplicates == stop - start:
                return stop
            part = batch.span(start + duplicates, stop)
        if producer.begin == NOTHING_PENDING:
            # Only a span that begins here: one from before the last checkpoint delays no further transaction.
            self._pending.add(producer)
        producer.hold(int(part.begins[0]), int(part.clocks[-1]))
        if producer.span is None:
            producer.span = PendingSpan()
        self._ring.add(producer.span, part, now_seconds=self._now_seconds)
        return stop

    def _queue_acknowledgement(self, message: MessageBatch) -> None:
        """Sequence one message, which is an acknowledgement."""
        clock = int(message.clocks[0])
        producer = self._heard(message.journal, int(message.producers[0]), clock)
        replay = self._replay_range(producer, message)
        outcome = decide(Flags.ACK_TXN, clock, producer, in_memory=replay is None)
        self._count(outcome)
        if EFFECTS[outcome] is Effect.COMMIT:
            # A checkpoint taken before it is consumed must read the acknowledgement again.
            if producer.begin == NOTHING_PENDING:
                producer.begin = int(message.begins[0])
            self._emit_sequence(producer, message, replay)
            return
        self._settle(producer, clock)
        self._offsets[message.journal] = self._visible_through = int(message.ends[0])

    def _emit_sequence(
        self, producer: Producer, acknowledgement: MessageBatch, replay: ReplayRange | None
    ) -> None:
        producer.max_clock = int(acknowledgement.clocks[0])
        sequence = SequenceEmission(
            self._ring.release(producer.span) if producer.span else (),
            acknowledgement,
            last_clock=producer.min_clock,
            replay=replay,
        )
        producer.span = None
        self._emission = sequence
        self._emitted = producer
        self._note_next_begin(sequence)

    @staticmethod
    def _replay_range(producer: Producer, acknowledgement: MessageBatch) -> ReplayRange | None:
        """Return the range of a producer's pending messages that memory no longer holds; None if it holds all."""
        if producer.begin == NOTHING_PENDING:
            return None
        in_memory = producer.span.begin if producer.span else None
        first = int(acknowledgement.begins[0]) if in_memory is None else in_memory
        # Memory holds the whole span: nothing of it was evicted.
        if first == producer.begin:
            return None
        return ReplayRange(acknowledgement.journal, producer.begin, first)

    def _sequence(self) -> SequenceEmission:
        assert isinstance(self._emission, SequenceEmission), "no sequence is being emitted"
        return self._emission

    def _note_next_begin(self, sequence: SequenceEmission) -> None:
        """Make a checkpoint taken now resume at the next message."""
        if self._emitted is not None and sequence.next_begin is not None:
            self._emitted.begin = sequence.next_begin

    def _finish_sequence(self, sequence: SequenceEmission) -> None:
        """Move past the acknowledgement; not earlier, because a restart must read it again until now."""
        assert self._emitted is not None
        self._offsets[sequence.journal] = sequence.end
        self._settle(self._emitted, sequence.clock)
        self._emission = self._emitted = None

    def _consume_run(self, run: RunEmission, count: int) -> None:
        """Consume messages that commit by themselves, and roll back what their producers had pending."""
        producers = self._producers[run.journal]
        for producer_id, clock in run.take(count).items():
            producer = producers.heard(producer_id, clock)
            self._settle(producer, clock)
        self._offsets[run.journal] = run.offset
        if run.exhausted:
            self._emission = None

    def _count(self, outcome: SequenceOutcome, messages: int = 1) -> None:
        if messages:
            self._outcomes[outcome] = self._outcomes.get(outcome, 0) + messages

    def _settle(self, producer: Producer, clock: int) -> None:
        """Clear what a producer has pending, and commit or roll back to `clock`."""
        if producer.span is not None:
            self._ring.release(producer.span)
            producer.span = None
        producer.settle(clock)
        self._pending.discard(producer)
