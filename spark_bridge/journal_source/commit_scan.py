"""Decides which messages of a journal a micro-batch holds, from their UUIDs alone.

A scan goes over a journal once, may stop anywhere, and continues in the next micro-batch. A message belongs to the
batch in which it becomes committed: outside a transaction, the batch that reaches the message; within one, the batch
that reaches its acknowledgement, however long ago the message was written. So each batch is a list of ranges of the
journal, and some may lie before the batch's own beginning.

A `JournalState` has everything that a later scan needs. The messages of a batch depend only on the state at its
beginning, the offset of its end and the journal's bytes, so a batch that is planned again, elsewhere or years later,
holds the same messages. Only the set of silent producers that the state at its end still knows depends on time.

`broadsheet.journals.message.sequence_rules` decides which messages are committed, as in a shard.

Pure: the caller reads.

    scan.begin(limits)
    while not scan.full:
        scan.advance()
        if scan.replay: <read that range again>: scan.feed_replay(...), ...; scan.end_replay()
        elif not scan.full: <read from scan.position>: scan.feed(...), or stop
    scan.finish(now_seconds)
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from broadsheet.journals.message.producers import PRUNE_HORIZON_SECONDS, ReadingTime, stale_ids
from broadsheet.journals.message.sequence_rules import (
    EFFECTS,
    NOTHING_PENDING,
    CommitSelection,
    Effect,
    ProducerClocks,
    SequenceOutcome,
    classify,
    decide,
)
from broadsheet.journals.message.uuid import Flags
from broadsheet.spark_bridge.journal_source.journal_state import JournalState, ProducerState
from broadsheet.spark_bridge.journal_source.message_table import (
    DAMAGED,
    NO_HEADS,
    MessageTable,
    Offsets,
    Words,
)

UNLIMITED: Final = sys.maxsize
STRETCH_BYTES: Final = 1 << 20
"""Default length of a stretch, bytes: a batch of millions of messages is then some hundred stretches."""


PENDING_BYTES: Final = 64 << 20
"""Default bound of one journal's pending messages: about two million of them."""
_SEGMENT_BYTES: Final = 400
"""Memory of a segment besides its rows."""
_ROW_BYTES: Final = 24
_DEAD_SLOTS_MAX: Final = 10_000


class ScanSegment(NamedTuple):
    """Consecutive messages of one producer, clocks growing; every column has shape (N,), N > 0."""

    begins: Offsets
    ends: Offsets
    clocks: Words

    @classmethod
    def of(cls, table: MessageTable, start: int, stop: int) -> ScanSegment:
        """Return messages [start, stop) of a table, copied so that they do not keep it alive."""
        return cls(
            table.begins[start:stop].copy(),
            table.ends[start:stop].copy(),
            table.clocks[start:stop].copy(),
        )

    @property
    def size_bytes(self) -> int:
        """Memory taken."""
        return _SEGMENT_BYTES + _ROW_BYTES * len(self.begins)


class ScanSpan:
    """Pending messages of one producer that are still in memory, in offset order."""

    __slots__ = ("live", "segments")

    def __init__(self) -> None:
        self.segments: deque[ScanSegment] = deque()
        self.live = True


class PendingRing:
    """Owns the memory of all spans.

    Messages beyond the bound are dropped, oldest first, and read again once they are acknowledged.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._slots: deque[ScanSpan] = deque()
        """The span of each segment, in order of arrival; released spans are removed later."""
        self._dead_slots = 0

    def add(self, span: ScanSpan, segment: ScanSegment) -> None:
        """Add messages, and drop the oldest others if there are too many."""
        while self._slots and self._bytes + segment.size_bytes > self._bytes_max:
            self._forget_oldest()
        span.segments.append(segment)
        self._bytes += segment.size_bytes
        self._slots.append(span)

    def release(self, span: ScanSpan) -> None:
        """Release a span's messages."""
        span.live = False
        self._bytes -= sum(segment.size_bytes for segment in span.segments)
        self._dead_slots += len(span.segments)
        if self._dead_slots > _DEAD_SLOTS_MAX:
            self._slots = deque(slot for slot in self._slots if slot.live)
            self._dead_slots = 0

    def _forget_oldest(self) -> None:
        span = self._slots.popleft()
        # A released span gave its memory back already.
        if span.live:
            self._bytes -= span.segments.popleft().size_bytes
        else:
            self._dead_slots -= 1


