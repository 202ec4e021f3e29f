"""Topics of a real Kafka that are deleted, and created again under their names, while shards read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from broadsheet.consumer.sources.kafka.source import KafkaSource
from broadsheet.journals.content.json import JsonType
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.in_order import InOrder, numbers, reach, serve
from tests.support.live_shards import SHARD, ShardHost
from tests.support.real_kafka import RealKafka

pytestmark = pytest.mark.etcd


def replace(kafka: RealKafka, topic: str, partitions: int) -> None:
    """Delete a topic, and create another one of its name."""
    kafka.delete(topic)
    kafka.create(topic, partitions)


def put(kafka: RealKafka, topic: str, key: str, these: Iterable[int]) -> None:
    """Write messages {"key": key, "n": number} to partition 0."""
    producer = Producer(kafka.config)
    for number in these:
        producer.produce(topic, json.dumps({"key": key, "n": number}).encode(), partition=0)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("read_recreated", [False, True])
async def test_longer_topic_under_a_reader_is_not_taken_for_the_one_before(
    host: ShardHost, real_kafka: RealKafka, tmp_path: Path, read_recreated: bool
) -> None:
    """Its messages lie behind the offset of the reader, where the client goes on reading as if nothing had been."""
    topic = f"replaced-{uuid4().hex[:12]}"
    await asyncio.to_thread(real_kafka.create, topic, 2)
    await asyncio.to_thread(put, real_kafka, topic, "old", numbers(1, 5))
    source = KafkaSource(topic, JsonType(), real_kafka.config, read_recreated=read_recreated)
    application = InOrder(tmp_path, source)
    met: list[str] = []
    application.meet = lambda key, number: met.append(key)
    live = await serve(host, application)
    await reach(live, {"old": 5})

    await asyncio.to_thread(replace, real_kafka, topic, 1)
    await asyncio.to_thread(put, real_kafka, topic, "new", numbers(1, 12))

    if read_recreated:
        await reach(live, {"old": 5, "new": 12})
    else:
        await eventually(
            lambda: host.says(SHARD, ReplicaStatus.FAILED, "deleted and created again")
        )
        assert set(met) == {"old"}
