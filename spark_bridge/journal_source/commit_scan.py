"""Decides which messages of a journal a micro-batch holds, from their UUIDs alone.

A scan goes over a journal once, stops anywhere, and goes on in the next micro-batch. A message belongs to the batch in
which it becomes committed: a message outside a transaction to the one that reaches it, one within a transaction to the
one that reaches its acknowledgement, however long before it was written. So each batch is a list of places in the
journal, some of which may lie before the batch's own beginning.

A `JournalState` says all that a later scan needs. It depends on nothing but the journal's bytes, so a batch that is
planned again, elsewhere or years later, holds the same messages.

Pure: the caller reads.

    scan.begin(limits)
    <settle>
    for batch in <read from scan.position>:             # unless scan.full
        batch, index = scan.admitted(batch), 0
        while index < len(batch) and <settled>:
            index = scan.queue(batch, index)
            <settle>: while scan.emitting:
                <read scan.replay_range() again, if any>: scan.feed_replay(...), scan.end_replay()
                if not scan.take(): break               # not settled: the batch is full
    scan.finish()
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from consumer.message.batch import MessageBatch
from consumer.message.emission import ReplayRange
from consumer.message.producers import NOTHING_PENDING
from consumer.message.sequencer import PRUNE_HORIZON_SECONDS, Sequencer
from consumer.message.uuid import PRODUCER_BYTES, Flags
from consumer.protocol.shard_pb2 import Checkpoint

UNLIMITED: Final = sys.maxsize
RING_MESSAGES: Final = 200_000
"""Places of pending messages kept in memory, of one journal; about 150 bytes each, and no payload."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """How far a journal was sequenced."""

    offset: int = 0
    """Below it every message was sequenced, bytes."""
    producers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(last acknowledged clock, offset of the first pending message or -1) by producer, 12 hexadecimal digits."""

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values; equal states give equal texts."""
        producers = {key: list(self.producers[key]) for key in sorted(self.producers)}
        return {"offset": self.offset, "producers": producers}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JournalState:
        """Return the state that `to_json` gave.

        Raises:
            ValueError: `value` is none.
        """
        try:
            producers = {
                str(key): (int(clock), int(begin))
                for key, (clock, begin) in value["producers"].items()
            }
            return cls(int(value["offset"]), producers)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{value!r} is no state of a journal") from error

    @classmethod
    def of_source(cls, source: Checkpoint.Source) -> JournalState:
        """Return a journal's part of a checkpoint."""
        return cls(
            source.read_through,
            {
                entry.id.hex(): (entry.state.last_ack, entry.state.begin)
                for entry in source.producers
            },
        )

    def to_source(self) -> Checkpoint.Source:
        """Return the state as a journal's part of a checkpoint."""
        source = Checkpoint.Source(read_through=self.offset)
        for key, (clock, begin) in self.producers.items():
            source.producers.add(
                id=bytes.fromhex(key).rjust(PRODUCER_BYTES, b"\0"),
                state=Checkpoint.ProducerState(last_ack=clock, begin=begin),
            )
        return source

    @property
    def pending_begin(self) -> int | None:
        """Where the oldest transaction that is not acknowledged yet begins, bytes; None if there is none."""
        begins = [begin for _, begin in self.producers.values() if begin != NOTHING_PENDING]
        return min(begins, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """How much a micro-batch may hold; neither cuts a transaction nor a message."""

    rows_max: int = UNLIMITED
    """Committed messages; a batch that holds none yet takes a larger transaction whole."""
    bytes_max: int = UNLIMITED
    """Bytes that the scan goes on, committed or not; what is read again comes on top."""


NO_LIMITS: Final = ScanLimits()


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """One journal's part of a micro-batch."""

    journal: str
    end: JournalState
    """Where the next micro-batch goes on."""
    begins: list[int]
    """Offset of each committed message, acknowledgements left out, in the order of commits; shape (N,), bytes."""
    ends: list[int]
    """Offset after each; shape (N,), bytes."""


class CommitScan:
    """The scan of one journal."""

    def __init__(
        self, journal: str, state: JournalState, *, ring_messages: int = RING_MESSAGES
    ) -> None:
        """Go on from a state.

        Args:
            journal: Its name.
            state: Where an earlier scan ended, or a bare offset.
            ring_messages: Pending messages kept in memory; what exceeds them is read again when it is committed.
        """
        self._journal = journal
        self._sequencer = Sequencer(
            {journal: state.to_source()}, ring_messages=ring_messages, ring_bytes=UNLIMITED
        )
        self.position = state.offset
        """Where to read on, bytes."""
        self.begin(NO_LIMITS)

    def begin(self, limits: ScanLimits) -> None:
        """Begin a micro-batch."""
        self._limits = limits
        self._began_at = self.position
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.full = False
        """Whether a limit was reached."""

    @property
    def emitting(self) -> bool:
        """Whether committed messages await `take`."""
        return self._sequencer.emitting

    def admitted(self, batch: MessageBatch) -> MessageBatch:
        """Return what of a batch the limit on bytes admits, payloads left out; the batch is full if that is not all."""
        count = bisect_right(batch.ends, self._began_at + self._limits.bytes_max)
        if count == 0 and self.position == self._began_at and not self._begins:
            count = 1  # a message longer than the limit must not stop the query
        if count < len(batch):
            self.full = True
            batch = batch.span(0, count)
        return replace(batch, payloads=(b"",) * len(batch))

    def queue(self, batch: MessageBatch, start: int) -> int:
        """Sequence messages from index `start` on until some are committed; return the index of the first that was not.

        Requires:
            Nothing is being emitted.
        """
        next_index = self._sequencer.queue(batch, start).next_index
        self.position = batch.ends[next_index - 1]
        return next_index

    def replay_range(self) -> ReplayRange | None:
        """Return what must be read again before `take`."""
        return self._sequencer.replay_range()

    def feed_replay(self, batch: MessageBatch) -> None:
        """Take messages of the range to replay."""
        self._sequencer.feed_replay(replace(batch, payloads=(b"",) * len(batch)))

    def end_replay(self) -> None:
        """Say that the range was read to its end."""
        self._sequencer.end_replay()

    def take(self) -> bool:
        """Add committed messages to the micro-batch, or return False if it is full: they open the next one.

        Requires:
            Something is being emitted, and nothing of it must be read again.
        """
        room = self._limits.rows_max - len(self._begins)
        if room <= 0:
            self.full = True
            return False
        first = self._sequencer.peek(1)
        assert first is not None, "what is emitted was read again"
        if first.flags[0] in (Flags.CONTINUE_TXN, Flags.ACK_TXN) and first.clocks[0]:
            return self._take_transaction(room)
        self._take_singles(room)
        return True

    def finish(self) -> ScannedBatch:
        """End the micro-batch."""
        source = self._sequencer.take_checkpoint(PRUNE_HORIZON_SECONDS)[self._journal]
        return ScannedBatch(self._journal, JournalState.of_source(source), self._begins, self._ends)

    def _take_singles(self, room: int) -> None:
        run = self._sequencer.peek(room)
        assert run is not None, "what commits by itself is in memory"
        self._begins.extend(run.begins)
        self._ends.extend(run.ends)
        self._sequencer.consume(len(run))

    def _take_transaction(self, room: int) -> bool:
        whole = self._sequencer.peek(UNLIMITED)
        assert whole is not None, "a transaction is taken once it was read again"
        kept = [index for index, flags in enumerate(whole.flags) if flags != Flags.ACK_TXN]
        if len(kept) > room and self._begins:
            self.full = True  # nothing of it was consumed, so the state says that it is to come
            return False
        self._begins.extend([whole.begins[index] for index in kept])
        self._ends.extend([whole.ends[index] for index in kept])
        self._sequencer.consume(len(whole))
        return True
