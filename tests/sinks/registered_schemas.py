"""Topics whose schemas are in a real Schema Registry (Apicurio's), as sources and as outputs, over a real Kafka.

What Confluent's own serializers wrote is read, and their deserializers read what was sent. Too slow for CI:
`make nightly-sinks`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from broadsheet.consumer.application import Shard
from broadsheet.consumer.direct import KafkaCluster, KafkaOutput
from broadsheet.consumer.schema_registry.registered_type import RegisteredType
from broadsheet.consumer.schema_registry.registry import SchemaRegistry
from broadsheet.consumer.sources import KafkaSource
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire.journal_pb2 import Label
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.kafka_sinks import CommittedReader, Sent
from tests.support.live_shards import SHARD, Counting, Counts, ShardHost, spec_of
from tests.support.real_kafka import RealKafka
from tests.support.schema_registries import RunningRegistry, running_schema_registry

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]

MESSAGES = 40
_FIELDS = [{"name": "name", "type": "string"}, {"name": "value", "type": "string"}]
AVRO = json.dumps({"type": "record", "name": "Pair", "fields": _FIELDS})
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Pair",
        "type": "object",
        "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
        "required": ["name", "value"],
    }
)


@dataclass(frozen=True)
class Form:
    """One kind of schema: as an application declares it, and Confluent's own codecs."""

    name: str
    typed: Callable[[SchemaRegistry, str], RegisteredType]
    serializer: Callable[[SchemaRegistryClient], Any]
    deserializer: Callable[[SchemaRegistryClient], Any]
    message: Callable[[str, str], Any]

    def __str__(self) -> str:
        return self.name


def as_dict(name: str, value: str) -> dict[str, str]:
    """Return a message of Avro and of JSON."""
    return {"name": name, "value": value}


FORMS = [
    Form(
        "avro",
        lambda registry, topic: registry.avro(topic, AVRO),
        lambda client: AvroSerializer(client, AVRO),
        AvroDeserializer,
        as_dict,
    ),
    Form(
        "json",
        lambda registry, topic: registry.json(topic, JSON),
        lambda client: JSONSerializer(JSON, client),
        lambda client: JSONDeserializer(None, schema_registry_client=client),
        as_dict,
    ),
    Form(
        "protobuf",
        lambda registry, topic: registry.protobuf(topic, Label),
        lambda client: ProtobufSerializer(Label, client),
        lambda client: ProtobufDeserializer(Label),
        lambda name, value: Label(name=name, value=value),
    ),
]


def field_of(message: Any, name: str) -> str:
    """Return a field of a dict or of a protobuf message."""
    found: str = message[name] if isinstance(message, dict) else getattr(message, name)
    return found


@pytest.fixture(scope="module")
def running_registry() -> Iterator[RunningRegistry]:
    """A registry for all tests; subjects are of their own topics."""
    with running_schema_registry() as running:
        yield running


@pytest.fixture
def client(running_registry: RunningRegistry) -> Iterator[SchemaRegistryClient]:
    """Confluent's own."""
    with SchemaRegistryClient({"url": running_registry.url}) as client:
        yield client


@pytest.fixture
def registry(running_registry: RunningRegistry) -> Iterator[SchemaRegistry]:
    """As an application declares it, except that it gives up soon."""
    registry = SchemaRegistry({"url": running_registry.url, "timeout": 2.0})
    yield registry
    registry.close()


@pytest.fixture
async def topics(real_kafka: RealKafka) -> tuple[str, str]:
    """Two empty topics."""
    source, out = f"in-{uuid4().hex[:12]}", f"out-{uuid4().hex[:12]}"
    for name in (source, out):
        await asyncio.to_thread(real_kafka.create, name, 3)
    return source, out


def context(topic: str) -> SerializationContext:
    """Return what Confluent's codecs want to know."""
    return SerializationContext(topic, MessageField.VALUE)


def produce(kafka: RealKafka, topic: str, values: list[bytes]) -> None:
    """Send values; those of a key keep their order."""
    producer = KafkaProducer(kafka.config)
    for number, value in enumerate(values):
        producer.produce(topic, value, f"k{number % 5}")
    assert producer.flush(30) == 0


@dataclass
class Totals(Counting):
    """Counts the messages of each name in a JSON file, and sends each new count."""

    source: KafkaSource | None = None
    form: Form = FORMS[0]
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
        name = field_of(envelope.message, "name")
        store.state[name] = store.state.get(name, 0) + 1
        publisher.publish_record(self.to, self.form.message(name, str(store.state[name])))


def totals(
    kafka: RealKafka, registry: SchemaRegistry, topics: tuple[str, str], form: Form, path: Path
) -> Totals:
    """Return the application."""
    source, out = topics
    to = KafkaOutput(out, KafkaCluster(kafka.config), form.typed(registry, out), key="name")
    read = KafkaSource(source, form.typed(registry, source), kafka.config)
    return Totals(path, source=read, form=form, to=to, record_outputs=[to])


async def sent_values(kafka: RealKafka, topic: str, count: int) -> list[bytes]:
    """Return the committed values of a topic once there are so many."""
    return [each.value or b"" for each in await sent_records(kafka, topic, count)]


