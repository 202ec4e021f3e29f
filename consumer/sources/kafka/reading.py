"""One reading of a part of topics, from a checkpoint on; new partitions are found as they are added.

settle ──► partitions ──► poll ──► confirm ──► batches, markers
▲           │
└─ look ────┘   every `discovery_seconds`: ids of topics, new partitions

Messages do not tell the id of their topic. If a topic is deleted and created again, the client goes on at the next
offset of the new one as soon as that is long enough. So ids are asked for once more behind the messages, before these
are delivered, unless they were asked for just now.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import structlog
from confluent_kafka import Message

from broadsheet.consumer.errors import (
    SourceDataLossError,
    SourceError,
    SourceRecreatedError,
    SourceUnavailableError,
)
from broadsheet.consumer.sources.kafka.partitions import (
    ListedTopic,
    PartitionReader,
    Polled,
    is_end_of_partition,
    key_of,
    mends_itself,
    told_apart,
)
from broadsheet.consumer.sources.kafka.places import (
    Begun,
    Earliest,
    Start,
    TopicEntry,
    TopicPartitionKey,
    begun_again,
    begun_partitions,
    offset_of,
    partition_name,
    reads,
    topic_entry,
    topic_name,
)
from broadsheet.consumer.sources.kafka.records import batch_of, marker
from broadsheet.consumer.sources.kafka.topic_ids import TopicIds
from broadsheet.consumer.sources.metrics import UNAVAILABLE, SourceMetrics, kind_of
from broadsheet.consumer.sources.part import Latest, Part
from broadsheet.journals.errors import ReplayError
from broadsheet.journals.message.batch import MessageBatch, MessageType
from broadsheet.runtime.clock import Clock
from broadsheet.wire.shard_pb2 import Checkpoint

MARKED_SECONDS: Final = 1.0
"""Time without a message after which offsets without messages are committed by themselves."""
CONFIRMED_SECONDS: Final = 0.1
"""Age of an answer about ids that is still taken for messages that came since. Before the client reads a topic that was
created again, it is refused once, pauses (`fetch.error.backoff.ms`, 500 by default) and asks for the new leaders: the
first message was seen 0.53 s after the deletion. An answer takes 0.3 ms (p50, a broker on the same machine)."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReadingSettings:
    """Settings that all readings of a source share."""

    topics: Sequence[str]
    message_type: MessageType
    start: Start
    sequenced: bool
    read_recreated: bool
    discovery_seconds: float
    clock: Clock
    metrics: SourceMetrics

    @property
    def name(self) -> str:
        """The topics, for errors."""
        return ",".join(self.topics)


