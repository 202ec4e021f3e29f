"""Messages between their reading and their consumption: pending in memory, then committed and emitted.

A producer's pending messages are its *span*; the *ring* bounds the memory of all spans. A *run* is a stretch of
messages each of which commits itself. A *sequence* is what one acknowledgement commits: its producer's pending
messages, re-read from the journal if memory no longer holds them, and the acknowledgement at the end.

Source: gazette/core message/sequencer.go (Step, StartReplay: which messages are passed over, and in which order).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broadsheet.journals.errors import ReplayError
from broadsheet.journals.message.batch import UNREADABLE, MessageBatch, payload_sizes
from broadsheet.journals.message.framing import Offsets
from broadsheet.journals.message.sequence_rules import (
    NOTHING_PENDING,
    TXN_FLAGS,
    CommitSelection,
    ProducerClocks,
    SequenceOutcome,
    decide,
    duplicates_through,
)
from broadsheet.journals.message.uuid import Flags, FlagWords, Words

JOINED_MESSAGES: Final = 2048
"""Messages up to which parts of a sequence are joined; a longer part is delivered as it was read."""


# Memory is counted as that of Python's objects, because it is many times the framed bytes of a short message that is
# the only one of its span.
MESSAGE_BYTES: Final = 64
"""Memory per message beside its payload: 50 bytes in seven columns, and the newline."""
PART_BYTES: Final = 1_500
"""Memory per part beside its messages, as the only one of its span: the batch, its columns, the span."""
_DEAD_SLOTS_MIN: Final = 64
"""Minimum number of slots of released spans that are swept out together."""
_RELEASED: Final[deque[MessageBatch]] = deque(maxlen=0)
"""The parts of every released span, always empty. One deque per span would take 700 bytes each."""


class PendingSpan:
    """The pending messages of one producer that are still in memory.

    They are held as parts in offset order, none of them empty. A part is a stretch of messages that were adjacent when
    they were read.
    """

    __slots__ = ("in_ring", "messages", "parts", "size_bytes")

    def __init__(self) -> None:
        self.parts: deque[MessageBatch] = deque()
        self.messages = 0
        self.size_bytes = 0
        self.in_ring = True

    @property
    def begin(self) -> int | None:
        """Offset of the first message, bytes; None if there is none."""
        return int(self.parts[0].begins[0]) if self.parts else None


class Ring:
    """The memory bound on all spans together: by messages, by the memory that they take, and by age.

    The oldest messages are evicted first, and read from the journal again once they are acknowledged.

    `_slots` names the span of each part in order of arrival. A released span leaves its slots behind, but not its
    messages, which no longer count towards the bounds. Such slots are skipped, and swept out once they outnumber those
    in use: however much a busy journal commits, memory is in proportion to what is pending.
    """

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = max(1, messages_max)
        self._bytes_max = bytes_max
        self._slots: deque[tuple[PendingSpan, float]] = deque()
        """Each with its time of arrival."""
        self._parts = 0
        """Parts in all spans, which is the number of slots in use."""
        self._fresh: dict[PendingSpan, int] = {}
        """Number of the last parts of each span that may share memory with the batch that is sequenced."""
        self.messages = 0
        self.size_bytes = 0
        """Memory of all spans, bytes."""

    def add(self, span: PendingSpan, part: MessageBatch, *, now_seconds: float = 0.0) -> None:
        """Add messages to their span, and evict the oldest of any span while the bounds are exceeded.

        The last message is kept even if it alone exceeds the bound on bytes.

        Args:
            span: The span of their producer.
            part: The messages.
            now_seconds: By a clock that never steps.
        """
        size_bytes = memory_bytes(part)
        span.parts.append(part)
        self._fresh[span] = self._fresh.get(span, 0) + 1
        self._slots.append((span, now_seconds))
        self._parts += 1
        self._count(span, len(part), size_bytes)
        while self.messages > self._messages_max:
            self._evict_oldest(messages_max=self.messages - self._messages_max, bytes_max=None)
        while self.size_bytes > self._bytes_max and self.messages > 1:
            excess_bytes = self.size_bytes - self._bytes_max
            self._evict_oldest(messages_max=self.messages - 1, bytes_max=excess_bytes)
        if len(self._slots) > 2 * self._parts + _DEAD_SLOTS_MIN:
            self._slots = deque(slot for slot in self._slots if slot[0].in_ring)

    def end_batch(self) -> None:
        """Copy what is still pending of the batch that was sequenced, where it would keep much else in memory.

        Most transactions are acknowledged in the batch that holds their messages, so that most are never copied.
        """
        for span, count in self._fresh.items():
            if span.in_ring:
                for index in range(-min(count, len(span.parts)), 0):
                    if span.parts[index].is_sparse:
                        span.parts[index] = span.parts[index].compact()
        self._fresh.clear()

    def evict_older(self, than_seconds: float) -> None:
        """Evict the messages that arrived before a time, because so late an acknowledgement is unlikely."""
        while self._slots and self._slots[0][1] < than_seconds:
            if self._slots[0][0].in_ring:
                self._evict_oldest(messages_max=self.messages, bytes_max=None)
            else:
                self._slots.popleft()

    def release(self, span: PendingSpan) -> deque[MessageBatch]:
        """Remove a span from the ring, and return its messages that are still in memory."""
        span.in_ring = False
        self.messages -= span.messages
        self.size_bytes -= span.size_bytes
        parts, span.parts = span.parts, _RELEASED
        self._parts -= len(parts)
        return parts

    def _evict_oldest(self, *, messages_max: int, bytes_max: int | None) -> None:
        """Evict messages of the oldest part: enough to free `bytes_max`, at least one, at most `messages_max`."""
        while not self._slots[0][0].in_ring:
            self._slots.popleft()
        span, _ = self._slots[0]
        part = span.parts[0]
        count = min(len(part), messages_max)
        if bytes_max is not None:
            totals = (payload_sizes(part)[:count] + MESSAGE_BYTES).cumsum()
            count = min(count, int(totals.searchsorted(bytes_max)) + 1)
        if count == len(part):
            self._slots.popleft()
            span.parts.popleft()
            self._parts -= 1
            self._count(span, -count, -memory_bytes(part))
            return
        span.parts[0] = part.span(count, len(part))
        self._count(span, -count, memory_bytes(span.parts[0]) - memory_bytes(part))

    def _count(self, span: PendingSpan, messages: int, size_bytes: int) -> None:
        span.messages += messages
        span.size_bytes += size_bytes
        self.messages += messages
        self.size_bytes += size_bytes


def memory_bytes(part: MessageBatch) -> int:
    """Return the memory that a part takes."""
    return PART_BYTES + MESSAGE_BYTES * len(part) + int(payload_sizes(part).sum())


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Bytes [begin, end) of a journal that must be read again."""

    journal: str
    begin: int
    end: int


