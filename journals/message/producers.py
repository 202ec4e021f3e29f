"""The producers of each journal: their sequencing progress, and how long silent ones stay known.

A producer must stay known for as long as copies of its messages may still arrive: an append whose answer was lost is
retried, and a successor repeats the last acknowledgement. Two measures must agree that this time is over:

    reading time       the reader's own clock, counted while the journal brings messages; a pause counts for a minute
    clocks of others   at least two other producers have clocks past the producer's last, by the same horizon

Reading time alone would err for a reader that lags, because an hour of journal may take it a day. Clocks alone would
err for a producer whose wall clock is ahead, because every other producer would look old. For the same reason the
second greatest clock counts, not the greatest.

A producer with a pending span is never forgotten, because its messages would be lost if it acknowledged them later.
Spark's journal source follows the same rule: `ReadingTime` and `stale_ids`.

Source: gazette/core message/sequencer.go (partialSequence, ProducerStates; Checkpoint: a horizon by the journal's
greatest clock, which this replaces).

Pure: time comes in as values.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broadsheet.journals.message.checkpoint import packed_ids, packed_segment, segment_id
from broadsheet.journals.message.sequence import PendingSpan
from broadsheet.journals.message.sequence_rules import NOTHING_PENDING, ProducerClocks
from broadsheet.journals.message.uuid import CLOCK_UNITS_PER_SECOND, PRODUCER_BYTES
from broadsheet.wire.shard_pb2 import Checkpoint

PRUNE_HORIZON_SECONDS: Final = 24 * 3600.0
"""Gazette's. Longer than any client repeats an append."""
PAUSE_SECONDS_MAX: Final = 60.0
"""The part of a pause that counts as reading time: a reader or writer that paused for a day resumes where it stopped,
and still retries the appends from before the pause."""
_PRUNES_A_HORIZON: Final = 1024
"""Scans for silent producers per horizon if there are many producers: not every checkpoint may scan all of them."""
_PRUNED_AT_ONCE: Final = 256
"""Number of producers up to which every checkpoint scans all of them."""


class ReadingTime:
    """The time for which one journal has been read, seconds."""

    __slots__ = ("_looked_at", "seconds")

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._looked_at: float | None = None

    def advance(self, now_seconds: float) -> None:
        """Record that the journal delivers messages now.

        Args:
            now_seconds: By a clock of this process that never steps.
        """
        if self._looked_at is not None:
            self.seconds += min(max(0.0, now_seconds - self._looked_at), PAUSE_SECONDS_MAX)
        self._looked_at = now_seconds


def clock_cut(clocks: Iterable[int], *, horizon_seconds: float) -> int:
    """Return the clock before which a producer counts as old; 0 or less if no producer does.

    Args:
        clocks: The last committed clock of each producer of a journal.
        horizon_seconds: The distance of the result from the second greatest of them.
    """
    newest = heapq.nlargest(2, clocks)
    if len(newest) < 2:
        return 0
    return newest[-1] - int(horizon_seconds * CLOCK_UNITS_PER_SECOND)


def stale_ids(
    producers: Mapping[int, ProducerClocks],
    silent: Iterable[int],
    *,
    horizon_seconds: float,
    keep: ProducerClocks | None,
) -> list[int]:
    """Return the ids of the silent producers that may be forgotten.

    Args:
        producers: Of one journal, by id.
        silent: Ids of those that have been silent for the horizon of reading time.
        horizon_seconds: The distance by which the clocks of others must be ahead, too.
        keep: A producer that is being emitted, or waits for room: without its state, what a crash left unconsumed would
            be lost.
    """
    idle = [
        producer_id
        for producer_id in silent
        if producers[producer_id].begin == NOTHING_PENDING and producers[producer_id] is not keep
    ]
    if not idle:
        return []  # The usual case; reading every clock would be slow.
    cut = clock_cut(
        (producer.min_clock for producer in producers.values()), horizon_seconds=horizon_seconds
    )
    return [producer_id for producer_id in idle if producers[producer_id].max_clock < cut]


_ENTRIES_MADE_MAX: Final = 512
"""Number of entries up to which each checkpoint makes all of them, as most do; above, only those that changed."""


