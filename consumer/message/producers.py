"""How far each producer of each journal was sequenced.

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

# Messages that await their acknowledgement, as many as memory allows: oldest evicted first.
#
# Each producer's pending messages form a *span*, of parts: stretches of its messages as they stood
# next to each other in what was read. The ring bounds all spans together, by messages, by the
# memory that they take, and by age. What it evicts is read from the journal again once it is
# acknowledged.
#
# Memory is that of Python's objects, which is many times the framed bytes of short messages:
# measured with tracemalloc, a message of 100 bytes takes 325 in a part of 512 messages, and 1,810
# in a span of its own.
MESSAGE_BYTES: Final = 224
"""Of memory a message takes beside its payload: a slot in each of six columns, four integers, a bytes object's head."""
PART_BYTES: Final = 1_500
"""Of memory a part takes beside its messages, as the only one of its span: the batch, its columns, the span."""
_DEAD_SLOTS_MIN: Final = 64
"""Slots of released spans that are swept out together, at least."""
_RELEASED: Final[deque[MessageBatch]] = deque(maxlen=0)
"""The parts of every released span: none, for ever. A deque of its own would take 700 bytes a span."""


class Span:
    """The pending messages of one producer that are still in memory: parts in offset order, none of them empty."""

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
    """Owns the memory of all spans.

    `_slots` names the span of each part in order of arrival. A span that leaves the ring leaves its slots behind, but
    not its messages, which the bounds do not count any more. Such slots are passed over, and swept out once they
    outnumber those in use: whatever a busy journal commits, memory is in proportion to what is pending.
    """

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = max(1, messages_max)
        self._bytes_max = bytes_max
        self._slots: deque[tuple[Span, float]] = deque()
        """Each with when it arrived."""
        self._parts = 0
        """In all spans: slots in use."""
        self.messages = 0
        self.size_bytes = 0
        """Of memory."""

    def add(self, span: Span, part: MessageBatch, *, now_seconds: float = 0.0) -> None:
        """Add messages to their span, and evict the oldest of any span while there are too many.

        The last message itself is kept even if it alone exceeds the bound on bytes.

        Args:
            span: Of their producer.
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
        """Evict what arrived before a time: an acknowledgement that is so late will hardly come."""
        while self._slots and self._slots[0][1] < than_seconds:
            if self._slots[0][0].in_ring:
                self._evict_oldest(messages_max=self.messages, bytes_max=None)
            else:
                self._slots.popleft()

    def release(self, span: Span) -> deque[MessageBatch]:
        """Let go of a span, and return the messages of it that are still in memory."""
        span.in_ring = False
        self.messages -= span.messages
        self.size_bytes -= span.size_bytes
        parts, span.parts = span.parts, _RELEASED
        self._parts -= len(parts)
        return parts

    def _evict_oldest(self, *, messages_max: int, bytes_max: int | None) -> None:
        """Evict from the oldest part as many messages as that, or as few as make so many bytes, but one at least."""
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
        """Where it was filed and not heard since; None if a checkpoint must name it (`JournalProducers`)."""
        self.is_named = False
        """Whether any segment names it, be it with an older state."""
        self.heard_seconds = 0.0
        """When it was last heard, or restored, in its journal's reading time (`broadsheet.consumer.message.ageing`)."""


# The producers of one journal, and which of them a checkpoint must name itself.
#
# A checkpoint names the producers that were heard lately and those with something pending. The
# others are filed: packed into segments (`broadsheet.consumer.message.producer_segment`), which the store
# keeps beside its checkpoints and the checkpoint rests on. So a checkpoint costs what changed,
# however many producers a journal has had.
#
#     heard ──► recent ── too many, or silent for long, nothing pending ──► filed in a new segment
#                  ▲                                                            │
#                  └────────────────────────── heard again ◄────────────────────┘
#
# A new segment takes in those before it that are less than twice as large. So their sizes at least
# halve from each to the next: there are few, and a producer is packed again as often as the
# logarithm of their number says.
#
# A journal that never had more producers than fit in a checkpoint has no segments: its checkpoints
# are Gazette's.
_GROWTH: Final = 2
"""A new segment takes in those before it that are smaller than so many times its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilingLimits:
    """When producers are filed."""

    recent_max: int = 256
    """A journal's checkpoints name so many themselves before any is filed. Some 30 bytes each; most have fewer."""
    recent_kept: int = 128
    """When there are more, so many stay that were heard last: a Gazette member that takes over knows those alone."""
    recent_seconds: float = 120.0
    """Of reading time. Where there are segments, those silent for longer are filed too: it is far longer than an append
    whose answer was lost is repeated."""
    filed_min: int = 64
    """Those are filed so many at a time: a segment of a few is hardly worth its name."""