class RunEmission:
    """The emission of a run: messages each of which commits itself."""

    def __init__(self, messages: MessageBatch, *, read_through: Offsets) -> None:
        """Begin to emit.

        Args:
            messages: N messages, at least one.
            read_through: The journal's offset once each is consumed: the end of the message, or of the duplicates
                between it and the next one; shape (N,).
        """
        self.journal = messages.journal
        self.replay: ReplayRange | None = None
        self._messages = messages
        self._read_through = read_through
        self._consumed = 0

    def peek(self, limit: int) -> MessageBatch:
        """Return up to `limit` messages that come next."""
        return self._messages.span(self._consumed, self._consumed + limit)

    def take(self, count: int) -> Mapping[int, int]:
        """Consume the next `count` messages; return the last clock of each of their producers."""
        begin, end = self._consumed, self._consumed + count
        assert end <= len(self._messages), f"consumed {count} of {len(self._messages) - begin}"
        self._consumed = end
        part = self._messages.span(begin, end)
        if count == 1:
            clock = int(part.clocks[0])
            return {int(part.producers[0]): clock} if clock else {}
        sequenced = part.clocks != 0
        # Messages that opted out have no clock, and change no producer.
        if not sequenced.all():
            part = part.pick(sequenced.nonzero()[0])
        if not len(part):
            return {}
        if (part.producers == part.producers[0]).all():
            return {int(part.producers[0]): int(part.clocks[-1])}  # The usual case.
        return dict(zip(part.producers.tolist(), part.clocks.tolist(), strict=True))

    @property
    def offset(self) -> int:
        """The journal's offset after what was consumed."""
        return int(self._read_through[self._consumed - 1])

    @property
    def exhausted(self) -> bool:
        """True once every message was consumed."""
        return self._consumed == len(self._messages)


