"""The sequencing progress of each producer in each journal.

Source: gazette/core message/sequencer.go (partialSequence, ProducerStates).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from broadsheet.consumer.message.batch import MessageBatch
from broadsheet.consumer.message.producer_segment import packed_ids, packed_segment, segment_id
from broadsheet.consumer.message.sequence_rules import NOTHING_PENDING, ProducerClocks
from broadsheet.consumer.message.uuid import PRODUCER_BYTES
from broadsheet.consumer.protocol.shard_pb2 import Checkpoint

# Memory is counted as that of Python's objects, because it is many times the framed bytes of short messages: measured
# with tracemalloc, a message of 100 bytes takes 325 in a part of 512 messages, and 1,810 as the only one of its span.
MESSAGE_BYTES: Final = 224
"""Memory per message beside its payload: a slot in each of six columns, four integers, a bytes object's head."""
PART_BYTES: Final = 1_500
"""Memory per part beside its messages, as the only one of its span: the batch, its columns, the span."""
_DEAD_SLOTS_MIN: Final = 64
"""Minimum number of slots of released spans that are swept out together."""
_RELEASED: Final[deque[MessageBatch]] = deque(maxlen=0)
"""The parts of every released span, always empty. One deque per span would take 700 bytes each."""


class Span:
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
        return self.parts[0].begins[0] if self.parts else None


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
        self._slots: deque[tuple[Span, float]] = deque()
        """Each with its time of arrival."""
        self._parts = 0
        """Parts in all spans, which is the number of slots in use."""
        self.messages = 0
        self.size_bytes = 0
        """Memory of all spans, bytes."""

    def add(self, span: Span, part: MessageBatch, *, now_seconds: float = 0.0) -> None:
        """Add messages to their span, and evict the oldest of any span while the bounds are exceeded.

        The last message is kept even if it alone exceeds the bound on bytes.

        Args:
            span: The span of their producer.
            part: The messages.
            now_seconds: By a clock that never steps.
        """
        size_bytes = memory_bytes(part)
        span.parts.append(part)
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

    def evict_older(self, than_seconds: float) -> None:
        """Evict the messages that arrived before a time, because so late an acknowledgement is unlikely."""
        while self._slots and self._slots[0][1] < than_seconds:
            if self._slots[0][0].in_ring:
                self._evict_oldest(messages_max=self.messages, bytes_max=None)
            else:
                self._slots.popleft()

    def release(self, span: Span) -> deque[MessageBatch]:
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
            totals = list(accumulate(MESSAGE_BYTES + len(each) for each in part.payloads[:count]))
            count = min(count, bisect_left(totals, bytes_max) + 1)
        if count == len(part):
            self._slots.popleft()
            span.parts.popleft()
            self._parts -= 1
            self._count(span, -count, -memory_bytes(part))
            return
        span.parts[0] = part.span(count, len(part))
        self._count(span, -count, memory_bytes(span.parts[0]) - memory_bytes(part))

    def _count(self, span: Span, messages: int, size_bytes: int) -> None:
        span.messages += messages
        span.size_bytes += size_bytes
        self.messages += messages
        self.size_bytes += size_bytes


def memory_bytes(part: MessageBatch) -> int:
    """Return the memory that a part takes."""
    return PART_BYTES + MESSAGE_BYTES * len(part) + sum(map(len, part.payloads))


class Producer(ProducerClocks):
    """One producer's progress in one journal. Compared by identity."""

    __slots__ = ("heard_seconds", "id", "is_named", "segment", "span")

    def __init__(self, producer_id: int, clock: int, begin: int = NOTHING_PENDING) -> None:
        super().__init__(clock, begin=begin)
        self.id = producer_id
        self.span: Span | None = None
        """Pending messages that are in memory; None if none are."""
        self.segment: ProducerSegment | None = None
        """Segment in which it was filed, if it was not heard since; None if a checkpoint must name it
        (`JournalProducers`)."""
        self.is_named = False
        """Whether any segment names it, even with an older state."""
        self.heard_seconds = 0.0
        """Time at which it was last heard, or restored, in its journal's reading time
        (`broadsheet.consumer.message.ageing`)."""


