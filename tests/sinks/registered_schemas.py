"""Topics whose schemas are in a real Schema Registry (Apicurio's), as sources and as outputs, over a real Kafka.

What Confluent's own serializers wrote is read, and their deserializers read what was sent. Too slow for CI:
`make nightly-sinks`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from broadsheet.consumer.application import Shard
from broadsheet.consumer.direct import KafkaCluster, KafkaOutput
from broadsheet.consumer.errors import SourceError
from broadsheet.consumer.schema_registry.registered_type import RegisteredType
from broadsheet.consumer.schema_registry.registry import SchemaRegistry
from broadsheet.consumer.schema_registry.schema_ids import SchemaIdPlace
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.sources import KafkaSource
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import read_committed
from broadsheet.wire.journal_pb2 import Label
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, label_set
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.kafka_sinks import CommittedReader, Sent
from tests.support.live_shards import SECOND_SOURCE, SHARD, Counting, Counts, ShardHost, spec_of
from tests.support.real_kafka import RealKafka
from tests.support.schema_guids import guid_of, with_guids
from tests.support.schema_registries import RunningRegistry, running_schema_registry

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]

MESSAGES = 40
VALUE_HEADER = "__value_schema_id"
Headers = Sequence[tuple[str, bytes | None]]
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
    typed: Callable[..., RegisteredType]
    serializer: Callable[[SchemaRegistryClient, dict[str, Any]], Any]
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
        lambda registry, topic, **more: registry.avro(topic, AVRO, **more),
        lambda client, conf: AvroSerializer(client, AVRO, conf=conf),
        AvroDeserializer,
        as_dict,
    ),
    Form(
        "json",
        lambda registry, topic, **more: registry.json(topic, JSON, **more),
        lambda client, conf: JSONSerializer(JSON, client, conf=conf),
        lambda client: JSONDeserializer(None, schema_registry_client=client),
        as_dict,
    ),
    Form(
        "protobuf",
        lambda registry, topic, **more: registry.protobuf(topic, Label, **more),
        lambda client, conf: ProtobufSerializer(Label, client, conf=conf),
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


@dataclass(frozen=True)
class RegistryWithGuids:
    """A registry whose schemas have GUIDs, by both clients."""

    theirs: SchemaRegistryClient
    ours: SchemaRegistry
    asked: list[str]


@pytest.fixture
def with_headers(running_registry: RunningRegistry) -> Iterator[RegistryWithGuids]:
    """The same registry, with GUIDs."""
    with (
        with_guids(running_registry.url) as (url, asked),
        SchemaRegistryClient({"url": url}) as theirs,
    ):
        ours = SchemaRegistry({"url": url})
        yield RegistryWithGuids(theirs, ours, asked)
        ours.close()


@pytest.fixture
async def topics(real_kafka: RealKafka) -> tuple[str, str]:
    """Two empty topics."""
    source, out = f"in-{uuid4().hex[:12]}", f"out-{uuid4().hex[:12]}"
    for name in (source, out):
        await asyncio.to_thread(real_kafka.create, name, 3)
    return source, out


def context(topic: str, headers: Headers = ()) -> SerializationContext:
    """Return what Confluent's codecs want to know."""
    return SerializationContext(topic, MessageField.VALUE, headers=list(headers))


def produce(
    kafka: RealKafka, topic: str, values: list[bytes], headers: list[Headers] | None = None
) -> None:
    """Send values, perhaps each with headers; those of a key keep their order."""
    producer = KafkaProducer(kafka.config)
    for number, value in enumerate(values):
        more: Headers = headers[number] if headers else ()
        producer.produce(topic, value, f"k{number % 5}", headers=list(more))
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
        # Confluent's deserializer of Avro refuses a body of 5 bytes that has its id in a header.
        publisher.publish_record(self.to, self.form.message(name, f"{store.state[name]:06}"))


