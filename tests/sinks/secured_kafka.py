"""Kafka behind TLS and passwords: as a source, as a sink, and straight from a shard with state.

Too slow for CI, because it starts a Kafka of its own: `make nightly-sinks`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer as KafkaProducer

from broadsheet.consumer.application import Shard
from broadsheet.consumer.direct import KafkaCluster, KafkaOutput
from broadsheet.consumer.relay import Sink, SinkKind, TopicRelay, labels_of_sink
from broadsheet.consumer.sources import KafkaSource
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.certificates import CertificateAuthority
from tests.support.eventually import eventually
from tests.support.kafka_sinks import CommittedReader
from tests.support.live_shards import SHARD, Counting, Counts, ShardHost, spec_of
from tests.support.real_kafka import RealKafka, SecureListener

pytestmark = pytest.mark.etcd

USER, PASSWORD = "totals", uuid4().hex
KEYS = [f"k{number % 5}" for number in range(40)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """Signs the broker's certificate; no machine trusts it unless it is told to."""
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def secured_kafka(
    tmp_path_factory: pytest.TempPathFactory, authority: CertificateAuthority
) -> Iterator[RealKafka]:
    """A broker with a second door; tests prepare topics by the first."""
    secure = SecureListener(authority.certificate("broker", "127.0.0.1"), USER, PASSWORD)
    with RealKafka(tmp_path_factory.mktemp("secured-kafka"), secure=secure) as kafka:
        yield kafka


@pytest.fixture(params=["SCRAM-SHA-512", "PLAIN"])
def settings(
    request: pytest.FixtureRequest,
    secured_kafka: RealKafka,
    authority: CertificateAuthority,
    tmp_path: Path,
) -> dict[str, str]:
    """Settings as the docs show them: the password is in a file on the member."""
    secret = tmp_path / "kafka-password"
    secret.write_text(PASSWORD + "\n")
    return {
        "bootstrap.servers": secured_kafka.secure_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.ca_file),
        "sasl.mechanism": request.param,
        "sasl.username": USER,
        "sasl.password": f"@{secret}",
        "log_level": "0",
    }


@pytest.fixture
async def topics(secured_kafka: RealKafka) -> tuple[str, str]:
    """A topic with 40 messages, and an empty one."""
    source, out = f"in-{uuid4().hex[:12]}", f"out-{uuid4().hex[:12]}"
    for name in (source, out):
        await asyncio.to_thread(secured_kafka.create, name, 3)
    producer = KafkaProducer(secured_kafka.config)
    for number, key in enumerate(KEYS, start=1):
        producer.produce(source, json.dumps({"key": key, "n": number}).encode(), key.encode())
    assert producer.flush(30) == 0
    return source, out


@dataclass
class Totals(Counting):
    """Counts a topic's messages by key in a JSON file, and sends each new count into another topic."""

    source: KafkaSource | None = None
    to: KafkaOutput | None = None
    record_outputs: list[KafkaOutput] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read the topic."""
        assert self.source is not None
        self.read_messages = self.source.read_messages
        self.replay_range = self.source.replay_range
        self.read_through = self.source.read_through

    def consume_message(
        self, shard: Shard, store: JsonFileStore[Counts], envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count and send."""
        super().consume_message(shard, store, envelope, publisher)
        key = envelope.message["key"]
        publisher.publish_record(self.to, {"key": key, "count": store.state[key]})


def totals(topics: tuple[str, str], settings: dict[str, str], directory: Path) -> Totals:
    """Return the application."""
    source, out = topics
    to = KafkaOutput(out, KafkaCluster(settings), key="key")
    read: dict[str, Any] = dict(settings)
    return Totals(
        directory, source=KafkaSource(source, JsonType(), read), to=to, record_outputs=[to]
    )


async def committed(kafka: RealKafka, topic: str, count: int) -> list[dict[str, Any]]:
    """Return the committed records of a topic once there are so many."""
    reader = CommittedReader(kafka.config, topic, partitions=3)

    async def are_there() -> bool:
        return len(await asyncio.to_thread(reader.catch_up)) >= count

    try:
        await eventually(are_there, timeout_seconds=60)
        return [json.loads(each.value or b"") for each in reader.records]
    finally:
        reader.close()


async def test_shard_reads_and_sends_behind_tls_and_passwords_without_a_journal(
    host: ShardHost,
    secured_kafka: RealKafka,
    settings: dict[str, str],
    topics: tuple[str, str],
    tmp_path: Path,
) -> None:
    """Every client, that of markers and limits too, connects with the user's settings and the file's password."""
    spec = spec_of(SHARD, max_seconds=0.1)
    await host.assign(spec)
    live = host.start(spec, totals(topics, settings, tmp_path))
    found = await committed(secured_kafka, topics[1], len(KEYS))
    await live.stop()

    by_key: dict[str, list[int]] = {}
    for each in found:
        by_key.setdefault(each["key"], []).append(each["count"])
    assert by_key == {f"k{key}": list(range(1, 9)) for key in range(5)}


async def test_relay_carries_a_topic_behind_tls_and_passwords(
    host: ShardHost, secured_kafka: RealKafka, settings: dict[str, str], topics: tuple[str, str]
) -> None:
    """The labels hold the name of the password's file; its content is in no spec."""
    source, out = topics
    sink = Sink(kind=SinkKind.KAFKA, to=out, settings=settings, from_topic=source)
    spec = spec_of(SHARD, max_seconds=0.1)
    spec.labels.CopyFrom(labels_of_sink(sink))
    assert PASSWORD not in str(spec)
    await host.assign(spec)
    host.start(spec, TopicRelay())

    found = await committed(secured_kafka, out, len(KEYS))

    assert sorted(each["n"] for each in found) == list(range(1, len(KEYS) + 1))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sasl.password": "wrong"}, "SASL"),
        ({"ssl.ca.location": "{tmp_path}/other.pem"}, "SSL"),
        ({"sasl.password": "@/absent/password"}, "cannot read the file /absent/password"),
    ],
    ids=["password", "authority", "file"],
)
async def test_wrong_secrets_fail_the_shard_with_their_kind_and_without_their_content(
    host: ShardHost,
    settings: dict[str, str],
    topics: tuple[str, str],
    tmp_path: Path,
    change: dict[str, str],
    problem: str,
) -> None:
    """An operator reads what is wrong in the shard's status, and a secret is never there."""
    CertificateAuthority(tmp_path, "other")
    changed = {name: value.format(tmp_path=tmp_path) for name, value in change.items()}
    spec = spec_of(SHARD, max_seconds=0.1)
    await host.assign(spec)
    host.start(spec, totals(topics, settings | changed, tmp_path))

    def is_told() -> bool:
        assert host.says(SHARD, ReplicaStatus.FAILED, problem), host.status(SHARD)
        assert "wrong" not in "".join(host.status(SHARD).errors)
        return True

    await eventually(is_told, timeout_seconds=120)
