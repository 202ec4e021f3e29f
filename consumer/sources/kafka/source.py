"""Kafka topics as a source of shards: an application's `MessageProducer` methods.

    class Orders:
        def __init__(self):
            source = KafkaSource("orders", JsonType(), {"bootstrap.servers": "broker:9092"})
            self.read_messages = source.read_messages
            self.replay_range = source.replay_range
            self.read_through = source.read_through

Messages of a partition are called `kafka/{topic}/{partition}`, and offsets are Kafka's own. Offsets are stored only in
the checkpoint that is committed with the application's results: there is no consumer group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from confluent_kafka import Consumer, Message
from confluent_kafka.admin import AdminClient

from broadsheet.consumer.application import Shard
from broadsheet.consumer.sources.kafka.partitions import PartitionReader, checked_config
from broadsheet.consumer.sources.kafka.places import Earliest, Start, topic_name
from broadsheet.consumer.sources.kafka.reading import KafkaReadingSettings, TopicsReading, replayed
from broadsheet.consumer.sources.kafka.records import values_with_headers
from broadsheet.consumer.sources.kafka.topic_ids import TopicIds
from broadsheet.consumer.sources.metrics import SourceMetrics
from broadsheet.consumer.sources.part import part_of
from broadsheet.consumer.sources.received import prepare_of
from broadsheet.consumer.sources.settled import SettledBatches
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.journals.errors import ReplayError
from broadsheet.journals.message.batch import MessageBatch, MessageType
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.wire.shard_pb2 import Checkpoint

DISCOVERY_SECONDS = 30.0
"""Time between checks of topics for new partitions."""


class KafkaSource:
    """Source that reads topics for any number of shards, each with a part of the partitions."""

    def __init__(
        self,
        topics: str | Sequence[str],
        message_type: MessageType,
        # Any: texts, numbers and booleans, as the client accepts them.
        config: Mapping[str, Any],
        *,
        start: Start | None = None,
        sequenced: bool = False,
        read_recreated: bool = False,
        discovery_seconds: float = DISCOVERY_SECONDS,
        open_consumer: Callable[[dict[str, Any]], Consumer] = Consumer,
        open_admin: Callable[[dict[str, Any]], AdminClient] = AdminClient,
        clock: Clock | None = None,
        metrics: SourceMetrics | None = None,
    ) -> None:
        """Configure the source without opening a connection.

        Args:
            topics: One, or several whose partitions of the same number belong together.
            message_type: How values are encoded; `WithMetadata` adds keys, headers and times.
            config: Of Kafka's client, at least `bootstrap.servers`. Values `@/path` are read from files on each member
                whenever a client is opened, so that secrets are in no code.
            start: Where to begin without a checkpoint. None: with the oldest messages.
            sequenced: Messages carry the UUIDs of our publishers: duplicates are dropped, transactions are whole.
            read_recreated: Read a topic that was deleted and created again from its beginning. Otherwise the shard
                fails, because what it has not read of the old topic is lost.
            discovery_seconds: How often to look for new partitions, and whether a topic was created again.
            open_consumer: Returns a consumer of the settings given.
            open_admin: Returns a client that tells the topics' ids.
            clock: Tells when to look.
            metrics: Where it counts what it reads; None: in a private registry.

        Raises:
            ValueError: no topic, or a setting contradicts what is promised.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names:
            raise ValueError("topics: expected at least one")
        self._settings = KafkaReadingSettings(
            topics=names,
            message_type=message_type,
            start=start or Earliest(),
            sequenced=sequenced,
            read_recreated=read_recreated,
            discovery_seconds=discovery_seconds,
            clock=clock or SystemClock(),
            metrics=metrics or SourceMetrics(),
        )
        self._prepare = _prepare_of(message_type)
        self._config = checked_config(config)
        self._open_consumer = open_consumer
        self._ids = TopicIds(self._config, open_admin)
        self._readings: dict[str, TopicsReading] = {}
        """The present reading of each shard of ours, by its key in etcd."""

    @property
    def has_begun(self) -> bool:
        """True once it is settled where a partition begins, for a shard that this process serves."""
        return any(reading.has_begun for reading in self._readings.values())

    def read_messages(
        self, shard: Shard, store: object, checkpoint: Checkpoint
    ) -> AsyncIterator[MessageBatch]:
        """Return the batches of the shard's part, without end.

        Raises:
            UnsupportedSpecError: the shard's label names no part.
            SourceError: a topic cannot be read.
        """
        del store
        part, settings = part_of(shard.spec), self._settings
        reader = self._reader()
        reading = TopicsReading(part, checkpoint, reader, self._ids, settings)
        self._readings[shard.fqn] = reading

        def close() -> None:
            reader.close()
            if self._readings.get(shard.fqn) is reading:
                del self._readings[shard.fqn]

        return SettledBatches(
            topic_name(settings.name),
            settings.message_type,
            settle=reading.settle,
            batches=reading.batches,
            close=close,
        )

    async def replay_range(
        self, shard: Shard, store: object, *, journal: str, begin: int, end: int
    ) -> AsyncIterator[MessageBatch]:
        """Yield the messages of a partition in offsets [begin, end) again, by a separate consumer.

        Raises:
            ReplayError: `journal` is no partition of our topics.
        """
        del store
        topic, _, partition = journal.removeprefix("kafka/").rpartition("/")
        if topic not in self._settings.topics or not partition.isdecimal():
            raise ReplayError(
                journal, f"expected a partition of {', '.join(self._settings.topics)}"
            )
        key = (topic, int(partition))
        reading = self._readings.get(shard.fqn)
        shift = 0 if reading is None else reading.shift_of(key)
        reader = self._reader()
        try:
            read = replayed(
                reader,
                key,
                begin=begin - shift,
                end=end - shift,
                shift=shift,
                message_type=self._settings.message_type,
            )
            async with aclosing(read) as batches:
                async for batch in batches:
                    yield batch
        finally:
            reader.close()

    def read_through(
        self, shard: Shard, store: object, offsets: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the offsets to wait for, given Kafka's.

        For `kafka/{topic}` at any offset, these are the last known ends of the shard's partitions of that topic.
        """
        del store
        reading = self._readings.get(shard.fqn)
        ends = reading.high_watermarks() if reading is not None else {}
        wanted: dict[str, int] = {}
        for name, offset in offsets.items():
            whole = name.removeprefix("kafka/") in self._settings.topics
            asked = (
                {each: end for each, end in ends.items() if each.rpartition("/")[0] == name}
                if whole
                else {name: offset + _shift_of(reading, name)}
            )
            for each, end in asked.items():
                wanted[each] = max(end, wanted.get(each, 0))
        return wanted

    def _reader(self) -> PartitionReader:
        return PartitionReader(
            self._settings.name,
            lambda: self._open_consumer(read_files(self._config)),
            self._prepare,
        )


def _prepare_of(message_type: MessageType) -> Callable[[Iterable[Message]], None] | None:
    prepare = prepare_of(message_type)
    return None if prepare is None else lambda messages: prepare(values_with_headers(messages))


def _shift_of(reading: TopicsReading | None, name: str) -> int:
    topic, _, partition = name.removeprefix("kafka/").rpartition("/")
    if reading is None or not partition.isdecimal():
        return 0
    return reading.shift_of((topic, int(partition)))
