"""Topics of a real Kafka that lose their partitions, or their patience with long records, while shards send to them."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from broadsheet.consumer.direct import KafkaCluster, KafkaOutput
from broadsheet.consumer.relay import Relay, Sink, SinkKind, labels_of_sink
from broadsheet.journals.client import JournalClient
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.sinks.test_direct_kafka import Totals
from tests.support.eventually import eventually
from tests.support.kafka_sinks import CommittedReader, Sent
from tests.support.live_shards import SHARD, SOURCE, ShardHost, has_read, spec_of
from tests.support.members import Producer
from tests.support.real_kafka import RealKafka

pytestmark = pytest.mark.etcd

KEYS = [f"k{number % 5}" for number in range(20)]


@pytest.fixture
async def topic(real_kafka: RealKafka) -> str:
    """A topic of the test's own with three partitions."""
    name = f"replaced-{uuid4().hex[:12]}"
    await asyncio.to_thread(real_kafka.create, name, 3)
    return name


async def records_of(kafka: RealKafka, topic: str, partitions: int, count: int) -> list[Sent]:
    """Return all committed records once there are so many."""
    reader = CommittedReader(kafka.config, topic, partitions)

    async def are_there() -> bool:
        return len(await asyncio.to_thread(reader.catch_up)) >= count

    try:
        await eventually(are_there)
        return await asyncio.to_thread(reader.catch_up)
    finally:
        reader.close()


def in_order(records: Sequence[Sent], field: str) -> Mapping[str, list[int]]:
    """Return a field of the messages of each key, each key in one partition."""
    found, partitions = defaultdict(list), defaultdict(set)
    for partition, _, value, _ in records:
        message = json.loads(value or b"")
        found[message["key"]].append(message[field])
        partitions[message["key"]].add(partition)
    assert all(len(each) == 1 for each in partitions.values())
    return found


async def test_relay_names_the_topic_that_was_deleted_and_goes_on_into_the_next(
    host: ShardHost, journals: JournalClient, real_kafka: RealKafka, topic: str
) -> None:
    """With fewer partitions: what was not sent before is in the new topic, once, and in the order of its keys."""
    settings = {name: str(value) for name, value in real_kafka.config.items()}
    settings["relay.transaction.seconds"] = "1"
    sink = Sink(kind=SinkKind.KAFKA, to=topic, key="key", settings=settings)
    spec = spec_of(SHARD, SOURCE, max_seconds=0.1)
    spec.labels.CopyFrom(labels_of_sink(sink))
    await host.assign(spec)
    producer = Producer(journals)
    end = await producer.publish(SOURCE, KEYS)
    await has_read(host.start(spec, Relay()), SOURCE, end)

    await asyncio.to_thread(real_kafka.delete, topic)
    await producer.publish(SOURCE, KEYS)
    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, f"there is no topic {topic}"))
    await asyncio.to_thread(real_kafka.create, topic, 2)

    found = in_order(await records_of(real_kafka, topic, 2, len(KEYS)), "n")
    assert found == {f"k{key}": [21 + key, 26 + key, 31 + key, 36 + key] for key in range(5)}


async def test_checkpoints_topic_that_is_deleted_under_a_relay_is_made_again_with_its_checkpoint(
    host: ShardHost, journals: JournalClient, real_kafka: RealKafka, topic: str
) -> None:
    """Nothing else in Kafka knows what was sent: the holder does, and its next life sends nothing twice. A record of
    the checkpoint is there again, too, by which a shard whose marker is forgotten is not taken for a new one.
    """
    checkpoints = f"checkpoints-{uuid4().hex[:12]}"
    settings = {name: str(value) for name, value in real_kafka.config.items()}
    settings["relay.checkpoints.topic"] = checkpoints
    sink = Sink(kind=SinkKind.KAFKA, to=topic, key="key", settings=settings)
    spec = spec_of(SHARD, SOURCE, max_seconds=0.1)
    spec.labels.CopyFrom(labels_of_sink(sink))
    await host.assign(spec)
    producer = Producer(journals)
    live = host.start(spec, Relay())
    await has_read(live, SOURCE, await producer.publish(SOURCE, KEYS))

    await asyncio.to_thread(real_kafka.delete, checkpoints)
    for _ in range(2):
        await has_read(live, SOURCE, await producer.publish(SOURCE, KEYS))
    await live.stop()
    live = host.start(spec, Relay())
    await has_read(live, SOURCE, await producer.publish(SOURCE, KEYS))

    found = in_order(await records_of(real_kafka, topic, 3, 4 * len(KEYS)), "n")
    assert found == {f"k{key}": list(range(1 + key, 81, 5)) for key in range(5)}
    assert await records_of(real_kafka, checkpoints, 1, 1)


async def test_committed_records_of_a_partition_that_is_gone_go_where_their_keys_belong(
    host: ShardHost, journals: JournalClient, real_kafka: RealKafka, topic: str, tmp_path: Path
) -> None:
    """The store's commit holds their partitions, which a topic that was created again may lack for ever."""
    cluster = KafkaCluster(real_kafka.config, transaction_seconds=1.0)
    to = KafkaOutput(topic, cluster, key="key")
    spec = spec_of(SHARD, SOURCE, max_seconds=0.1)
    await host.assign(spec)
    producer = Producer(journals)
    live = host.start(spec, Totals(tmp_path, to=to, record_outputs=[to]))
    await has_read(live, SOURCE, await producer.publish(SOURCE, KEYS))

    await asyncio.to_thread(real_kafka.delete, topic)
    await asyncio.to_thread(real_kafka.create, topic, 2)
    await producer.publish(SOURCE, KEYS)
    await records_of(real_kafka, topic, 2, len(KEYS))
    await producer.publish(SOURCE, KEYS)

    found = in_order(await records_of(real_kafka, topic, 2, 2 * len(KEYS)), "count")
    assert found == {f"k{key}": list(range(5, 13)) for key in range(5)}


async def test_committed_record_that_a_topic_no_longer_takes_waits_for_its_limit(
    host: ShardHost, journals: JournalClient, real_kafka: RealKafka, topic: str, tmp_path: Path
) -> None:
    """The limit was lowered behind the look at it: the shard says which topic's to raise, and goes on then."""
    cluster = KafkaCluster(real_kafka.config)
    to = KafkaOutput(topic, cluster, key="key")
    spec = spec_of(SHARD, SOURCE, max_seconds=0.1)
    await host.assign(spec)
    producer = Producer(journals)
    live = host.start(spec, Totals(tmp_path, to=to, record_outputs=[to]))
    await has_read(live, SOURCE, await producer.publish(SOURCE, ["a"]))

    await asyncio.to_thread(real_kafka.configure, topic, max_message_bytes="1000")
    await producer.publish(SOURCE, ["x" * 3000])
    await eventually(
        lambda: host.says(
            SHARD, ReplicaStatus.FAILED, f"(topic {topic}): raise the topic's max.message.bytes"
        )
    )
    await asyncio.to_thread(real_kafka.configure, topic, max_message_bytes="100000")

    found = in_order(await records_of(real_kafka, topic, 3, 2), "count")
    assert found == {"a": [1], "x" * 3000: [1]}