_GROWTH: Final = 2
"""A new segment absorbs the segments before it that are smaller than this many times its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilingLimits:
    """The thresholds at which producers are filed."""

    recent_max: int = 256
    """Producers that a journal's checkpoints name before any is filed. Some 30 bytes each; most journals have fewer."""
    recent_kept: int = 128
    """Producers heard last that stay when others are filed: a Gazette member that takes over knows only those."""
    recent_seconds: float = 120.0
    """Reading time after which silent producers are filed too, if there are segments: far longer than an append whose
    answer was lost is retried."""
    filed_min: int = 64
    """Minimum number of silent producers that are filed together: a segment of a few is not worth its overhead."""


@dataclass(slots=True, eq=False)
class ProducerSegment:
    """The producers of one segment."""

    id: bytes
    members: Sequence[Producer]
    """As packed, longest silent first. Those heard again since are no longer members (`Producer.segment`)."""
    forgotten: Sequence[int]
    passed: int = 0
    """Number at the head that are no longer members."""

    @property
    def size(self) -> int:
        """Number of producers that it names."""
        return len(self.members) + len(self.forgotten)

    def live(self) -> Iterator[Producer]:
        """Yield the producers that were not heard since, longest silent first."""
        for index in range(self.passed, len(self.members)):
            producer = self.members[index]
            if producer.segment is self:
                yield producer
            elif index == self.passed:
                self.passed += 1