class Producer(ProducerClocks):
    """One producer's progress in one journal. Compared by identity."""

    __slots__ = ("heard_seconds", "id", "is_named", "segment", "span")

    def __init__(self, producer_id: int, clock: int, begin: int = NOTHING_PENDING) -> None:
        super().__init__(clock, begin=begin)
        self.id = producer_id
        self.span: PendingSpan | None = None
        """Pending messages that are in memory; None if none are."""
        self.segment: ProducerSegment | None = None
        """Segment in which it was filed, if it was not heard since; None if a checkpoint must name it
        (`JournalProducers`)."""
        self.is_named = False
        """Whether any segment names it, even with an older state."""
        self.heard_seconds = 0.0
        """Time at which it was last heard, or restored, in its journal's reading time."""


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
    files_pending: bool = False
    """Whether producers with pending messages are filed as others are. A member that knows no segments would lose the
    messages of their transactions, so this is for shards that no Gazette member takes over."""
    pending_seconds: float = PRUNE_HORIZON_SECONDS
    """Distance by which the clocks of others are ahead of producers with pending messages that are filed. A Gazette
    member forgets those at its first checkpoint, so it lacks nothing if it takes over and does not know segments."""


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

    A checkpoint names the producers that were heard recently and those with something pending, unless they have been
    silent for a day: a writer that died within a transaction never ends it. The others are filed: packed into segments
    (`broadsheet.journals.message.checkpoint`), which the store keeps beside its checkpoints and to which the checkpoint
    refers.
    So the cost of a checkpoint depends on what changed, not on how many producers a journal has had.

        heard ──► recent ── too many, or silent for long; not pending lately ─► filed in a new segment
                     ▲                                                            │
                     └────────────────────────── heard again ◄────────────────────┘

    A new segment absorbs the segments before it that are less than twice as large. So sizes at least halve from each
    segment to the next: there are few, and a producer is packed again only logarithmically often in their number.

    A journal that never had more producers than fit in a checkpoint has no segments: its checkpoints are Gazette's.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}
        self.reading = ReadingTime()
        """For how long this process has read the journal."""
        self._pruned_at_seconds = 0.0
        """Time of the last scan for silent producers, in reading time."""
        self.evicted = 0
        """Producers forgotten because there were too many."""
        self._recent: OrderedDict[int, Producer] = OrderedDict()
        """Ordered by when they were last heard, latest at the end."""
        self._segments: list[ProducerSegment] = []
        """Oldest first."""
        self._forgotten: dict[int, None] = {}
        """Ids of forgotten producers that segments still name."""
        self._pending_filed_at_seconds = 0.0
        """Time of the last scan for producers that stopped within a transaction, in reading time."""
        self._new_content: dict[bytes, bytes] = {}
        """Contents of segments that no checkpoint has carried yet, by id."""
        self._entries = _Entries()

    @classmethod
    def restored(cls, source: Checkpoint.Source) -> JournalProducers:
        """Return the producers of a complete checkpoint.

        Raises:
            ValueError: the checkpoint refers to segments that its store did not put in.
        """
        if source.segments or source.forgotten:
            raise ValueError(
                "the checkpoint names segments that its store keeps, and the store did not put them in; "
                "return it as broadsheet.journals.message.checkpoint.put_together does"
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

    def heard(self, producer_id: int, clock: int) -> Producer:
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
        producer.heard_seconds = self.reading.seconds
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

    def prune(self, horizon_seconds: float, *, keep: Producer | None) -> None:
        """Forget the producers that were silent for longer than the horizon.

        Args:
            horizon_seconds: 0 forgets none.
            keep: The producer that is being emitted, which stays.
        """
        read_seconds = self.reading.seconds
        is_soon = read_seconds - self._pruned_at_seconds < horizon_seconds / _PRUNES_A_HORIZON
        if is_soon and len(self.by_id) > _PRUNED_AT_ONCE:
            return
        self._pruned_at_seconds = read_seconds
        heard_cut = read_seconds - horizon_seconds
        # No producer can have been silent for longer than the journal has been read.
        if horizon_seconds <= 0 or heard_cut <= 0:
            return
        silent = (id_ for id_, each in self.by_id.items() if each.heard_seconds < heard_cut)
        for producer_id in stale_ids(
            self.by_id, silent, horizon_seconds=horizon_seconds, keep=keep
        ):
            self.forget(self.by_id[producer_id])

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
        self, offset: int, limits: FilingLimits, *, keep: Producer | None = None
    ) -> Checkpoint.Source:
        """Return this journal's part of a checkpoint that refers to segments, if there are many producers.

        Each new segment carries its content, for the store to keep, only in the first checkpoint that names it.

        Args:
            offset: Offset up to which the journal was read, bytes.
            limits: Thresholds at which producers are filed.
            keep: The producer that is being emitted, whose state changes without being heard.
        """
        self._file_stopped(limits, keep=keep)
        self._file_silent(limits, keep=keep)
        source = self._entries.source_of(offset, self._recent)
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

    def _file_silent(self, limits: FilingLimits, *, keep: Producer | None) -> None:
        """File the producers that no longer need to be recent."""
        named = len(self._recent) + len(self._forgotten)
        if named <= (limits.filed_min if self._segments else limits.recent_max):
            return
        idle = [
            each
            for each in self._recent.values()
            if each is not keep and (limits.files_pending or each.begin == NOTHING_PENDING)
        ]
        cut = self.reading.seconds - limits.recent_seconds
        silent = sum(each.heard_seconds < cut for each in idle) if self._segments else 0
        too_many = len(idle) + len(self._forgotten) > limits.recent_max
        surplus = max(0, len(idle) - limits.recent_kept) if too_many else 0
        # `idle` is ordered by when they were last heard, so both groups are at its head.
        leaving = idle[: max(silent, surplus)]
        if too_many or len(leaving) >= limits.filed_min:
            self._file(leaving)

    def _file_stopped(self, limits: FilingLimits, *, keep: Producer | None) -> None:
        """File the producers that seem to have died within a transaction, if there are many; see `FilingLimits`."""
        read_seconds = self.reading.seconds
        is_soon = read_seconds - self._pending_filed_at_seconds < limits.recent_seconds
        if is_soon or len(self._recent) <= limits.recent_max:
            return
        self._pending_filed_at_seconds = read_seconds
        cut = clock_cut(
            (each.min_clock for each in self.by_id.values()), horizon_seconds=limits.pending_seconds
        )
        heard_cut = read_seconds - limits.recent_seconds
        stopped = [
            each
            for each in self._recent.values()
            if each.begin != NOTHING_PENDING
            and each.max_clock < cut
            and each.heard_seconds < heard_cut
            and each.span is None
            and each is not keep
        ]
        if len(stopped) >= limits.filed_min:
            self._file(stopped)

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
        content = packed_segment(
            ((each.id, each.min_clock) for each in members),
            forgotten,
            ((each.id, each.begin) for each in members if each.begin != NOTHING_PENDING),
        )
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


