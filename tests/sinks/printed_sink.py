"""`shardctl sink … --print`, applied by `shardctl shards apply`: a topic is carried by processes, without a broker.

Too slow for CI, because it starts members: `make nightly-sinks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer as KafkaProducer

from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from tests.support.eventually import eventually
from tests.support.kafka_sinks import CommittedReader
from tests.support.real_kafka import RealKafka
from tests.support.serving_members import ServingMembers, run_shardctl

pytestmark = [pytest.mark.e2e, pytest.mark.etcd]

RECORDS = 200


@pytest.fixture
def relays(etcd_server: EmbeddedEtcdProcess, tmp_path: Path) -> Iterator[ServingMembers]:
    """Members of the ready relay, not started."""
    relay = "broadsheet.consumer.relay:TopicRelay"
    running = ServingMembers(relay, etcd_server.endpoint, tmp_path, {})
    yield running
    running.close()


async def test_printed_specs_carry_a_topic_once_they_are_applied(
    relays: ServingMembers, real_kafka: RealKafka
) -> None:
    """What is printed is what an operator keeps in a repository: applied later, it is the whole sink."""
    source, out = f"in-{uuid4().hex[:12]}", f"out-{uuid4().hex[:12]}"
    for name in (source, out):
        await asyncio.to_thread(real_kafka.create, name, 3)
    producer = KafkaProducer(real_kafka.config)
    for number in range(RECORDS):
        producer.produce(source, str(number).encode(), f"k{number % 7}".encode())
    assert producer.flush(30) == 0
    relays.start("relay")
    address = await relays.ready()
    sink = ("sink", "kafka", "--from-topic", source, "--parts", "2", "--topic", out)
    servers = ("--set", f"bootstrap.servers={real_kafka.servers}")

    printed = await run_shardctl(*sink, *servers, "--print")
    apply = ("shards", "apply", "-f", "-", "--no-verify-journals", "--yes")
    await run_shardctl(*apply, "--address", address, given=printed)

    reader = CommittedReader(real_kafka.config, out, partitions=3)

    async def are_there() -> bool:
        return len(await asyncio.to_thread(reader.catch_up)) >= RECORDS

    await eventually(are_there, timeout_seconds=120)
    numbers: dict[bytes | None, list[int]] = {}
    for each in reader.records:
        numbers.setdefault(each.key, []).append(int(each.value or b""))
    reader.close()
    assert numbers == {f"k{key}".encode(): list(range(key, RECORDS, 7)) for key in range(7)}
