"""One reading of a part of topics, from a checkpoint on; new partitions are found as they are added."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby

import structlog
from confluent_kafka import Message

from broadsheet.allocator.runtime.clock import Clock
from broadsheet.consumer.errors import ReplayError, SourceError
from broadsheet.consumer.message.batch import MessageBatch, MessageType
from broadsheet.consumer.protocol.shard_pb2 import Checkpoint
from broadsheet.consumer.sources.kafka.partitions import (
    PartitionReader,
    is_end_of_partition,
    mends_itself,
    told_apart,
)
from broadsheet.consumer.sources.kafka.places import (
    Begun,
    Earliest,
    Start,
    TopicPartitionKey,
    offset_of,
    reads,
)
from broadsheet.consumer.sources.kafka.records import batch_of, marker, name_of
from broadsheet.consumer.sources.metrics import UNAVAILABLE, SourceMetrics, kind_of
from broadsheet.consumer.sources.part import Part

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReadingSettings:
    """Settings that all readings of a source share."""

    topics: Sequence[str]
    message_type: MessageType
    start: Start
    sequenced: bool
    discovery_seconds: float
    clock: Clock
    metrics: SourceMetrics


class TopicsReading:
    """Reads one part of the topics."""

    def __init__(
        self,
        part: Part,
        checkpoint: Checkpoint,
        reader: PartitionReader,
        settings: KafkaReadingSettings,
    ) -> None:
        """Create the reading.

        Args:
            part: What to read.
            checkpoint: Where to go on.
            reader: Its own consumer.
            settings: Of the source.
        """
        self._part = part
        self._checkpoint = checkpoint
        self._reader = reader
        self._settings = settings
        self._next: dict[TopicPartitionKey, int] = {}
        """Offset behind what was read, of each partition that is read."""
        self._notes: dict[str, bytes] = {}
        """For the checkpoint, to go with the next batch."""

    async def batches(self) -> AsyncGenerator[MessageBatch, None]:
        """Yield batches of one partition each, without end."""
        metrics = self._settings.metrics
        try:
            async with aclosing(self._polled()) as batches:
                async for batch in batches:
                    yield batch
        except SourceError as error:
            metrics.on_error(error.source, kind_of(error))
            raise
        finally:
            for key in self._next:
                metrics.on_left(name_of(*key))

    async def _polled(self) -> AsyncGenerator[MessageBatch, None]:
        clock = self._settings.clock
        next_look = clock.monotonic_seconds()
        while True:
            if clock.monotonic_seconds() >= next_look:
                await self._find_partitions()
                next_look = clock.monotonic_seconds() + self._settings.discovery_seconds
            for batch in self._batches_of(await self._reader.poll()):
                yield replace(batch, resumes=self._notes)
                self._notes = {}

    def high_watermarks(self) -> Mapping[str, int]:
        """Return the last known ends of the read partitions, by name."""
        known = {key: self._reader.high_watermark(key) for key in self._next}
        return {name_of(*key): end for key, end in known.items() if end is not None}

    async def _find_partitions(self) -> None:
        """Start reading partitions of this part that are not read yet.

        If the checkpoint knows other partitions of the topic, an unknown one was added since, so it is read from its
        beginning.
        """
        found: dict[TopicPartitionKey, int] = {}
        for topic in self._settings.topics:
            prefix = name_of(topic, 0)[:-1]
            grown = any(key[0] == topic for key in self._next) or any(
                name.startswith(prefix) for name in self._checkpoint.sources
            )
            fresh: list[TopicPartitionKey] = []
            for partition in await self._reader.partitions(topic):
                key = (topic, partition)
                if key in self._next or not reads(self._part, partition):
                    continue
                offset = offset_of(self._checkpoint, name_of(*key))
                if offset is None:
                    fresh.append(key)
                else:
                    found[key] = offset
            found |= await self._begin(fresh, Earliest() if grown else self._settings.start)
        if found:
            await self._reader.add(found)
            self._next |= found
            for key in found:
                self._settings.metrics.on_begun(name_of(*key))
            _log.info(
                "kafka.partitions_started", offsets={name_of(*k): v for k, v in found.items()}
            )

    async def _begin(
        self, fresh: list[TopicPartitionKey], start: Start
    ) -> dict[TopicPartitionKey, int]:
        """Return the starting offsets of partitions that were never read, and note them for the checkpoint."""
        if not fresh:
            return {}
        offsets = await self._reader.first_offsets(fresh, start)
        self._notes |= {name_of(*key): Begun(offset).encode() for key, offset in offsets.items()}
        return offsets

    def _batches_of(self, messages: list[Message]) -> Iterator[MessageBatch]:
        """Yield messages as batches of one partition each, and markers for offsets without messages."""
        for key, run in groupby(messages, key=_key_of):
            together = list(run)
            settings = self._settings
            if key is None:
                yield from self._ends_of(together)
                continue
            batch = batch_of(together, settings.message_type, sequenced=settings.sequenced)
            self._next[key] = int(batch.ends[-1])
            self._count(key, batch)
            yield batch

    def _count(self, key: TopicPartitionKey, batch: MessageBatch) -> None:
        """Count a batch, and show the lag."""
        metrics, name = self._settings.metrics, name_of(*key)
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
                begin = self._next[topic, partition]
                self._settings.metrics.on_lag(name_of(topic, partition), 0)
                if offset > begin:
                    self._next[topic, partition] = offset
                    yield marker(topic, partition, begin, offset, self._settings.message_type)
            elif mends_itself(error):
                self._settings.metrics.on_error(",".join(self._settings.topics), UNAVAILABLE)
                _log.info("kafka.client_error", reason=error.str())
            else:
                known = topic is not None and partition is not None and partition >= 0
                source = f"kafka/{topic}/{partition}" if known else ",".join(self._settings.topics)
                raise told_apart(source, error)


def _key_of(message: Message) -> TopicPartitionKey | None:
    """Return the partition of a message; None for an event."""
    if message.error() is not None:
        return None
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


# Replay of a range of a partition.


async def replayed(
    reader: PartitionReader,
    key: TopicPartitionKey,
    *,
    begin: int,
    end: int,
    message_type: MessageType,
) -> AsyncGenerator[MessageBatch, None]:
    """Yield the messages of a partition in offsets [begin, end).

    Args:
        reader: Reads nothing yet.
        key: Topic and partition.
        begin: Offset of the first message.
        end: Offset behind the last.
        message_type: How values are encoded; they carry UUIDs.

    Raises:
        ReplayError: the partition ends before `end`.
        SourceError: it cannot be read.
    """
    name = name_of(*key)
    await reader.add({key: begin})
    read = begin
    while read < end:
        wanted: list[Message] = []
        for message in await reader.poll():
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
            yield batch_of(wanted, message_type, sequenced=True)