class TopicsReading:
    """Reads one part of the topics."""

    def __init__(
        self,
        part: Part,
        checkpoint: Checkpoint,
        reader: PartitionReader,
        ids: TopicIds,
        settings: KafkaReadingSettings,
    ) -> None:
        """Create the reading.

        Args:
            part: What to read.
            checkpoint: Where to go on.
            reader: Its own consumer.
            ids: Tells the topics' ids.
            settings: Of the source.
        """
        self._part = part
        self._checkpoint = checkpoint
        self._reader = reader
        self._ids = ids
        self._settings = settings
        self._entries: dict[str, TopicEntry] = {}
        """Of topics that were begun, by topic."""
        self._begun: dict[TopicPartitionKey, Begun] = {}
        """Entries of partitions, also of other parts if the checkpoint has them."""
        self._next: dict[TopicPartitionKey, int] = {}
        """Kafka's offset behind what was read, of each partition that is read."""
        self._again: set[TopicPartitionKey] = set()
        """Partitions of which the checkpoint's offsets are of an earlier topic."""
        self._notes: dict[str, bytes] = {}
        """For the checkpoint."""
        self._marked: set[TopicPartitionKey] = set()
        """Partitions that were read further than their last message, and no message came since."""
        self._marked_at = 0.0
        """When that was last, monotonic seconds."""
        self._confirmed_at = 0.0
        """When the ids were last asked for that are those of the checkpoint, monotonic seconds."""
        self._is_over = False
        """A topic was created again: reading begins again from the checkpoint."""

    async def settle(self) -> Mapping[str, bytes]:
        """Settle where each partition begins, and start to fetch; return what the checkpoint must know of it.

        Raises:
            SourceRecreatedError: a topic is not the one that the checkpoint is of.
            SourceError: the topics cannot be looked at.
        """
        with self._counting_errors():
            for topic in self._settings.topics:
                self._begun |= begun_partitions(self._checkpoint, topic)
                entry = topic_entry(self._checkpoint, topic)
                if entry is not None:
                    self._entries[topic] = entry
            await self._look(first=True)
        return self._take_notes()

    async def batches(self) -> AsyncGenerator[MessageBatch, None]:
        """Yield batches of one partition each, until a topic was created again; the reading must be settled."""
        try:
            with self._counting_errors():
                async with aclosing(self._polled()) as batches:
                    async for batch in batches:
                        yield batch
        finally:
            for key in self._next:
                self._settings.metrics.on_left(partition_name(*key))

    @property
    def has_begun(self) -> bool:
        """True once it is settled where a partition begins."""
        return bool(self._next)

    def high_watermarks(self) -> Mapping[str, int]:
        """Return the last known ends of the read partitions, as our offsets by name."""
        known = {key: self._reader.high_watermark(key) for key in self._next}
        return {
            partition_name(*key): end + self.shift_of(key)
            for key, end in known.items()
            if end is not None
        }

    def shift_of(self, key: TopicPartitionKey) -> int:
        """Return our offsets minus Kafka's, of a partition."""
        begun = self._begun.get(key)
        return 0 if begun is None else begun.shift

    @contextmanager
    def _counting_errors(self) -> Iterator[None]:
        try:
            yield
        except SourceError as error:
            self._settings.metrics.on_error(error.source, kind_of(error))
            raise

    async def _polled(self) -> AsyncGenerator[MessageBatch, None]:
        clock, settings = self._settings.clock, self._settings
        next_look = clock.monotonic_seconds() + settings.discovery_seconds
        while True:
            if clock.monotonic_seconds() >= next_look:
                await self._look(first=False)
                if self._is_over:
                    return
                next_look = clock.monotonic_seconds() + settings.discovery_seconds
            polled = await self._reader.poll()
            if polled.messages:
                await self._confirm(clock.monotonic_seconds())
                if self._is_over:
                    return
            else:
                self._note_marks(clock.monotonic_seconds())
            if self._notes:
                yield MessageBatch.note(
                    topic_name(settings.name), settings.message_type, self._take_notes()
                )
            try:
                for batch in self._batches_of(polled):
                    yield batch
            except SourceDataLossError as error:
                raise await self._with_offsets(error) from error

    async def _with_offsets(self, error: SourceDataLossError) -> SourceDataLossError:
        """Return the error of a partition with the offsets between which its messages are lost."""
        key = next((each for each in self._next if partition_name(*each) == error.source), None)
        if key is None:
            return error
        try:
            oldest = (await self._reader.first_offsets([key], Earliest()))[key]
            end = (await self._reader.first_offsets([key], Latest()))[key]
        except SourceError:
            return error
        wanted = self._next[key]
        lost = f"offsets {wanted} to {oldest - 1} are lost, " if oldest > wanted else ""
        return SourceDataLossError(
            error.source,
            f"{error.detail}. The next one is at offset {wanted}; {lost}there are {oldest} to {end}",
        )

    def _take_notes(self) -> dict[str, bytes]:
        notes, self._notes = self._notes, {}
        return notes

    def _note_marks(self, now: float) -> None:
        """Have offsets without messages committed if no message comes that would take them along."""
        if self._marked and now >= self._marked_at + MARKED_SECONDS:
            self._notes |= {
                partition_name(*key): self._begun.get(key, Begun(0)).encode()
                for key in self._marked
            }
            self._marked.clear()

    async def _look(self, *, first: bool) -> None:
        """Compare the topics with those that the checkpoint is of, and start to read partitions that are not read yet.

        If a topic was begun, an unknown partition was added to it since, so it is read from its beginning.
        """
        topics = {topic: await self._reader.topic(topic) for topic in self._settings.topics}
        begun = self._entries.keys() | {topic for topic, _ in self._begun}
        # Before any offset is looked up: an offset of the next topic under the id of this one is found out by the next
        # look, an offset of this topic under the id of the next would not be.
        await self._identify(topics, first=first)
        if self._is_over:
            return
        found: dict[TopicPartitionKey, int] = {}
        for topic, listed in topics.items():
            mine = [(topic, number) for number in listed.partitions if reads(self._part, number)]
            new = [key for key in mine if key not in self._next]
            known = {key: offset for key in new if (offset := self._known_offset(key)) is not None}
            found |= known | await self._begin(
                [key for key in new if key not in known],
                Earliest() if topic in begun else self._settings.start,
            )
            if topic not in self._entries:
                self._entries[topic] = TopicEntry()
                self._notes[topic_name(topic)] = TopicEntry().encode()
        if found:
            await self._reader.add(found)
            self._next |= found
            for key in found:
                self._settings.metrics.on_begun(partition_name(*key))
            _log.info(
                "kafka.partitions_started",
                offsets={partition_name(*key): offset for key, offset in found.items()},
            )

    def _known_offset(self, key: TopicPartitionKey) -> int | None:
        """Return Kafka's offset at which to go on; None if the partition, as it is now, was never begun."""
        return None if key in self._again else offset_of(self._checkpoint, key)

    async def _confirm(self, now: float) -> None:
        """Compare ids before messages are delivered, unless that was just done: they may be of the next topic.

        Raises:
            SourceRecreatedError: a topic was created again, and must not be read.
        """
        known = [topic for topic, entry in self._entries.items() if entry.id]
        if not known or now < self._confirmed_at + CONFIRMED_SECONDS:
            return
        try:
            found = await self._ids.of(known)
        except SourceUnavailableError as error:
            # Topics are neither deleted nor created while the controller is away. Messages of a topic that is gone by
            # now are its last.
            _log.info("kafka.topic_ids_untold", topics=known, reason=str(error))
            return
        for topic in known:
            before = self._entries[topic].id
            if found[topic] not in ("", before):
                self._on_recreated(topic, before, found[topic], first=False)
        self._confirmed_at = now

    async def _identify(self, topics: Mapping[str, ListedTopic], *, first: bool) -> None:
        """Compare the topics' ids with those of the checkpoint.

        Raises:
            SourceRecreatedError: a topic was created again, and must not be read.
            SourceUnavailableError: the checkpoint has an id, but the brokers tell none.
        """
        ids = await self._ids_of(topics, first=first)
        for topic in topics:
            entry, found = self._entries.get(topic), ids.get(topic, "")
            if entry is not None and entry.id == found:
                continue
            if not found:
                # A topic that is being read is looked at again soon.
                if entry is not None and first:
                    raise SourceUnavailableError(
                        topic,
                        f"its brokers do not tell its id now, the checkpoint is of {entry.id}",
                    )
                continue
            if entry is not None and entry.id:
                self._on_recreated(topic, entry.id, found, first=first)
            # A checkpoint without an id, as earlier releases wrote it, is taken to be of the present topic.
            self._entries[topic] = TopicEntry(found)
            self._notes[topic_name(topic)] = TopicEntry(found).encode()

    async def _ids_of(self, topics: Mapping[str, ListedTopic], *, first: bool) -> Mapping[str, str]:
        if not all(listed.has_controller for listed in topics.values()):
            return {}
        try:
            return await self._ids.of(list(topics))
        except SourceUnavailableError as error:
            if first:
                raise
            _log.info("kafka.topic_ids_untold", topics=list(topics), reason=str(error))
            return {}

    def _on_recreated(self, topic: str, known: str, found: str, *, first: bool) -> None:
        if not self._settings.read_recreated:
            raise SourceRecreatedError(topic_name(topic), known=known, found=found)
        _log.warning("kafka.topic_recreated", topic=topic, known=known, found=found)
        if not first:
            # What was read up to now is committed as of the old topic, which the next reading then begins again.
            self._is_over = True
            return
        again = begun_again(self._checkpoint, topic)
        self._begun |= again
        self._again |= again.keys()
        self._notes |= {partition_name(*key): begun.encode() for key, begun in again.items()}

    async def _begin(
        self, fresh: list[TopicPartitionKey], start: Start
    ) -> dict[TopicPartitionKey, int]:
        """Return the starting offsets of partitions that were never read, and note them for the checkpoint."""
        if not fresh:
            return {}
        offsets = await self._reader.first_offsets(fresh, start)
        for key, offset in offsets.items():
            self._begun[key] = Begun(offset, shift=self.shift_of(key))
            self._notes[partition_name(*key)] = self._begun[key].encode()
        return offsets

    def _batches_of(self, polled: Polled) -> Iterator[MessageBatch]:
        """Yield messages as batches of one partition each, and markers for offsets without messages."""
        settings = self._settings
        runs = [(key, list(run)) for key, run in groupby(polled.messages, key=key_of)]
        last = {key: index for index, (key, _) in enumerate(runs)}
        for index, (key, together) in enumerate(runs):
            if key is None:
                yield from self._ends_of(together)
                continue
            shift = self.shift_of(key)
            batch = batch_of(
                together,
                settings.message_type,
                sequenced=settings.sequenced,
                shift=shift,
                position=polled.positions.get(key, 0) if last[key] == index else 0,
            )
            self._next[key] = int(batch.ends[-1]) - shift
            self._marked.clear()
            self._count(key, batch)
            yield batch

    def _count(self, key: TopicPartitionKey, batch: MessageBatch) -> None:
        """Count a batch, and show the lag."""
        metrics, name = self._settings.metrics, partition_name(*key)
        metrics.on_read(
            name, records=len(batch), record_bytes=sum(len(payload) for payload in batch.payloads)
        )
        end = self._reader.high_watermark(key)
        if end is not None:
            metrics.on_lag(name, max(0, end - self._next[key]))

    def _ends_of(self, events: list[Message]) -> Iterator[MessageBatch]:
        """Raise the errors among events; yield markers for partition ends beyond the last message."""
        for event in events:
            error = event.error()
            assert error is not None
            topic, partition, offset = event.topic(), event.partition(), event.offset()
            if is_end_of_partition(error):
                assert topic is not None
                assert partition is not None
                assert offset is not None
                yield from self._end_of((topic, partition), offset)
            elif mends_itself(error):
                self._settings.metrics.on_error(self._settings.name, UNAVAILABLE)
                _log.info("kafka.client_error", reason=error.str())
            else:
                known = topic is not None and partition is not None and partition >= 0
                source = f"kafka/{topic}/{partition}" if known else self._settings.name
                raise told_apart(source, error)

    def _end_of(self, key: TopicPartitionKey, end: int) -> Iterator[MessageBatch]:
        """Yield a marker if a partition was read to its end, and its last message is before that."""
        name, begin, settings = partition_name(*key), self._next[key], self._settings
        settings.metrics.on_lag(name, 0)
        if end <= begin:
            return
        self._next[key] = end
        self._marked.add(key)
        self._marked_at = settings.clock.monotonic_seconds()
        shift = self.shift_of(key)
        yield marker(name, begin + shift, end + shift, settings.message_type)