async def sent_records(kafka: RealKafka, topic: str, count: int) -> list[Sent]:
    """Return the committed records of a topic once there are so many."""
    reader = CommittedReader(kafka.config, topic, partitions=3)

    async def are_there() -> bool:
        return len(await asyncio.to_thread(reader.catch_up)) >= count

    try:
        await eventually(are_there, timeout_seconds=120)
        return reader.records
    finally:
        reader.close()


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_shard_reads_and_sends_what_confluent_s_codecs_write_and_read(
    host: ShardHost,
    real_kafka: RealKafka,
    client: SchemaRegistryClient,
    registry: SchemaRegistry,
    topics: tuple[str, str],
    form: Form,
    tmp_path: Path,
) -> None:
    """Each count arrives once, in order by key, under the id of the subject's schema."""
    serializer = form.serializer(client)
    values = [
        serializer(form.message(f"k{number % 5}", "x"), context(topics[0]))
        for number in range(MESSAGES)
    ]
    await asyncio.to_thread(produce, real_kafka, topics[0], values)
    spec = spec_of(SHARD, max_seconds=0.1)
    await host.assign(spec)
    live = host.start(spec, totals(real_kafka, registry, topics, form, tmp_path))

    found = await sent_values(real_kafka, topics[1], MESSAGES)
    await live.stop()

    deserializer = form.deserializer(client)
    counts: dict[str, list[str]] = {}
    for value in found:
        message = deserializer(value, context(topics[1]))
        counts.setdefault(field_of(message, "name"), []).append(field_of(message, "value"))
    each = [str(number) for number in range(1, MESSAGES // 5 + 1)]
    assert counts == {f"k{key}": each for key in range(5)}
    latest = client.get_latest_version(f"{topics[1]}-value")
    assert latest.schema_id is not None
    assert {value[:5] for value in found} == {b"\0" + latest.schema_id.to_bytes(4, "big")}


async def test_keys_are_sent_and_read_by_schemas_of_their_own(
    host: ShardHost,
    real_kafka: RealKafka,
    client: SchemaRegistryClient,
    registry: SchemaRegistry,
    topics: tuple[str, str],
    tmp_path: Path,
) -> None:
    """Confluent's deserializer reads them, and so does the type of the topic's keys."""
    form, (source, out) = FORMS[0], topics
    serializer = form.serializer(client)
    values = [
        serializer(form.message(f"k{number % 5}", "x"), context(source))
        for number in range(MESSAGES)
    ]
    await asyncio.to_thread(produce, real_kafka, source, values)
    application = totals(real_kafka, registry, topics, form, tmp_path)
    assert application.to is not None
    keys = registry.avro(out, '"string"', of="key")
    application.to = replace(application.to, key_type=keys)
    application.record_outputs = [application.to]
    spec = spec_of(SHARD, max_seconds=0.1)
    await host.assign(spec)
    host.start(spec, application)

    found = await sent_records(real_kafka, out, MESSAGES)

    deserializer = form.deserializer(client)
    key_context = SerializationContext(out, MessageField.KEY)
    for each in found:
        assert each.key is not None
        name = deserializer(each.value, context(out))["name"]
        assert AvroDeserializer(client)(each.key, key_context) == keys.decode(each.key) == name
    assert client.get_latest_version(f"{out}-key").schema_id is not None


async def test_shard_waits_for_a_registry_that_does_not_answer(
    host: ShardHost,
    real_kafka: RealKafka,
    running_registry: RunningRegistry,
    client: SchemaRegistryClient,
    registry: SchemaRegistry,
    topics: tuple[str, str],
    tmp_path: Path,
) -> None:
    """An outage is no fault of a message: none is left out, and none comes twice."""
    form = FORMS[0]
    serializer = form.serializer(client)
    values = [
        serializer(form.message(f"k{each % 5}", "x"), context(topics[0]))
        for each in range(MESSAGES)
    ]
    await asyncio.to_thread(produce, real_kafka, topics[0], values)
    spec = spec_of(SHARD, max_seconds=0.1)
    await host.assign(spec)
    running_registry.pause(paused=True)
    try:
        host.start(spec, totals(real_kafka, registry, topics, form, tmp_path))

        def is_told() -> bool:
            status = host.status(SHARD)
            return f"schema registry, subject {topics[0]}-value: timed out" in str(status)

        await eventually(is_told, timeout_seconds=60)
        assert "(transient)" in str(host.status(SHARD))
    finally:
        running_registry.pause(paused=False)

    found = await sent_values(real_kafka, topics[1], MESSAGES)
    assert len(found) == MESSAGES


async def test_value_of_a_schema_that_the_registry_lacks_fails_the_shard_by_subject_and_id(
    host: ShardHost,
    real_kafka: RealKafka,
    registry: SchemaRegistry,
    topics: tuple[str, str],
    tmp_path: Path,
) -> None:
    """The operator reads which schema is missing, and where."""
    await asyncio.to_thread(produce, real_kafka, topics[0], [b"\0" + (9_999).to_bytes(4, "big")])
    spec = spec_of(SHARD, max_seconds=0.1)
    await host.assign(spec)
    host.start(spec, totals(real_kafka, registry, topics, FORMS[0], tmp_path))

    problem = f"subject {topics[0]}-value, schema id 9999: "

    def is_told() -> bool:
        assert host.says(SHARD, ReplicaStatus.FAILED, problem), host.status(SHARD)
        return True

    await eventually(is_told, timeout_seconds=120)