class JournalProducers:
    """The producers of one journal, by id, and the choice of those that a checkpoint must name.

    A checkpoint names the producers that were heard recently and those with something pending. The others are filed:
    packed into segments (`broadsheet.consumer.message.producer_segment`), which the store keeps beside its checkpoints
    and to which the checkpoint refers. So the cost of a checkpoint depends on what changed, not on how many producers a
    journal has had.

        heard ──► recent ── too many, or silent for long, nothing pending ──► filed in a new segment
                     ▲                                                            │
                     └────────────────────────── heard again ◄────────────────────┘

    A new segment absorbs the segments before it that are less than twice as large. So sizes at least halve from each
    segment to the next: there are few, and a producer is packed again only logarithmically often in their number.

    A journal that never had more producers than fit in a checkpoint has no segments: its checkpoints are Gazette's.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}
        self.evicted = 0
        """Producers forgotten because there were too many."""
        self._recent: OrderedDict[int, Producer] = OrderedDict()
        """Ordered by when they were last heard, latest at the end."""
        self._segments: list[ProducerSegment] = []
        """Oldest first."""
        self._forgotten: dict[int, None] = {}
        """Ids of forgotten producers that segments still name."""
        self._new_content: dict[bytes, bytes] = {}
        """Contents of segments that no checkpoint has carried yet, by id."""

    @classmethod
    def restored(cls, source: Checkpoint.Source) -> JournalProducers:
        """Return the producers of a complete checkpoint.

        Raises:
            ValueError: the checkpoint refers to segments that its store did not put in.
        """
        if source.segments or source.forgotten:
            raise ValueError(
                "the checkpoint names segments that its store keeps, and the store did not put them in; "
                "return it as broadsheet.consumer.message.producer_segment.put_together does"
            )
        producers = cls()
        for entry in source.producers:
            producer_id = int.from_bytes(entry.id, "big")
            producers._know(Producer(producer_id, entry.state.last_ack, entry.state.begin))
        return producers

    @property
    def filed(self) -> int:
        """Number of producers that segments hold."""
        return len(self.by_id) - len(self._recent)

    def heard(self, producer_id: int, clock: int, *, heard_seconds: float) -> Producer:
        """Record that a producer is heard now, and return it; a new one has committed up to `clock`."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = Producer(producer_id, clock)
            # The values are None, so the default `self` means that it was not forgotten. If it was, a segment still
            # names it.
            producer.is_named = self._forgotten.pop(producer_id, self) is None
            self._know(producer)
        elif producer.segment is None:
            self._recent.move_to_end(producer_id)
        else:
            # Its segment still has its older state, which the checkpoint's own entry overrides.
            producer.segment = None
            self._recent[producer_id] = producer
        producer.heard_seconds = heard_seconds
        return producer

    def forget(self, producer: Producer) -> None:
        """Forget a producer.

        Requires:
            It has nothing pending.
        """
        del self.by_id[producer.id]
        self._recent.pop(producer.id, None)
        producer.segment = None
        # Otherwise a segment would bring it back at the next restore.
        if producer.is_named:
            self._forgotten[producer.id] = None

    def evict(self, count: int, *, keep: Producer | None) -> int:
        """Forget up to `count` producers, longest silent first; return the number forgotten.

        Producers with something pending stay, because their messages would be lost.

        Args:
            count: Maximum number to forget.
            keep: The producer that is being emitted, which stays too.
        """
        leaving: list[Producer] = []
        for producer in self._longest_silent_first():
            if len(leaving) >= count:
                break
            if producer.begin == NOTHING_PENDING and producer is not keep:
                leaving.append(producer)
        for producer in leaving:
            self.forget(producer)
        self.evicted += len(leaving)
        return len(leaving)

    def source(self, offset: int) -> Checkpoint.Source:
        """Return this journal's part of a complete checkpoint.

        Producers are in order of their ids, so that equal states are equal bytes.
        """
        return _source_of(offset, self.by_id)

    def incremental_source(
        self, offset: int, limits: FilingLimits, *, read_seconds: float
    ) -> Checkpoint.Source:
        """Return this journal's part of a checkpoint that refers to segments, if there are many producers.

        Each new segment carries its content, for the store to keep, only in the first checkpoint that names it.

        Args:
            offset: Offset up to which the journal was read, bytes.
            limits: Thresholds at which producers are filed.
            read_seconds: The journal's reading time.
        """
        self._file_silent(limits, read_seconds)
        source = _source_of(offset, self._recent)
        for segment in self._segments:
            source.segments.add(id=segment.id, content=self._new_content.get(segment.id, b""))
        source.forgotten = packed_ids(self._forgotten)
        self._new_content.clear()
        return source

    def _know(self, producer: Producer) -> None:
        self.by_id[producer.id] = producer
        self._recent[producer.id] = producer

    def _longest_silent_first(self) -> Iterator[Producer]:
        for segment in self._segments:
            yield from segment.live()
        yield from self._recent.values()

    def _file_silent(self, limits: FilingLimits, read_seconds: float) -> None:
        """File the producers that no longer need to be recent."""
        named = len(self._recent) + len(self._forgotten)
        if named <= (limits.filed_min if self._segments else limits.recent_max):
            return
        idle = [each for each in self._recent.values() if each.begin == NOTHING_PENDING]
        cut = read_seconds - limits.recent_seconds
        silent = sum(each.heard_seconds < cut for each in idle) if self._segments else 0
        too_many = len(idle) + len(self._forgotten) > limits.recent_max
        surplus = max(0, len(idle) - limits.recent_kept) if too_many else 0
        # `idle` is ordered by when they were last heard, so both groups are at its head.
        leaving = idle[: max(silent, surplus)]
        if too_many or len(leaving) >= limits.filed_min:
            self._file(leaving)

    def _file(self, leaving: list[Producer]) -> None:
        taken_in: list[ProducerSegment] = []
        size = len(leaving) + len(self._forgotten)
        while self._segments and self._segments[-1].size < _GROWTH * size:
            taken_in.insert(0, self._segments.pop())
            size += taken_in[0].size
        members = [producer for segment in taken_in for producer in segment.live()] + leaving
        # The oldest segment needs no forgotten ids, because no older segment names them.
        forgotten = dict.fromkeys(
            producer
            for part in (*(segment.forgotten for segment in taken_in), self._forgotten)
            for producer in part
            if self._segments
        )
        self._forgotten.clear()
        content = packed_segment(((each.id, each.min_clock) for each in members), forgotten)
        segment = ProducerSegment(segment_id(content), members, tuple(forgotten))
        for producer in members:
            producer.segment = segment
            producer.is_named = True
            self._recent.pop(producer.id, None)
        # Later checkpoints do not name an absorbed segment, so the store need not get its content.
        for old in taken_in:
            self._new_content.pop(old.id, None)
        # No members are left, and no older segment names a forgotten producer.
        if not segment.size:
            return
        self._segments.append(segment)
        self._new_content[segment.id] = content


def _source_of(offset: int, producers: dict[int, Producer]) -> Checkpoint.Source:
    source = Checkpoint.Source(read_through=offset)
    for producer_id, producer in sorted(producers.items()):
        source.producers.add(
            id=producer_id.to_bytes(PRODUCER_BYTES, "big"),
            state=Checkpoint.ProducerState(last_ack=producer.min_clock, begin=producer.begin),
        )
    return source


@dataclass(frozen=True, slots=True)
class ProducerCounts:
    """The number of producers of all of a shard's sources."""

    known: int
    filed: int
    """Number of known producers that are silent, and that checkpoints do not name (`JournalProducers`)."""
    evicted: int
    """Number forgotten since the sequencer began, because there were too many."""
