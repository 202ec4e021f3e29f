"""A consumer of Kafka's client that reads the partitions it is told to, off the event loop.

It belongs to no consumer group: nothing is committed to Kafka, and nobody takes partitions away. Only the messages of
committed transactions come. All calls run one after another on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
OURS: Final[
    Mapping[str, Any]
] = {  # Any: texts, numbers and truth values, as the client takes them.
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "group.id": "broadsheet",
    "isolation.level": "read_committed",
}
"""Settings that what is promised rests on. The client wants a group's name; it is never used."""
_MEMORY: Final[Mapping[str, Any]] = {"queued.max.messages.kbytes": 16_384}
"""What the client reads ahead, of one shard; a member may host some dozens."""
CALL_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.25
MESSAGES_MAX: Final = 1_000


# What errors of Kafka's client mean for a shard.
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
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # Brokers say so of a topic that was made a moment ago.
}
_MENDS_ITSELF: Final = {KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
"""Met while there are other brokers, or a reconnection, to go on with."""


def told_apart(source: str, error: KafkaError) -> SourceError:
    """Return what an error means.

    Args:
        source: The topic, or the name of a partition's messages.
        error: Of the client, or of a broker.
    """
    if error.code() in _GONE:
        return SourceDataLossError(
            source,
            f"the message that follows the checkpoint is gone ({error.str()}): its topic keeps messages for too"
            " short a time, or was made anew",
        )
    if error.code() in _PASSING or error.retriable():
        return SourceUnavailableError(source, error.str())
    return SourceError(source, error.str())


def mends_itself(error: KafkaError) -> bool:
    """Tell whether the client goes on by itself after an error that it only reports."""
    return error.code() in _MENDS_ITSELF


def is_end_of_partition(error: KafkaError) -> bool:
    """Tell whether this is no error, but says that a partition was read to its present end."""
    return error.code() == KafkaError._PARTITION_EOF


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's settings with ours.

    Raises:
        ValueError: a setting contradicts ours.
    """
    for name, value in OURS.items():
        if name in config and config[name] != value:
            raise ValueError(
                f"config[{name!r}]: expected {value!r}, which exactly-once rests on, or nothing, got {config[name]!r}"
            )
    return {**_MEMORY, **config, **OURS}


class PartitionReader:
    """One consumer."""

    def __init__(self, source: str, open_consumer: Callable[[], Consumer]) -> None:
        """Bind the reader; the consumer is made at the first call.

        Args:
            source: Named in errors.
            open_consumer: Returns a consumer with `checked_config`.
        """
        self._source = source
        self._open_consumer = open_consumer
        self._consumer: Consumer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"kafka-{source}")

    async def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic."""
        listed = await self._run(lambda consumer: consumer.list_topics(topic, CALL_SECONDS))
        found = listed.topics[topic]
        if found.error is not None:
            raise told_apart(topic, found.error)
        return sorted(found.partitions)

    async def first_offsets(
        self, keys: list[TopicPartitionKey], start: Start
    ) -> dict[TopicPartitionKey, int]:
        """Return where partitions begin that were never read."""
        return await self._run(lambda consumer: _first_offsets(consumer, keys, start))

    async def add(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Read these partitions, too, from these offsets on."""
        assigned = [TopicPartition(*key, offset) for key, offset in offsets.items()]
        await self._run(lambda consumer: consumer.incremental_assign(assigned))

    async def poll(self) -> list[Message]:
        """Return what has come; nothing if that takes too long. Errors are among the messages."""
        return await self._run(_poll)

    def high_watermark(self, key: TopicPartitionKey) -> int | None:
        """Return the end of a partition as of the last answer of its broker; None if there was none yet."""
        if self._consumer is None:
            return None
        _, end = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        return end if end >= 0 else None

    def close(self) -> None:
        """Let go, in the background: a call that is under way may take a while."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    async def _run(self, call: Callable[[Consumer], ResultT]) -> ResultT:
        def run() -> ResultT:
            if self._consumer is None:
                self._consumer = self._open_consumer()
            return call(self._consumer)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except KafkaException as error:
            raise told_apart(self._source, error.args[0]) from error


def _poll(consumer: Consumer) -> list[Message]:
    first = consumer.poll(POLL_SECONDS)
    if first is None:
        return []
    return [first, *consumer.consume(MESSAGES_MAX - 1, 0)]


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