def totals(
    kafka: RealKafka,
    registry: SchemaRegistry,
    topics: tuple[str, str],
    form: Form,
    path: Path,
    id_in: SchemaIdPlace = "prefix",
) -> Totals:
    """Return the application."""
    source, out = topics
    sent = form.typed(registry, out, id_in=id_in)
    to = KafkaOutput(out, KafkaCluster(kafka.config), sent, key="name")
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
    serializer = form.serializer(client, {})
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
    each = [f"{number:06}" for number in range(1, MESSAGES // 5 + 1)]
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
    serializer = form.serializer(client, {})
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

    # One of each: a new one asks the registry again, and Apicurio's has left such a request without an answer.
    deserializer, key_deserializer = form.deserializer(client), AvroDeserializer(client)
    key_context = SerializationContext(out, MessageField.KEY)
    for each in found:
        assert each.key is not None
        name = deserializer(each.value, context(out))["name"]
        assert key_deserializer(each.key, key_context) == keys.decode(each.key) == name
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
    serializer = form.serializer(client, {})
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


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_ids_in_headers_are_read_and_sent_as_confluent_s_codecs_write_and_read_them(
    host: ShardHost,
    real_kafka: RealKafka,
    with_headers: RegistryWithGuids,
    topics: tuple[str, str],
    form: Form,
    tmp_path: Path,
) -> None:
    """Among records with the id before the body, in one topic; each count arrives once, in order by key, under the
    GUID of the subject's schema.
    """
    source, out = topics
    theirs = with_headers.theirs
    by_prefix = form.serializer(theirs, {})
    by_header = form.serializer(theirs, {"schema.id.serializer": header_schema_id_serializer})
    values: list[bytes] = []
    headers: list[Headers] = []
    for number in range(MESSAGES):
        serializer = by_header if number % 3 else by_prefix
        added = context(source, [("trace", b"1")])
        values.append(serializer(form.message(f"k{number % 5}", "x"), added))
        assert isinstance(added.headers, list)
        assert len(added.headers) == (2 if number % 3 else 1)
        headers.append(cast("Headers", added.headers))
    await asyncio.to_thread(produce, real_kafka, source, values, headers)
    spec = spec_of(SHARD, max_seconds=0.1)
    await host.assign(spec)
    live = host.start(
        spec, totals(real_kafka, with_headers.ours, topics, form, tmp_path, id_in="header")
    )

    found = await sent_records(real_kafka, out, MESSAGES)
    await live.stop()

    deserializer = form.deserializer(theirs)
    counts: dict[str, list[str]] = {}
    for each in found:
        message = deserializer(each.value, context(out, each.headers))
        counts.setdefault(field_of(message, "name"), []).append(field_of(message, "value"))
    expected = [f"{number:06}" for number in range(1, MESSAGES // 5 + 1)]
    assert counts == {f"k{key}": expected for key in range(5)}
    latest = theirs.get_latest_version(f"{out}-value")
    assert latest.schema_id is not None
    guid = b"\x01" + UUID(guid_of(latest.schema_id)).bytes
    which = b"\0" if form.name == "protobuf" else b""
    assert {each.headers for each in found} == {((VALUE_HEADER, guid + which),)}


async def test_key_in_header_form_is_read_by_its_record_s_headers(
    real_kafka: RealKafka, with_headers: RegistryWithGuids, topics: tuple[str, str]
) -> None:
    """Key and value have a header each, and an application reads keys with the headers of their metadata."""
    _, out = topics
    ours = with_headers.ours
    keys = ours.avro(out, '"string"', of="key", id_in="header")
    cluster = KafkaCluster(real_kafka.config)
    output = KafkaOutput(
        out, cluster, ours.avro(out, AVRO, id_in="header"), key="name", key_type=keys
    )

    record = output.record_of(as_dict("a", "1"))

    assert record.key == b"\x02a"
    assert [name for name, _ in record.headers] == [VALUE_HEADER, "__key_schema_id"]
    assert keys.decode(record.key, record.headers) == "a"
    assert ours.avro(out).decode(record.value or b"", record.headers) == as_dict("a", "1")
    with pytest.raises(ValueError, match=f"subject {out}-key: expected an output with headers"):
        keys.encode("a")


async def test_hostile_headers_go_to_the_dead_letters_and_the_rest_is_read(
    host: ShardHost,
    journals: JournalClient,
    real_kafka: RealKafka,
    with_headers: RegistryWithGuids,
    topics: tuple[str, str],
    tmp_path: Path,
) -> None:
    """Nearly each of these records has a value that could be read by the id before its body, which is not its form; the
    last two have no damage, and a form each.
    """
    form, (source, out) = FORMS[0], topics
    serializer = form.serializer(with_headers.theirs, {})
    good = serializer(form.message("k0", "x"), context(source))
    guid = b"\x01" + UUID(guid_of(int.from_bytes(good[1:5], "big"))).bytes
    hostile: list[Headers] = [
        [(VALUE_HEADER, guid[:9])],
        [(VALUE_HEADER, b"\0" + guid[1:])],
        [(VALUE_HEADER, good[:5])],
        [(VALUE_HEADER, b"")],
        [(VALUE_HEADER, None)],
        [(VALUE_HEADER, guid + b"\0")],
        [(VALUE_HEADER, b"\x01" + bytes(16))],  # A GUID that the registry does not have.
        [(VALUE_HEADER, guid), (VALUE_HEADER, guid)],
        [(VALUE_HEADER, guid)],
    ]
    # The last of these has a body that ends before its time.
    values = [good] * (len(hostile) - 1) + [b"\x0a", good, good[5:]]
    headers = [*hostile, [], [(VALUE_HEADER, guid)]]
    await asyncio.to_thread(produce, real_kafka, source, values, headers)
    spec = spec_of(SHARD, max_seconds=0.1)
    spec.labels.CopyFrom(label_set({DEAD_LETTER_JOURNAL: SECOND_SOURCE}))
    await host.assign(spec)
    host.start(
        spec,
        totals(real_kafka, with_headers.ours, topics, form, tmp_path),
        # Each of them costs the shard some attempts.
        config=ShardConfig(restart_delay_seconds=0.02, stop_grace_seconds=2, attempts_max=100),
    )

    found = await sent_values(real_kafka, out, 2)

    counts = [form.deserializer(with_headers.theirs)(each, context(out))["value"] for each in found]
    assert counts == ["000001", "000002"]
    letters: list[dict[str, Any]] = []
    async with aclosing(
        read_committed(journals, SECOND_SOURCE, JsonType(), block=False)
    ) as batches:
        async for batch in batches:
            letters += batch.messages()
    causes = [letter["cause"] for letter in letters if "payload_base64" in letter]
    assert len([each for each in causes if f"subject {source}-value" in each]) == len(hostile), (
        causes
    )


async def test_registry_without_guids_is_told_by_its_subject(
    registry: SchemaRegistry, client: SchemaRegistryClient, topics: tuple[str, str]
) -> None:
    """A sender is refused; a record that is read is a damaged one, so that no producer stops a shard by it."""
    source, out = topics
    with pytest.raises(SourceError, match=f"subject {out}-value: it gives schemas no GUIDs"):
        registry.avro(out, AVRO, id_in="header").encode_record(as_dict("a", "1"))
    read = registry.avro(source)
    header = [(VALUE_HEADER, b"\x01" + bytes(16))]
    read.prepare([(b"\x02a", header)])
    with pytest.raises(
        ValueError, match=f"subject {source}-value, schema GUID .*: the registry knows no"
    ):
        read.decode(b"\x02a", header)
