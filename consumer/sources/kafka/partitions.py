"""Reader of given Kafka partitions, off the event loop.

It belongs to no consumer group: nothing is committed to Kafka, and no rebalance takes partitions away. It reads only
messages of committed transactions. All calls run one after another on a dedicated thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from broadsheet.consumer.errors import SourceDataLossError, SourceError, SourceUnavailableError
from broadsheet.consumer.sources.kafka.places import AtOffsets, Earliest, Start, TopicPartitionKey
from broadsheet.consumer.sources.part import AtTimestamp, Latest

ResultT = TypeVar("ResultT")
OURS: Final[Mapping[str, Any]] = {  # Any: texts, numbers and booleans, as the client accepts them.
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "group.id": "broadsheet",
    "isolation.level": "read_committed",
}
"""Settings that exactly-once delivery depends on. The client requires a group's name; it is never used."""
_MEMORY: Final[Mapping[str, Any]] = {"queued.max.messages.kbytes": 16_384}
"""Read-ahead of the client for one shard; a member may host some dozens."""
CALL_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.25
MESSAGES_MAX: Final = 1_000


# Classification of the errors of Kafka's client.
# ruff: noqa: SLF001 - the client names errors of its own, not of a broker, with an underscore


_GONE: Final = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_PASSING: Final = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    KafkaError._RESOLVE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # Brokers report this for a topic just created.
}
_REFUSED: Final = {KafkaError._AUTHENTICATION, KafkaError._RESOLVE, KafkaError._SSL}
"""Connections that were refused, of which calls tell only that they timed out."""
_EVENTS_MAX: Final = 100
_MENDS_ITSELF: Final = {KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
"""The client continues with other brokers, or after a reconnection."""


def told_apart(source: str, error: KafkaError, cause: str = "") -> SourceError:
    """Translate an error of the client into a source error.

    Args:
        source: The topic, or the name of a partition's messages.
        error: Of the client, or of a broker.
        cause: More of it, to be told behind it.
    """
    if error.code() in _GONE:
        return SourceDataLossError(
            source,
            f"the message that follows the checkpoint is gone ({error.str()}): its topic keeps messages for too"
            " short a time, or was deleted and created again",
        )
    if error.code() in _PASSING or error.retriable():
        return SourceUnavailableError(source, error.str() + cause)
    return SourceError(source, error.str() + cause)


def mends_itself(error: KafkaError) -> bool:
    """Tell whether the client recovers by itself from an error that it only reports."""
    return error.code() in _MENDS_ITSELF


def is_end_of_partition(error: KafkaError) -> bool:
    """Tell whether an event only reports that a partition was read to its present end."""
    return error.code() == KafkaError._PARTITION_EOF


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a client's settings with the required ones.

    Raises:
        ValueError: a setting contradicts ours.
    """
    for name, value in OURS.items():
        if name in config and config[name] != value:
            raise ValueError(
                f"config[{name!r}]: expected {value!r}, as exactly-once requires, or no value, got {config[name]!r}"
            )
    return {**_MEMORY, **config, **OURS}


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic as the brokers list it."""

    partitions: list[int]
    has_controller: bool
    """Without one, as while it is elected, a cluster does not tell the ids of topics."""


@dataclass(frozen=True, slots=True)
class Polled:
    """Content that the client received."""

    messages: list[Message]
    """Errors and ends of partitions included."""
    positions: Mapping[TopicPartitionKey, int]
    """Offset at which each partition with a message goes on: behind its last message, and behind the ends of
    transactions that follow it, which the client keeps to itself. So they are committed together: if retention leaves
    only the end of a transaction and then removes it too, no message is missing."""


class PartitionReader:
    """One consumer, whose calls run on a dedicated thread."""

    def __init__(
        self,
        source: str,
        open_consumer: Callable[[], Consumer],
        prepare: Callable[[Iterable[Message]], None] | None = None,
    ) -> None:
        """Create the reader; the consumer is opened by the first call.

        Args:
            source: Named in errors.
            open_consumer: Returns a consumer with `checked_config`.
            prepare: Called with messages and events, on the thread of calls, before they are returned.
        """
        self._source = source
        self._open_consumer = open_consumer
        self._prepare = prepare
        self._consumer: Consumer | None = None
        self._has_partitions = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"kafka-{source}")

    async def topic(self, topic: str) -> ListedTopic:
        """Return what the brokers tell of a topic."""
        listed = await self._run(lambda consumer: consumer.list_topics(topic, CALL_SECONDS))
        found = listed.topics[topic]
        if found.error is not None:
            raise told_apart(topic, found.error)
        return ListedTopic(sorted(found.partitions), has_controller=listed.controller_id >= 0)

    async def first_offsets(
        self, keys: list[TopicPartitionKey], start: Start
    ) -> dict[TopicPartitionKey, int]:
        """Return the first offsets of partitions that were never read."""
        return await self._run(lambda consumer: _first_offsets(consumer, keys, start))

    async def add(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Add partitions to read, from given offsets on."""
        assigned = [TopicPartition(*key, offset) for key, offset in offsets.items()]
        self._has_partitions = True
        await self._run(lambda consumer: consumer.incremental_assign(assigned))

    async def poll(self) -> Polled:
        """Return what was received; nothing after a time limit."""
        return await self._run(self._poll)

    def _poll(self, consumer: Consumer) -> Polled:
        polled = _poll(consumer)
        if self._prepare is not None:
            self._prepare(polled.messages)
        return polled

    def high_watermark(self, key: TopicPartitionKey) -> int | None:
        """Return the end of a partition in its broker's last answer; None before the first answer."""
        if self._consumer is None:
            return None
        _, end = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        return end if end >= 0 else None

    def close(self) -> None:
        """Close the consumer in the background, because a running call may take a while."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    async def _run(self, call: Callable[[Consumer], ResultT]) -> ResultT:
        def run() -> ResultT:
            try:
                if self._consumer is None:
                    self._consumer = self._open_consumer()
                return call(self._consumer)
            except KafkaException as error:
                cause = ""
                # Events are among the messages: once there may be some, none must be taken here.
                if self._consumer is not None and not self._has_partitions:
                    cause = _refused(self._consumer)
                raise told_apart(self._source, error.args[0], cause) from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)


def _refused(consumer: Consumer) -> str:
    """Return why a connection was refused, as the end of an error; empty if none was."""
    for _ in range(_EVENTS_MAX):
        event = consumer.poll(0)
        if event is None:
            break
        error = event.error()
        if error is not None and error.code() in _REFUSED:
            return f"; a connection was refused: {error.str()}"
    return ""


def _poll(consumer: Consumer) -> Polled:
    first = consumer.poll(POLL_SECONDS)
    if first is None:
        return Polled([], {})
    messages = [first, *consumer.consume(MESSAGES_MAX - 1, 0)]
    keys = {key for message in messages if (key := key_of(message)) is not None}
    # Local to the client: a microsecond each.
    found = consumer.position([TopicPartition(*key) for key in keys]) if keys else []
    return Polled(messages, {(each.topic, each.partition): each.offset for each in found})


def key_of(message: Message) -> TopicPartitionKey | None:
    """Return the partition of a message; None for an event."""
    if message.error() is not None:
        return None
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


def _first_offsets(
    consumer: Consumer, keys: list[TopicPartitionKey], start: Start
) -> dict[TopicPartitionKey, int]:
    found: dict[TopicPartitionKey, int] = {}
    for key in keys:
        low, high = consumer.get_watermark_offsets(TopicPartition(*key), timeout=CALL_SECONDS)
        match start:
            case Earliest():
                found[key] = low
            case Latest():
                found[key] = high
            case AtOffsets(offsets):
                found[key] = offsets.get(key, low)
            case AtTimestamp(at):
                wanted = TopicPartition(*key, int(at.timestamp() * 1000))
                (met,) = consumer.offsets_for_times([wanted], timeout=CALL_SECONDS)
                found[key] = {OFFSET_BEGINNING: low, OFFSET_END: high}.get(met.offset, met.offset)
    return found