class SequenceEmission:
    """The emission of a sequence: a producer's messages that one acknowledgement commits, and the acknowledgement."""

    def __init__(
        self,
        in_memory: Iterable[MessageBatch],
        acknowledgement: MessageBatch,
        *,
        last_clock: int,
        replay: ReplayRange | None,
    ) -> None:
        """Begin to emit.

        Args:
            in_memory: Pending messages, by ascending clock.
            acknowledgement: One message, which comes last. Messages with a later clock are rolled back, i.e. skipped.
            last_clock: Clock up to which this producer's messages were consumed already.
            replay: Range that must be read again before `in_memory`, if any.
        """
        self.journal = acknowledgement.journal
        self.replay = replay
        self.end = int(acknowledgement.ends[0])
        """Offset after the acknowledgement, bytes."""
        self.clock = int(acknowledgement.clocks[0])
        """Clock of the acknowledgement."""
        self._in_memory = list(in_memory)
        self._acknowledgement = acknowledgement
        self._producer = int(acknowledgement.producers[0])
        self._last_clock = last_clock
        """Clock of the last message that is ready or was consumed."""
        self._selection = CommitSelection(after=last_clock, through=self.clock)
        self._replayed_through = replay.begin if replay else 0
        self._ready: deque[MessageBatch] = deque()
        self._taken = 0
        """Number of consumed messages of the first part."""
        if replay is None:
            self._admit_memory()

    def feed_replay(self, batch: MessageBatch) -> None:
        """Take messages of the replay's range, in order; those of other producers are skipped.

        Raises:
            ReplayError: the messages are not of the requested journal and range.
        """
        assert self.replay is not None, "no replay was asked for"
        if batch.journal != self.replay.journal:
            raise ReplayError(
                self.replay.journal, f"got messages of {batch.journal}, expected {self.replay}"
            )
        if not len(batch):
            return
        begin, end = int(batch.begins[0]), int(batch.ends[-1])
        if begin < self._replayed_through or end > self.replay.end:
            raise ReplayError(
                self.replay.journal,
                f"got messages [{begin}, {end}), expected ones within "
                f"[{self._replayed_through}, {self.replay.end})",
            )
        self._replayed_through = end
        self._admit_replay(batch)

    def end_replay(self) -> None:
        """Record that the range was read to its end; the messages after it are in memory."""
        assert self.replay is not None, "no replay was asked for"
        self.replay = None
        self._admit_memory()

    def peek(self, limit: int) -> MessageBatch | None:
        """Return up to `limit` messages that come next; None if they must be re-read first."""
        if not self._ready:
            return None
        first = self._ready[0].span(self._taken, self._taken + limit)
        room = min(limit, JOINED_MESSAGES) - len(first)
        parts = [first]
        for part in islice(self._ready, 1, None):
            if room <= 0:
                break
            parts.append(part.span(0, room))
            room -= len(part)
        return MessageBatch.joined(parts)

    def take(self, count: int) -> int:
        """Consume the next `count` messages; return the clock of the last of them."""
        left = count
        while self._ready:
            part = self._ready[0]
            rest = len(part) - self._taken
            if left < rest:
                self._taken += left
                return int(part.clocks[self._taken - 1])
            left -= rest
            self._taken = 0
            self._ready.popleft()
            if not left:
                return int(part.clocks[-1])
        raise AssertionError(f"consumed {count} messages, {left} more than there are")

    @property
    def next_begin(self) -> int | None:
        """Offset of the next message, bytes; None if more must be re-read to know it."""
        return int(self._ready[0].begins[self._taken]) if self._ready else None

    @property
    def exhausted(self) -> bool:
        """True once every message was consumed."""
        return self.replay is None and not self._ready

    def _admit_memory(self) -> None:
        """Make the messages in memory ready, whose clocks ascend, except those re-read before or rolled back."""
        for part in self._in_memory:
            begin, end = self._selection.admitted_range(part.clocks)
            if begin < end:
                self._ready.append(part.span(begin, end))
                self._last_clock = int(part.clocks[end - 1])
        self._in_memory.clear()
        # The acknowledgement bypasses the selection, in which the later clock of a rolled back message would hide it.
        if self.clock > self._last_clock:
            self._ready.append(self._acknowledgement)

    def _admit_replay(self, batch: MessageBatch) -> None:
        """Make ready the producer's messages that are neither duplicates nor rolled back."""
        ours = (batch.producers == self._producer).nonzero()[0]
        admitted = ours[self._selection.admitted_of(batch.clocks[ours])]
        if len(admitted):
            self._ready.append(batch.pick(admitted))
            self._last_clock = int(batch.clocks[admitted[-1]])