def _source_of(offset: int, producers: Mapping[int, Producer]) -> Checkpoint.Source:
    source = Checkpoint.Source(read_through=offset)
    for producer_id in sorted(producers):
        producer = producers[producer_id]
        source.producers.add(
            id=producer_id.to_bytes(PRODUCER_BYTES, "big"),
            state=Checkpoint.ProducerState(last_ack=producer.min_clock, begin=producer.begin),
        )
    return source


class _Entries:
    """Entries of producers, as bytes that are made again only of those that changed.

    A producer with an open transaction is in each checkpoint until it ends, so there may be very many.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, int, bytes]] = {}
        """By producer of the last source: its clock, where it begins, and its entry; empty if that was not needed."""

    def source_of(self, offset: int, producers: Mapping[int, Producer]) -> Checkpoint.Source:
        """Return what `_source_of` does."""
        before, self._kept = self._kept, {}
        if len(producers) <= _ENTRIES_MADE_MAX:
            return _source_of(offset, producers)
        kept, changed = self._kept, 0
        for producer_id in sorted(producers):
            producer = producers[producer_id]
            known = before.get(producer_id)
            if known is None or known[0] != producer.min_clock or known[1] != producer.begin:
                changed += 1
                known = producer.min_clock, producer.begin, b""
            kept[producer_id] = known
        # To encode entries one by one takes twice as long as to make all of them.
        if 2 * changed > len(producers):
            return _source_of(offset, producers)
        for producer_id, (clock, begin, entry) in kept.items():
            if not entry:
                entry = _source_of(0, {producer_id: producers[producer_id]}).SerializeToString()
                kept[producer_id] = clock, begin, entry
        source = Checkpoint.Source(read_through=offset)
        # Parts of a message, one after the other, are the message.
        source.MergeFromString(b"".join([entry for _, _, entry in kept.values()]))
        return source


@dataclass(frozen=True, slots=True)
class ProducerCounts:
    """The number of producers of all of a shard's sources."""

    known: int
    filed: int
    """Number of known producers that are silent, and that checkpoints do not name (`JournalProducers`)."""
    evicted: int
    """Number forgotten since the sequencer began, because there were too many."""
