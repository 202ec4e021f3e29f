"""The producers of one journal, and which of them a checkpoint must name itself.

A checkpoint names the producers that were heard lately and those with something pending. The others are filed: packed
into segments (`consumer.message.producer_segment`), which the store keeps beside its checkpoints and the checkpoint
rests on. So a checkpoint costs what changed, however many producers a journal has had.

    heard ──► recent ── too many, or silent for long, nothing pending ──► filed in a new segment
                 ▲                                                            │
                 └────────────────────────── heard again ◄────────────────────┘

A new segment takes in those before it that are less than twice as large. So their sizes at least halve from each to the
next: there are few, and a producer is packed again as often as the logarithm of their number says.

A journal that never had more producers than fit in a checkpoint has no segments: its checkpoints are Gazette's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from consumer.message.producer_segment import packed_ids, packed_segment, segment_id
from consumer.message.producers import Producer
from consumer.message.sequence_rules import NOTHING_PENDING
from consumer.message.uuid import PRODUCER_BYTES
from consumer.protocol.shard_pb2 import Checkpoint

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
                "return it as consumer.message.producer_segment.put_together does"
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