_duplicates_through: Final = duplicates_through(Flags.OUTSIDE_TXN)


def stretch_bounds(producers: Words, clocks: Words, flags: FlagWords | Words) -> NDArray[np.intp]:
    """Return the bounds of the stretches of N messages, from 0 to N.

    A stretch is of one producer's messages with the same flags and growing clocks, or of messages that opted out of
    sequencing, or of damaged records. Each acknowledgement is a stretch by itself.
    """
    count = len(clocks)
    if not count:
        return np.zeros(1, dtype=np.intp)
    sequenced = clocks != 0
    damaged = flags == UNREADABLE
    apart = (
        (producers[1:] != producers[:-1])
        | (flags[1:] != flags[:-1])
        | (clocks[1:] <= clocks[:-1])
        | (flags[1:] == Flags.ACK_TXN)
    )
    # Among messages outside of sequencing neither producer nor clock matters.
    apart &= sequenced[1:] | sequenced[:-1]
    apart |= sequenced[1:] != sequenced[:-1]
    apart |= damaged[1:] != damaged[:-1]
    return np.concatenate(([0], apart.nonzero()[0] + 1, [count]))


class Stretches:
    """The stretches of one batch, found in a few passes over its columns."""

    __slots__ = ("_bounds", "_in_txn", "batch")
    _bounds: list[int]
    _in_txn: list[int]

    def __init__(self, batch: MessageBatch) -> None:
        """Find the stretches of a batch, and the messages of transactions in it."""
        self.batch = batch
        clocks, flags = batch.clocks, batch.flags
        if len(batch) == 1:
            # The usual batch where little is written.
            self._bounds = [0, 1]
            self._in_txn = [0] if clocks[0] and int(flags[0]) in TXN_FLAGS else []
            return
        self._bounds = stretch_bounds(batch.producers, clocks, flags).tolist()
        in_txn = ((flags == Flags.CONTINUE_TXN) | (flags == Flags.ACK_TXN)) & (clocks != 0)
        self._in_txn = in_txn.nonzero()[0].tolist()
        """Of the messages of transactions, ascending."""

    def end_of_stretch(self, index: int) -> int:
        """Return the index after the stretch that holds message `index`."""
        return self._bounds[bisect_right(self._bounds, index)]

    def end_of_run(self, index: int) -> int:
        """Return the index of the first message of a transaction from `index` on; N if there is none."""
        found = bisect_left(self._in_txn, index)
        return self._in_txn[found] if found < len(self._in_txn) else len(self.batch)


_NO_INDICES: Final[NDArray[np.intp]] = np.zeros(0, dtype=np.intp)
_NO_OFFSETS: Final[Offsets] = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Run:
    """A stretch of messages that commit themselves, and the duplicates among them."""

    next_index: int
    """First message after the stretch."""
    indices: NDArray[np.intp] = field(default_factory=lambda: _NO_INDICES)
    """Of the messages to emit, shape (N,)."""
    read_through: Offsets = field(default_factory=lambda: _NO_OFFSETS)
    """The journal's offset once each is consumed: its end, or that of the duplicates after it; shape (N,)."""
    leading_duplicates_end: int | None = None
    """End of the duplicates before the first emitted message, bytes."""
    duplicates: int = 0
    unknown_flags: int = 0
    """Number of messages, duplicates too, whose flags are unknown."""
    producer_ids: set[int] = field(default_factory=set)
    """Producers of all its messages that did not opt out, duplicates too."""
    flags_void: bool = False
    """Whether a message that opted out of sequencing has flags."""
    spans_discarded: int = 0
    """Number of producers whose pending messages the run discards."""


