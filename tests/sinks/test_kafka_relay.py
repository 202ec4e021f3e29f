"""Relays over a real Kafka, in live shards."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer as KafkaProducer, TopicPartition

from broadsheet.consumer.relay import Relay, Sink, SinkKind, TopicRelay, labels_of_sink
from broadsheet.journals.client import JournalClient
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec
from tests.support.eventually import eventually
from tests.support.kafka_sinks import CommittedReader, Sent
from tests.support.live_shards import SECOND_SOURCE, SHARD, SOURCE, ShardHost, has_read, spec_of
from tests.support.members import Producer
from tests.support.real_kafka import RealKafka

pytestmark = pytest.mark.etcd

KEYS = [f"k{number % 5}" for number in range(40)]


@pytest.fixture
async def topic(real_kafka: RealKafka) -> str:
    """A topic of the test's own with three partitions."""
    name = f"out-{uuid4().hex[:12]}"
    await asyncio.to_thread(real_kafka.create, name, 3)
    return name


def sink(kafka: RealKafka, to: str, **parts: str) -> Sink:
    """Return a sink of this Kafka."""
    config = {name: str(value) for name, value in kafka.config.items()}
    return Sink(kind=SinkKind.KAFKA, to=to, settings=config, **parts)


def carrying(sink: Sink, *sources: str) -> ShardSpec:
    """Return a shard that carries sources out."""
    spec = spec_of(SHARD, *sources, max_seconds=0.1)
    spec.labels.CopyFrom(labels_of_sink(sink))
    return spec


async def records_of(kafka: RealKafka, topic: str, count: int) -> list[Sent]:
    """Return all committed records once there are so many."""
    reader = CommittedReader(kafka.config, topic, partitions=3)

    async def are_there() -> bool:
        return len(await asyncio.to_thread(reader.catch_up)) >= count

    try:
        await eventually(are_there)
        return await asyncio.to_thread(reader.catch_up)
    finally:
        reader.close()


def by_key(records: list[Sent]) -> dict[str, list[int]]:
    """Return the numbers of each key in the order of their partition; a key has one partition."""
    partitions, numbers = defaultdict(set), defaultdict(list)
    for partition, key, value, _ in records:
        message = json.loads(value or b"")
        assert key is None or key.decode() == message["key"]
        partitions[message["key"]].add(partition)
        numbers[message["key"]].append(message["n"])
    assert all(len(each) == 1 for each in partitions.values())
    return numbers


async def test_journals_are_carried_once_and_in_order_per_key_over_restarts(
    host: ShardHost, journals: JournalClient, real_kafka: RealKafka, topic: str
) -> None:
    """The whole promise without a fault: two journals, three lives of the shard, one record a message."""
    producer = Producer(journals)
    spec = carrying(sink(real_kafka, topic, key="key"), SOURCE)
    await host.assign(spec)
    for _ in range(3):
        end = await producer.publish(SOURCE, KEYS)
        live = host.start(spec, Relay())
        await has_read(live, SOURCE, end)
        await live.stop()

    found = by_key(await records_of(real_kafka, topic, 3 * len(KEYS)))

    expected = defaultdict(list)
    for number, key in enumerate(KEYS * 3, start=1):
        expected[key].append(number)
    assert found == expected


async def test_journal_without_a_key_goes_into_one_partition_in_its_order(
    host: ShardHost, journals: JournalClient, real_kafka: RealKafka, topic: str
) -> None:
    """There is no other order to keep: of two journals each has one partition, and its own order there."""
    producer = Producer(journals)
    spec = carrying(sink(real_kafka, topic), SOURCE, SECOND_SOURCE)
    await host.assign(spec)
    await producer.publish(SOURCE, ["a"] * 20)
    await producer.publish(SECOND_SOURCE, ["b"] * 20)
    host.start(spec, Relay())

    found = by_key(await records_of(real_kafka, topic, 40))

    assert found == {"a": list(range(1, 21)), "b": list(range(21, 41))}


async def test_record_that_the_topic_refuses_fails_the_shard_before_it_is_sent(
    host: ShardHost, journals: JournalClient, real_kafka: RealKafka
) -> None:
    """A message over the topic's limit can never be produced: the shard says so, and says where the limit is from."""
    name = f"short-{uuid4().hex[:12]}"
    await asyncio.to_thread(real_kafka.create, name, 1, max_message_bytes="2000")
    spec = carrying(sink(real_kafka, name, key="key"), SOURCE)
    await host.assign(spec)
    await Producer(journals).publish(SOURCE, ["x" * 3000])
    host.start(spec, Relay())

    await eventually(
        lambda: host.says(SHARD, ReplicaStatus.FAILED, "expected a record of 1488 bytes at most")
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda each: each.labels.Clear(), "labels[broadsheet.dev/sink]: expected one of"),
        (
            lambda each: _relabel(each, "sasl.password", "secret"),
            "broadsheet.dev/sink-set[sasl.password]: expected @FILE",
        ),
        (
            lambda each: _relabel(each, "transactional.id", "mine"),
            "broadsheet.dev/sink-set[transactional.id]: expected none",
        ),
    ],
    ids=["no-label", "secret", "ours"],
)
async def test_spec_that_cannot_be_carried_out_is_refused_with_its_label(
    host: ShardHost,
    real_kafka: RealKafka,
    topic: str,
    change: Callable[[ShardSpec], None],
    problem: str,
) -> None:
    """An operator reads which label to correct, and the shard waits for another spec."""
    spec = carrying(sink(real_kafka, topic), SOURCE)
    change(spec)
    await host.assign(spec)
    host.start(spec, Relay())

    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, problem))
    assert "secret" not in "".join(host.status(SHARD).errors).replace("a secret", "")


async def test_topic_is_carried_with_keys_headers_times_and_tombstones(
    host: ShardHost, real_kafka: RealKafka, topic: str
) -> None:
    """A record arrives as it was, in the partition of its key; without a key in that of its number."""
    source = f"in-{uuid4().hex[:12]}"
    await asyncio.to_thread(real_kafka.create, source, 3)
    origin = KafkaProducer(real_kafka.config)
    moment = 1_700_000_000_123
    origin.produce(source, b"1", b"k", partition=1, headers=[("h", b"v")], timestamp=moment)
    origin.produce(source, None, b"k", partition=1)
    origin.produce(source, b"2", partition=2)
    assert origin.flush(30) == 0
    spec = carrying(sink(real_kafka, topic, from_topic=source))
    await host.assign(spec)
    host.start(spec, TopicRelay())

    found = await records_of(real_kafka, topic, 3)

    assert [(each.key, each.value) for each in found if each.key] == [(b"k", b"1"), (b"k", None)]
    assert Sent(2, None, b"2") in found
    (partition,) = {each.partition for each in found if each.key}
    with_metadata = Consumer({**real_kafka.config, "group.id": "look"})
    with_metadata.assign([TopicPartition(topic, partition, 0)])
    message = await asyncio.to_thread(with_metadata.poll, 30)
    assert message is not None
    if message.key() is None:
        # The record without a key may be in the same partition, and come first: they are of two partitions.
        message = await asyncio.to_thread(with_metadata.poll, 30)
        assert message is not None
    with_metadata.close()
    assert message.headers() == [("h", b"v")]
    assert message.timestamp()[1] == moment


def _relabel(spec: ShardSpec, name: str, value: str) -> None:
    label = spec.labels.labels.add()
    label.name, label.value = f"broadsheet.dev/sink-set/{name}", value