# Replay of a range of a partition.


async def replayed(
    reader: PartitionReader,
    key: TopicPartitionKey,
    *,
    begin: int,
    end: int,
    shift: int,
    message_type: MessageType,
) -> AsyncGenerator[MessageBatch, None]:
    """Yield the messages of a partition in offsets [begin, end).

    Args:
        reader: Reads nothing yet.
        key: Topic and partition.
        begin: Kafka's offset of the first message.
        end: Kafka's offset behind the last.
        shift: Our offsets minus Kafka's.
        message_type: How values are encoded; they carry UUIDs.

    Raises:
        ReplayError: the partition ends before `end`.
        SourceError: it cannot be read.
    """
    name = partition_name(*key)
    await reader.add({key: begin})
    read = begin
    while read < end:
        wanted: list[Message] = []
        for message in (await reader.poll()).messages:
            offset, error = message.offset(), message.error()
            assert offset is not None
            if error is None:
                read = offset + 1
                wanted += [message] if offset < end else []
            elif is_end_of_partition(error):
                if max(read, offset) < end:
                    raise ReplayError(name, f"it ends at {offset}, before {end}")
                read = max(read, offset)
            elif not mends_itself(error):
                raise told_apart(name, error)
        if wanted:
            yield batch_of(wanted, message_type, sequenced=True, shift=shift)