@dataclass(slots=True, eq=False)
class ProducerSegment:
    """What one segment holds."""

    id: bytes
    members: Sequence[Producer]
    """As packed, those longest silent first. Those heard again since are members no more (`Producer.segment`)."""
    forgotten: Sequence[int]
    passed: int = 0
    """So many at the head are no members any more."""

    @property
    def size(self) -> int:
        """Producers that it names."""
        return len(self.members) + len(self.forgotten)

    def live(self) -> Iterator[Producer]:
        """Yield those that were not heard since, longest silent first."""
        for index in range(self.passed, len(self.members)):
            producer = self.members[index]
            if producer.segment is self:
                yield producer
            elif index == self.passed:
                self.passed += 1


class JournalProducers:
    """Of one journal, by id."""

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}
        self.evicted = 0
        """Producers forgotten because there were too many."""
        self._recent: OrderedDict[int, Producer] = OrderedDict()
        """Heard last at the end."""
        self._segments: list[ProducerSegment] = []
        """Oldest first."""
        self._forgotten: dict[int, None] = {}
        """Segments name them still."""
        self._new_content: dict[bytes, bytes] = {}
        """Of segments that no checkpoint has carried yet."""

    @classmethod
    def restored(cls, source: Checkpoint.Source) -> JournalProducers:
        """Return the producers as a whole checkpoint knew them.

        Raises:
            ValueError: the checkpoint rests on segments which its store did not put in.
        """
        if source.segments or source.forgotten:
            raise ValueError(
                "the checkpoint rests on segments that its store keeps, and the store did not put them in; "
                "return it as broadsheet.consumer.message.producer_segment.put_together does"
            )
        producers = cls()
        for entry in source.producers:
            producer_id = int.from_bytes(entry.id, "big")
            producers._know(Producer(producer_id, entry.state.last_ack, entry.state.begin))
        return producers

    @property
    def filed(self) -> int:
        """How many of them segments hold."""
        return len(self.by_id) - len(self._recent)

    def heard(self, producer_id: int, clock: int, *, heard_seconds: float) -> Producer:
        """Return a producer that is heard now; if it is new, it has committed up to `clock`."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = Producer(producer_id, clock)
            producer.is_named = self._forgotten.pop(producer_id, self) is None
            self._know(producer)
        elif producer.segment is None:
            self._recent.move_to_end(producer_id)
        else:
            producer.segment = None
            self._recent[producer_id] = producer
        producer.heard_seconds = heard_seconds
        return producer

    def forget(self, producer: Producer) -> None:
        """Know a producer no more.

        Requires:
            It has nothing pending.
        """
        del self.by_id[producer.id]
        self._recent.pop(producer.id, None)
        producer.segment = None
        if producer.is_named:
            self._forgotten[producer.id] = None

    def evict(self, count: int, *, keep: Producer | None) -> int:
        """Forget up to `count` producers, those longest silent first; return how many.

        Args:
            count: Of those with nothing pending; the others must be known, or their messages would be lost.
            keep: Is being emitted.
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
        """Return this journal's part of a whole checkpoint; by ascending id, so that equal states are equal bytes."""
        return _source_of(offset, self.by_id)

    def incremental_source(
        self, offset: int, limits: FilingLimits, *, read_seconds: float
    ) -> Checkpoint.Source:
        """Return this journal's part of a checkpoint that rests on segments, if there are many producers.

        Each new segment has its content, for the store to keep: only in the one that is asked for first.

        Args:
            offset: Read through, bytes.
            limits: When producers are filed.
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
        """File those that need not be recent any more."""
        named = len(self._recent) + len(self._forgotten)
        if named <= (limits.filed_min if self._segments else limits.recent_max):
            return
        idle = [each for each in self._recent.values() if each.begin == NOTHING_PENDING]
        cut = read_seconds - limits.recent_seconds
        silent = sum(each.heard_seconds < cut for each in idle) if self._segments else 0
        too_many = len(idle) + len(self._forgotten) > limits.recent_max
        surplus = max(0, len(idle) - limits.recent_kept) if too_many else 0
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
        # What the oldest of all forgets nobody else names.
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
        for old in taken_in:
            self._new_content.pop(old.id, None)
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


# How many producers a shard has to do with.


@dataclass(frozen=True, slots=True)
class ProducerCounts:
    """How many producers a shard's sources have, in all."""

    known: int
    filed: int
    """Of those, the ones that have been silent, and that checkpoints do not name (`JournalProducers`)."""
    evicted: int
    """Forgotten since the sequencer began, because there were too many."""
