"""Sources that begin at a time, on a stream and on a topic."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from broadsheet.consumer.sources import part
from broadsheet.consumer.sources.kafka import places as kafka_places
from broadsheet.consumer.sources.kafka.source import KafkaSource
from broadsheet.consumer.sources.kinesis import places as kinesis_places
from broadsheet.consumer.sources.kinesis.pages import Pace
from broadsheet.consumer.sources.kinesis.source import KinesisSource
from broadsheet.consumer.sources.part import AtTimestamp
from broadsheet.journals.content.json import JsonType
from tests.support.kafka_cluster import TestTopic
from tests.support.kinesis_streams import TestStream
from tests.support.source_reads import read_from

FAST = Pace(read_interval_seconds=0.01, idle_interval_seconds=0.02)
EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize("fan_out", [False, True])
async def test_stream_is_read_from_a_time_on(kinesis_endpoint: str, fan_out: bool) -> None:
    """The record that arrived just then is the first, whatever the zone that the time is told in."""
    stream = await TestStream(kinesis_endpoint).create(1)
    for number in range(1, 5):
        await stream.put("k", [number])
    options: dict[str, Any] = {"open_client": stream.open_client, "pace": FAST}
    if fan_out:
        options["consumer_arn"] = stream.consumer_arn
    everything = await read_from(KinesisSource(stream.name, JsonType(), **options), 4)
    arrived_at = everything[2].metadata.arrived_at
    assert arrived_at > everything[1].metadata.arrived_at

    start = AtTimestamp(arrived_at.astimezone(EAST))
    found = await read_from(KinesisSource(stream.name, JsonType(), start=start, **options), 2)

    assert found == everything[2:]


async def test_topic_is_read_from_a_time_on(kafka_servers: str) -> None:
    """The first message of that time or later is the first; of a partition without any, what comes from then on.

    The mock cluster cannot look offsets up by time: it always says that there is no such message. So the look-up of the
    first partition is made here, by reading it, which a broker does with its index; the answer for the second is the
    cluster's own.
    """
    topic = TestTopic(kafka_servers)
    for number in range(1, 5):
        at_ms = 1_700_000_000_000 + 1_000 * number
        await topic.put("k", [number], timestamp=at_ms)
        await topic.put("old", [number], partition=1, timestamp=1_600_000_000_000)

    class Timed(Consumer):
        """Finds the first message of a time, in partition 0."""

        def offsets_for_times(
            self, partitions: Any, *arguments: Any, **options: Any
        ) -> Any:  # Any: the stubs hide its types
            (wanted,) = partitions
            if wanted.partition:
                return super().offsets_for_times(partitions, *arguments, **options)
            return [TopicPartition(wanted.topic, 0, _offset_at(topic, wanted.offset))]

    start = AtTimestamp(datetime.fromtimestamp(1_700_000_002.5, EAST))
    source = KafkaSource(topic.name, JsonType(), topic.config, start=start, open_consumer=Timed)

    async def put_later() -> None:
        await topic.put("new", [1], partition=1)

    found = await read_from(source, 3, when_begun=put_later)

    assert sorted((each.metadata.partition, each.metadata.offset) for each in found) == [
        (0, 2),
        (0, 3),
        (1, 4),
    ]


def _offset_at(topic: TestTopic, at_ms: int) -> int:
    """Read the first partition until a message of a time or later."""
    consumer = Consumer({**topic.config, "group.id": "look-up"})
    try:
        consumer.assign([TopicPartition(topic.name, 0, 0)])
        while True:
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            offset = message.offset()
            assert offset is not None
            if message.timestamp()[1] >= at_ms:
                return offset
    finally:
        consumer.close()


@pytest.mark.parametrize("new_start", [kinesis_places.AtTimestamp, kafka_places.AtTimestamp])
def test_times_without_a_zone_are_refused(new_start: Callable[[datetime], AtTimestamp]) -> None:
    """Nobody knows which moment they are; and there is one class of such places, wherever it is imported from."""
    with pytest.raises(ValueError, match="at: expected a time with a zone"):
        new_start(datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused

    assert isinstance(new_start(datetime(2026, 1, 1, tzinfo=UTC)), AtTimestamp)
    assert kinesis_places.Latest is kafka_places.Latest is part.Latest