def committed_of(
    segments: Sequence[ScanSegment], selection: CommitSelection
) -> tuple[Offsets, Offsets]:
    """Return begins and ends of the messages that an acknowledgement commits.

    Args:
        segments: The pending messages, in the order of the journal.
        selection: Of the acknowledgement.
    """
    if not segments:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing
    clocks = np.concatenate([segment.clocks for segment in segments])
    begins = np.concatenate([segment.begins for segment in segments])
    ends = np.concatenate([segment.ends for segment in segments])
    committed = selection.admitted_of(clocks)
    return begins[committed], ends[committed]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """The limits of a micro-batch. Neither one cuts a transaction or a message."""

    rows_max: int = UNLIMITED
    """Committed messages."""
    bytes_max: int = UNLIMITED
    """Bytes that the scan moves on, committed or not; bytes that are read again are not counted."""
    may_exceed: bool = True
    """Whether the batch's first transaction may be larger than `rows_max`, and its first message than `bytes_max`. If
    not, the batch is full, and so would be every other one with these limits."""


NO_LIMITS: Final = ScanLimits()


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """One journal's part of a micro-batch."""

    end: JournalState
    """Offset at which the next micro-batch continues."""
    rows: int
    """Committed messages, acknowledgements left out."""
    begins: Offsets
    """Beginning of each stretch of them, in the order of commits; shape (R,), bytes."""
    ends: Offsets
    """End of each; shape (R,), bytes."""
    damaged_begins: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Beginning of each damaged record, if those are wanted; shape (D,), bytes."""
    damaged_ends: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class ScanReplay:
    """A range [begin, end) to be read again, for the messages of one producer."""

    begin: int
    end: int
    producer: int


class _Producer(ProducerClocks):
    __slots__ = ("heard_ms", "replayed", "span")

    def __init__(self, state: ProducerState) -> None:
        super().__init__(state.min_clock, state.max_clock, state.begin)
        self.heard_ms = state.heard_ms
        self.span = ScanSpan()
        self.replayed: list[ScanSegment] | None = None
        """Messages that were read again, which precede the span."""

    def known_from(self, *, acknowledged_at: int) -> int:
        """Return the offset from which an acknowledgement's messages are known; `begin` if all of them are.

        Args:
            acknowledged_at: Offset of the acknowledgement.
        """
        if self.begin == NOTHING_PENDING or self.replayed is not None:
            return self.begin
        segments = self.span.segments
        return int(segments[0].begins[0]) if segments else acknowledged_at

    def state(self) -> ProducerState:
        """Return the state to be kept of the producer."""
        pending = self.begin != NOTHING_PENDING
        max_clock = self.max_clock if pending else 0
        return ProducerState(self.min_clock, self.begin, max_clock, self.heard_ms)


class CommitScan:
    """The scan of one journal."""

    def __init__(
        self,
        state: JournalState,
        *,
        stretch_bytes: int = STRETCH_BYTES,
        pending_bytes: int = PENDING_BYTES,
        keep_damaged: bool = False,
    ) -> None:
        """Continue from a state.

        Args:
            state: The state at which an earlier scan ended, or a bare offset.
            stretch_bytes: Target length of stretches of consecutive messages; with 1, each message is a stretch.
            pending_bytes: Memory for pending messages; those that exceed it are read again when they are committed.
            keep_damaged: Whether records that are no messages are wanted; else they are skipped.
        """
        self.position = state.offset
        """Offset from which to read on, bytes."""
        self.replay: ScanReplay | None = None
        """Range that must be read again before the scan can continue."""
        self._producers = {key: _Producer(kept) for key, kept in state.producers.items()}
        self._reading = ReadingTime(state.read_ms / 1000)
        self._heard: set[int] = set()
        """Producers with any message read in the micro-batch."""
        self._ring = PendingRing(pending_bytes)
        self._stretch_bytes = stretch_bytes
        self._keep_damaged = keep_damaged
        self._offset = state.offset
        self._table: MessageTable | None = None
        self._bounds: list[int] = []
        self._heads = NO_HEADS
        self._block = self._next = 0
        self._held: int | None = None
        """Producer whose acknowledgement the batch had no room for."""
        self.begin(NO_LIMITS)

    def begin(self, limits: ScanLimits) -> None:
        """Begin a micro-batch."""
        self._limits = limits
        self._began_at = self._offset
        self._found: list[tuple[Offsets, Offsets]] = []
        self._damaged: list[tuple[Offsets, Offsets]] = []
        self.rows = 0
        """Messages of the micro-batch so far."""
        self.full = False
        """Whether a limit was reached."""
        self._held = None
        self._heard.clear()

    def feed(self, table: MessageTable) -> None:
        """Add the messages from `position` on.

        Requires:
            `advance` has consumed everything fed before.
        """
        assert self._table is None, "messages were fed while others wait"
        if len(table):
            self._table, self._bounds = table, table.blocks()
            self._heads = table.heads(self._bounds[:-1])
            self._block = self._next = 0
            self.position = int(table.ends[-1])

    def advance(self) -> None:
        """Sequence what was fed, until the batch is full or a range must be read again."""
        table = self._table
        if table is None or self.replay is not None:
            return
        stop = self._admitted(table)
        while not self.full and self.replay is None:
            if self._next == len(table):
                self._table = None
                return
            if self._next >= stop:
                self.full = True
                return
            if self._next >= self._bounds[self._block + 1]:
                self._block += 1
            self._take_block(table, self._next, min(self._bounds[self._block + 1], stop))

    def feed_replay(self, table: MessageTable) -> None:
        """Add messages of the range to replay, of any producers, in order."""
        assert self.replay is not None, "no replay was asked for"
        producer = self._producers[self.replay.producer]
        assert producer.replayed is not None
        # Clock 0 means that a message opted out of sequencing, so it was delivered when it was first read.
        ours = (table.producers == np.uint64(self.replay.producer)) & (table.clocks != 0)
        found = table.select(ours)
        if len(found):
            producer.replayed.append(ScanSegment.of(found, 0, len(found)))

    def end_replay(self) -> None:
        """Note that the range was read to its end."""
        self.replay = None

    def finish(self, now_seconds: float | None = None) -> ScannedBatch:
        """End the micro-batch.

        Args:
            now_seconds: Monotonic seconds of this process, by which silent producers age. None: no producer ages.
        """
        if (
            self._offset > self._began_at
        ):  # A state may not change while nothing is read, or the query never rests.
            self._age(now_seconds)
        producers = {key: producer.state() for key, producer in self._producers.items()}
        state = JournalState(self._offset, producers, self._read_ms)
        begins, ends = zip(*self._found, strict=True) if self._found else ((), ())
        nothing = np.zeros(0, dtype=np.int64)
        bad_begins, bad_ends = zip(*self._damaged, strict=True) if self._damaged else ((), ())
        return ScannedBatch(
            state,
            self.rows,
            np.concatenate((nothing, *begins)),
            np.concatenate((nothing, *ends)),
            np.concatenate((nothing, *bad_begins)),
            np.concatenate((nothing, *bad_ends)),
        )

    def _admitted(self, table: MessageTable) -> int:
        """Return the index of the first message beyond the limit on bytes."""
        end = min(self._began_at + self._limits.bytes_max, UNLIMITED)
        stop = int(np.searchsorted(table.ends, end, side="right"))
        if stop <= self._next and self._offset == self._began_at and self._limits.may_exceed:
            return self._next + 1  # a message longer than the limit must not stop the query
        return stop

    def _take_block(self, table: MessageTable, start: int, stop: int) -> None:
        key, clock, flags = self._heads.of(self._block)
        if start > self._bounds[self._block]:
            clock = int(table.clocks[start])
        if flags == DAMAGED:
            self._take_damaged(table, start, stop)
            return
        if clock == 0:
            self._take_singles(table, start, stop)
            return
        self._heard.add(key)
        # A producer that is not known begins just before this message, so that the message is not taken for a
        # duplicate.
        producer = self._producers.get(key) or _Producer(ProducerState(clock - 1))
        if flags == Flags.ACK_TXN:
            self._producers[key] = producer
            self._acknowledge(table, producer, key, start)
            return
        clocks = [clock] if stop - start == 1 else table.clocks[start:stop]
        duplicates, _ = classify(flags, clocks, producer)
        self._pass(table, start + duplicates)
        start += duplicates
        if start == stop:
            return
        if flags == Flags.CONTINUE_TXN:
            self._hold_back(table, producer, start, stop)
        elif not (taken := self._take_singles(table, start, stop)):
            return  # There is no room: a producer that is not known yet stays so.
        else:
            self._settle(producer, int(clocks[duplicates + taken - 1]))
        self._producers[key] = producer

    def _take_damaged(self, table: MessageTable, start: int, stop: int) -> None:
        """Keep damaged records, or skip them."""
        if not self._keep_damaged:
            self._pass(table, stop)
            return
        count = min(stop - start, self._limits.rows_max - self.rows)
        if count <= 0:
            self.full = True
            return
        places = slice(start, start + count)
        # Copies: a view would keep the whole table.
        self._damaged.append((table.begins[places].copy(), table.ends[places].copy()))
        self.rows += count
        self._pass(table, start + count)

    def _take_singles(self, table: MessageTable, start: int, stop: int) -> int:
        """Take as many self-committing messages as there is room for; return their number."""
        count = min(stop - start, self._limits.rows_max - self.rows)
        if count <= 0:
            self.full = True
            return 0
        self._keep(table.begins[start : start + count], table.ends[start : start + count])
        self._pass(table, start + count)
        return count

    def _hold_back(self, table: MessageTable, producer: _Producer, start: int, stop: int) -> None:
        producer.hold(int(table.begins[start]), int(table.clocks[stop - 1]))
        self._ring.add(producer.span, ScanSegment.of(table, start, stop))
        self._pass(table, stop)

    def _acknowledge(self, table: MessageTable, producer: _Producer, key: int, index: int) -> None:
        clock = int(table.clocks[index])
        # What the ring dropped is read again, from the first pending message to the first that is in memory.
        known_from = producer.known_from(acknowledged_at=int(table.begins[index]))
        outcome = decide(Flags.ACK_TXN, clock, producer, in_memory=known_from == producer.begin)
        if outcome is SequenceOutcome.ACK_COMMIT_REPLAY:
            producer.replayed = []
            self.replay = ScanReplay(producer.begin, known_from, key)
            return
        if EFFECTS[outcome] is Effect.COMMIT and not self._commit(producer, through=clock):
            self.full, self._held = True, key  # the state says that it is to come
            return
        self._settle(producer, clock)
        self._pass(table, index + 1)

    def _commit(self, producer: _Producer, *, through: int) -> bool:
        """Take the messages that an acknowledgement commits; return False if there is no room for them."""
        segments = [*(producer.replayed or ()), *producer.span.segments]
        selection = CommitSelection(after=producer.min_clock, through=through)
        begins, ends = committed_of(segments, selection)
        room = self._limits.rows_max - self.rows
        # A transaction is never cut: a batch takes one that is too large only as its first.
        if len(begins) > room and (self.rows or not self._limits.may_exceed):
            return False
        self._keep(begins, ends)
        return True

    def _keep(self, begins: Offsets, ends: Offsets) -> None:
        if len(begins):
            self._found.append(_stretches(begins, ends, self._stretch_bytes))
            self.rows += len(begins)

    def _pass(self, table: MessageTable, index: int) -> None:
        """Move on to the message at `index`."""
        if index > self._next:
            self._next, self._offset = index, int(table.ends[index - 1])

    def _settle(self, producer: _Producer, clock: int) -> None:
        """Clear a producer's pending messages, up to `clock`."""
        self._ring.release(producer.span)
        producer.span = ScanSpan()
        producer.replayed = None
        producer.settle(clock)

    @property
    def _read_ms(self) -> int:
        return round(self._reading.seconds * 1000)

    def _age(self, now_seconds: float | None) -> None:
        """Drop producers that have been silent for long and have nothing pending
        (`broadsheet.journals.message.producers`).
        """
        if now_seconds is not None:
            self._reading.advance(now_seconds)
        for key in self._heard & self._producers.keys():
            self._producers[key].heard_ms = self._read_ms
        heard_cut = self._read_ms - int(PRUNE_HORIZON_SECONDS * 1000)
        silent = (key for key, known in self._producers.items() if known.heard_ms < heard_cut)
        held = None if self._held is None else self._producers[self._held]
        for key in stale_ids(
            self._producers, silent, horizon_seconds=PRUNE_HORIZON_SECONDS, keep=held
        ):
            del self._producers[key]


def _stretches(begins: Offsets, ends: Offsets, stretch_bytes: int) -> tuple[Offsets, Offsets]:
    """Join consecutive messages to stretches, cut at each multiple of `stretch_bytes` in the journal."""
    if len(begins) == 1:
        return begins.copy(), ends.copy()  # A view would keep the whole table.
    places = begins // stretch_bytes
    apart = np.flatnonzero((begins[1:] != ends[:-1]) | (places[1:] != places[:-1]))
    return begins[np.append(0, apart + 1)], ends[np.append(apart, len(ends) - 1)]