def scan_run(
    batch: MessageBatch, start: int, stop: int, *, producers: Mapping[int, ProducerClocks]
) -> Run:
    """Return the run [start, stop).

    Producers change only as the run is consumed; until then, duplicates are recognised by what each would have
    committed.

    Args:
        batch: Holds the run.
        start: Index of its first message.
        stop: Index after its last one.
        producers: Of the journal, by id, before the run.

    Requires:
        Every message of the run commits itself, unless it is a duplicate.
    """
    run = Run(stop)
    if stop - start == 1 and batch.flags[start] == Flags.OUTSIDE_TXN:
        return _run_of_one(run, batch, start, producers)
    clocks, flags = batch.clocks[start:stop], batch.flags[start:stop]
    sequenced = clocks != 0
    ordinary = flags == Flags.OUTSIDE_TXN
    run.unknown_flags = int((sequenced & ~ordinary).sum())
    run.flags_void = bool((~sequenced & ~ordinary & (flags != UNREADABLE)).any())
    committed = np.ones(stop - start, dtype=np.bool_)
    for ours in _by_producer(batch.producers[start:stop], sequenced.nonzero()[0]):
        producer_id = int(batch.producers[start + ours[0]])
        run.producer_ids.add(producer_id)
        committed[ours] = _committed_of(run, producers.get(producer_id), clocks[ours])
    run.duplicates = stop - start - int(committed.sum())
    _place(run, start + committed.nonzero()[0], batch.ends[start:stop], start)
    return run


def _run_of_one(
    run: Run, batch: MessageBatch, index: int, producers: Mapping[int, ProducerClocks]
) -> Run:
    """Return the run of one ordinary message: the usual one where little is written."""
    clocks = batch.clocks[index : index + 1]
    committed = True
    if clocks[0]:
        producer_id = int(batch.producers[index])
        run.producer_ids.add(producer_id)
        committed = bool(_committed_of(run, producers.get(producer_id), clocks)[0])
    if committed:
        run.indices = np.array([index], dtype=np.intp)
        run.read_through = batch.ends[index : index + 1]
    else:
        run.duplicates = 1
        run.leading_duplicates_end = int(batch.ends[index])
    return run


def committed_part(batch: MessageBatch, run: Run) -> MessageBatch:
    """Return the messages that a run emits.

    A message that opted out of sequencing counts as committed by itself, whatever its flags: for example, it is not an
    acknowledgement, which no application sees.
    """
    part = batch.pick(run.indices)
    if not run.flags_void:
        return part
    void = (part.clocks == 0) & (part.flags != UNREADABLE)
    return replace(part, flags=np.where(void, np.uint16(Flags.OUTSIDE_TXN), part.flags))


def _by_producer(producers: Words, indices: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return indices in groups of one producer each, in order within a group."""
    if not len(indices):
        return []
    ids = producers[indices]
    if (ids == ids[0]).all():
        return [indices]  # The usual case.
    order = ids.argsort(kind="stable")
    grouped = ids[order]
    return np.split(indices[order], (grouped[1:] != grouped[:-1]).nonzero()[0] + 1)


def _committed_of(run: Run, producer: ProducerClocks | None, clocks: Words) -> NDArray[np.bool_]:
    """Return which of one producer's messages are no duplicates; both have shape (N,), N > 0."""
    # The first message of a producer makes it known, and so is no duplicate.
    floor = int(clocks[0]) - 1 if producer is None else _duplicates_through(producer)
    # A message settles its producer at its clock, so the floor of each is the greatest clock before it.
    before = np.empty_like(clocks)
    before[0] = max(floor, 0)
    np.maximum.accumulate(clocks[:-1], out=before[1:])
    np.maximum(before, before[0], out=before)
    committed: NDArray[np.bool_] = clocks > before
    if producer is not None and producer.begin != NOTHING_PENDING and committed.any():
        outcome = decide(Flags.OUTSIDE_TXN, int(clocks[committed.argmax()]), producer)
        run.spans_discarded += outcome is SequenceOutcome.SPAN_DISCARDED
    return committed


def _place(run: Run, indices: NDArray[np.intp], ends: Offsets, start: int) -> None:
    """Set which messages a run emits, and the offset after each."""
    run.indices = indices
    if not len(indices):
        run.leading_duplicates_end = int(ends[-1])
        return
    if indices[0] > start:
        run.leading_duplicates_end = int(ends[indices[0] - start - 1])
    # Duplicates are read through with the message before them.
    run.read_through = ends[np.append(indices[1:] - start, len(ends)) - 1]
