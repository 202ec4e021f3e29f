"""A shard's way into Kafka, over a Kafka in memory: killed at every step, and refused where it must be."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from broadsheet.consumer.application import RecordConnection, RecordHeaders
from broadsheet.consumer.direct import KafkaCluster, KafkaOutput
from broadsheet.consumer.direct.record_intents import encoded_head, parse_intent
from broadsheet.consumer.errors import OutputDoubtError, SinkFencedError, UnsupportedSpecError
from broadsheet.consumer.shard.record_outputs import RecordOutputs
from broadsheet.consumer.stores.kafka.marker import DIRECT_METADATA, inline_metadata
from broadsheet.consumer.stores.kafka.store import KafkaStore
from broadsheet.journals.content.json import JsonType
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.stores.subject import FixedShard
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.virtual_kafka import KilledError, VirtualKafka

RECORDS = 60
KEYS = 5
SINK = "/root/shard"
MARKER = (SINK, "broadsheet-checkpoints", 0)
KEY = "kafka:default"
STAMP = "stamp"
DURABLE: Future[object] = Future()
DURABLE.set_result(None)
PLACES = ("before", "stored", "begun", "half", "all", "marked", "committed", "after", "opening")


@dataclass
class Stored:
    """A store, as far as a connection needs one: what outlives the process."""

    number: int = 0
    intent: bytes = b""


@dataclass
class World:
    """What outlives the process."""

    kafka: VirtualKafka = field(default_factory=lambda: VirtualKafka({"out": 3}))
    stored: Stored = field(default_factory=Stored)

    def cluster(self) -> KafkaCluster:
        """Return the cluster as an application declares it."""
        return KafkaCluster({"bootstrap.servers": "memory"}, clients=self.kafka.clients)


def open_connection(world: World, *, bytes_max: int = 1 << 20) -> RecordConnection:
    """Return a started connection."""
    shard = FixedShard(id="shard", root="/root")
    connection = world.cluster().open(shard, bytes_max=bytes_max, clock=SystemClock())
    connection.start()
    return connection


def recovered(world: World, connection: RecordConnection) -> None:
    """Do what follows a restore."""
    intent = connection.settle(world.stored.intent, object())  # type: ignore[arg-type]  # any store but one
    connection.acknowledge(intent, None, recovered=True).result(30)


class Stamped(JsonType):
    """JSON whose readers need a header, as they do where schema ids are there; implements `EncodesRecords`."""

    def encode_record(self, message: Any) -> tuple[bytes, RecordHeaders]:
        """Return the header with the message."""
        return self.encode(message), ((STAMP, str(message["n"]).encode()),)


def output(world: World) -> KafkaOutput:
    """Return the output."""
    return KafkaOutput("out", world.cluster(), Stamped(), key="key")


def publish(connection: RecordConnection, to: KafkaOutput, number: int) -> None:
    """Publish a number of a key."""
    connection.add(to, {"key": f"k{number % KEYS}", "n": number}, None, ())


def live(world: World) -> None:
    """One life, from its restore to the end of the records, unless it dies."""
    connection, to = open_connection(world), output(world)
    world.kafka.die("opening")
    recovered(world, connection)
    while world.stored.number < RECORDS:
        number = world.stored.number
        end = min(RECORDS, number + 1 + number * 7919 % 11)
        for each in range(number, end):
            publish(connection, to, each)
        intent = connection.take_intent()
        world.kafka.die("before")
        world.stored = Stored(end, intent)
        world.kafka.die("stored")
        connection.acknowledge(intent, DURABLE, recovered=False).result(30)
        world.kafka.die("after")
    connection.close()


def sent(kafka: VirtualKafka) -> dict[bytes, list[int]]:
    """Return the numbers of each key, each of which has one partition."""
    numbers, partitions = defaultdict(list), defaultdict(set)
    for record in kafka.committed:
        message = json.loads(record.value or b"")
        assert list(record.headers) == [(STAMP, str(message["n"]).encode())]
        numbers[record.key or b""].append(message["n"])
        partitions[record.key].add(record.partition)
    assert all(len(each) == 1 for each in partitions.values())
    return numbers


@pytest.mark.parametrize("seed", range(16))
def test_connection_that_is_killed_anywhere_sends_each_record_once_in_order(seed: int) -> None:
    """Before and after each step of the store's commit and of Kafka's transaction, also while it recovers."""
    world, random, lives = World(), Random(seed), 0

    while world.stored.number < RECORDS or lives == 0:
        lives += 1
        place, left = random.choice(PLACES), random.randint(1, 3)

        def die(at: str, place: str = place) -> None:
            nonlocal left
            if at == place:
                left -= 1
                if left == 0:
                    raise KilledError

        world.kafka.die = die if lives < 30 else lambda _: None
        try:
            live(world)
        except KilledError:
            # The threads of a process die with it: one that opens late must not fence the next life.
            world.kafka.life += 1
    world.kafka.die = lambda _: None
    live(world)

    expected = {f"k{key}".encode(): list(range(key, RECORDS, KEYS)) for key in range(KEYS)}
    assert sent(world.kafka) == expected


def test_zombie_is_fenced_behind_its_successor() -> None:
    """Its commit of the store may have succeeded; what it sends afterwards would be there twice."""
    world = World()
    zombie, to = open_connection(world), output(world)
    recovered(world, zombie)
    publish(zombie, to, 0)
    intent = zombie.take_intent()
    world.stored = Stored(1, intent)
    successor = open_connection(world)
    recovered(world, successor)

    with pytest.raises(SinkFencedError):
        zombie.acknowledge(intent, DURABLE, recovered=False).result(30)

    assert [record.key for record in world.kafka.committed] == [b"k0"]


def interrupted(world: World, transactions: int) -> None:
    """Leave a store whose last intent Kafka has not got."""
    connection, to = open_connection(world), output(world)
    recovered(world, connection)
    for number in range(transactions):
        publish(connection, to, number)
        intent = connection.take_intent()
        world.stored = Stored(number + 1, intent)
        if number + 1 < transactions:
            connection.acknowledge(intent, DURABLE, recovered=False).result(30)
    connection.close()


def test_forgotten_marker_is_refused_with_the_way_out() -> None:
    """Kafka forgets offsets: to send again may double the records, not to send may lose them."""
    world = World()
    interrupted(world, 3)
    del world.kafka.markers[MARKER]

    with pytest.raises(
        OutputDoubtError, match=r"shardctl kafka assume /root/shard produced.*--number 3"
    ):
        recovered(world, open_connection(world))


def test_group_whose_coordinator_moves_is_asked_again() -> None:
    """Brokers restart, and say so for a moment: no reason to end the attempt."""
    world = World()
    interrupted(world, 2)
    world.kafka.moves = 2

    recovered(world, open_connection(world))

    assert [record.key for record in world.kafka.committed] == [b"k0", b"k1"]


def test_restored_record_of_a_partition_that_is_gone_goes_to_one_that_there_is() -> None:
    """The topic was created again with fewer; the next record of its key is in the same partition."""
    world = World()
    interrupted(world, 2)
    world.kafka.topics["out"] = 1

    connection = open_connection(world)
    recovered(world, connection)
    publish(connection, output(world), 1 + KEYS)
    intent = connection.take_intent()
    connection.acknowledge(intent, DURABLE, recovered=False).result(30)

    assert [(each.partition, each.key) for each in world.kafka.committed[1:]] == [(0, b"k1")] * 2


@pytest.mark.parametrize(("assumed", "expected"), [(3, 2), (2, 3)])
def test_marker_that_an_operator_assumed_decides(assumed: int, expected: int) -> None:
    """Behind `shardctl kafka assume`: produced sends nothing, not-produced sends the records."""
    world = World()
    interrupted(world, 3)
    world.kafka.markers[MARKER] = assumed, DIRECT_METADATA

    recovered(world, open_connection(world))

    assert len(world.kafka.committed) == expected


@pytest.mark.parametrize("marker", [1, 5])
def test_store_that_was_set_back_is_refused(marker: int) -> None:
    """A store of a backup, or a second root: both numbers are named."""
    world = World()
    interrupted(world, 3)
    world.kafka.markers[MARKER] = marker, DIRECT_METADATA

    with pytest.raises(OutputDoubtError, match=f"transaction 3, Kafka at {marker}"):
        recovered(world, open_connection(world))


def test_empty_store_beside_a_marker_is_refused() -> None:
    """A store that was lost would send all of it again."""
    world = World()
    world.kafka.markers[MARKER] = 4, DIRECT_METADATA

    with pytest.raises(OutputDoubtError, match="transaction 0, Kafka at 4"):
        recovered(world, open_connection(world))


def test_group_of_a_store_in_kafka_is_refused() -> None:
    """A shard that was a relay has its checkpoint there: it is not ours to overwrite."""
    world = World()
    world.kafka.markers[MARKER] = 4, inline_metadata(b"checkpoint") or ""

    with pytest.raises(OutputDoubtError, match="KafkaStore"):
        recovered(world, open_connection(world))


def test_intent_of_the_shard_that_was_split_is_left_to_it() -> None:
    """The parent sends its records; the child begins at 0, with a group of its own."""
    world = World()
    connection, to = open_connection(world), output(world)
    world.stored.intent = encoded_head(9, "/root/parent")
    recovered(world, connection)
    publish(connection, to, 0)

    assert parse_intent(connection.take_intent(), "intent").number == 1


def test_commit_that_fails_sends_nothing() -> None:
    """Records are of a transaction that never was."""
    world = World()
    connection, to = open_connection(world), output(world)
    recovered(world, connection)
    publish(connection, to, 0)
    commit: Future[Any] = Future()
    sending = connection.acknowledge(connection.take_intent(), commit, recovered=False)
    commit.set_exception(OSError("disk"))

    with pytest.raises(OSError, match="disk"):
        sending.result(30)
    assert not world.kafka.committed


def test_transaction_without_records_asks_nothing_of_kafka() -> None:
    """Most transactions of some shards publish nothing; their commits remember the number."""
    world = World()
    interrupted(world, 2)
    connection = open_connection(world)
    recovered(world, connection)
    before = dict(world.kafka.markers)

    intent = connection.take_intent()

    assert connection.acknowledge(intent, Future(), recovered=False).done()
    assert parse_intent(intent, "intent").number == 2
    assert world.kafka.markers == before


def test_transaction_is_full_at_its_bound_and_fails_beyond_eight_times_that() -> None:
    """The commit holds the records; the error names the relay, which has no bound."""
    world = World()
    connection, to = open_connection(world, bytes_max=1_000), output(world)

    connection.add(to, b"v" * 990, None, ())

    assert connection.is_full
    with pytest.raises(ValidationError, match=r"8000 bytes.*shardctl sink kafka"):
        for _ in range(8):
            connection.add(to, b"v" * 990, None, ())


def test_record_over_the_topics_limit_is_refused_before_the_commit() -> None:
    """Kafka would never take it, and the shard would be stuck for ever."""
    world = World(kafka=VirtualKafka({"out": 1}, settings={"max.message.bytes": "1000"}))
    connection = open_connection(world)

    with pytest.raises(ValidationError, match="topic out"):
        connection.add(output(world), b"v" * 600, None, ())


def test_headers_of_the_message_type_are_in_the_commit_beside_the_application_s() -> None:
    """So a restart needs no registry to send them; they count in what a transaction may hold."""
    world = World()
    connection, to = open_connection(world), output(world)
    connection.add(to, {"key": "a", "n": 1}, None, [("trace", None)])
    with_headers = connection.queued_bytes
    (record,) = parse_intent(connection.take_intent(), "intent").records
    assert record.headers == (("trace", None), (STAMP, b"1"))

    connection.add(to, record.value, b"a", ())

    assert connection.queued_bytes < with_headers - len("trace" + STAMP)
    (plain,) = parse_intent(connection.take_intent(), "intent").records
    assert plain.headers == (), "bytes are sent as they are"


def test_second_header_of_the_message_type_s_name_is_refused() -> None:
    """Readers would find two schemas; nothing of the record is taken."""
    world = World()
    connection, to = open_connection(world), output(world)
    with pytest.raises(ValidationError, match=r"headers\[stamp\]: expected none"):
        connection.add(to, {"key": "a", "n": 1}, None, [(STAMP, b"2")])
    assert connection.queued_bytes == 0


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ([("h", b"")] * 46, 500),  # Each has two lengths, which a broker counts.
        ([("ü" * 245, None)], 490),  # In UTF-8 twice as long as it has letters.
        ([("h", b"v" * 489)], 490),
    ],
)
def test_headers_count_in_the_length_of_a_record(
    headers: list[tuple[str, bytes | None]], length: int
) -> None:
    """As at the broker, which would refuse for ever what the store has committed."""
    settings = {"max.message.bytes": str(512 + length)}
    world = World(kafka=VirtualKafka({"out": 1}, settings=settings))
    connection = open_connection(world)

    with pytest.raises(ValidationError, match=f"expected a record of {length} bytes at most"):
        connection.add(output(world), b"", None, headers)


def test_store_in_the_same_cluster_is_refused() -> None:
    """Two producers of one transactional id would fence each other without end."""
    world = World()
    shard = FixedShard(id="shard", root="/root")
    store = KafkaStore(shard, {"bootstrap.servers": "memory"})

    with pytest.raises(UnsupportedSpecError, match="KafkaStore"):
        open_connection(world).settle(b"", store)


@dataclass
class Publishing:
    """An application, as far as its outputs go."""

    record_outputs: list[KafkaOutput]


def outputs_of(*outputs: KafkaOutput) -> RecordOutputs:
    """Return the connections of an application's outputs."""
    application: Any = Publishing(list(outputs))
    shard = FixedShard(id="shard", root="/root")
    return RecordOutputs.of(application, shard, bytes_max=1_000, clock=SystemClock())


def test_two_clusters_of_one_name_are_refused() -> None:
    """Their numbers would be one."""
    with pytest.raises(ValidationError, match="one cluster of this name"):
        outputs_of(output(World()), output(World()))


def test_records_for_a_cluster_that_the_application_does_not_name_any_more_are_kept() -> None:
    """A release without the output must not lose what the one before committed; without records it is remembered."""
    world = World()
    interrupted(world, 2)
    checkpoint = Checkpoint(ack_intents={KEY: world.stored.intent})
    with pytest.raises(UnsupportedSpecError, match="records that it has not got yet"):
        outputs_of().settle(checkpoint, object())  # type: ignore[arg-type]  # any store

    remembering = outputs_of()
    bare = encoded_head(2, SINK)
    remembering.settle(Checkpoint(ack_intents={KEY: bare}), object())  # type: ignore[arg-type]  # any store

    assert remembering.take_intents() == {KEY: bare}


def test_old_marker_is_committed_again_and_short_retention_shortens_its_age() -> None:
    """A shard that publishes rarely must not be forgotten."""
    world = World(kafka=VirtualKafka({"out": 1}, settings={"offsets.retention.minutes": "1"}))
    world.kafka.markers[MARKER] = 2, DIRECT_METADATA
    world.stored.intent = encoded_head(2, SINK)
    connection = open_connection(world)
    recovered(world, connection)
    world.kafka.markers.clear()

    connection.renew()
    connection.acknowledge(world.stored.intent, None, recovered=True).result(30)

    assert world.kafka.markers[MARKER] == (2, DIRECT_METADATA)


def test_marker_that_was_forgotten_while_nothing_was_sent_is_committed_again() -> None:
    """Otherwise the next records of a shard that was long idle could not be told to be there or not."""
    world = World()
    world.stored.intent = encoded_head(2, SINK)
    recovered(world, open_connection(world))

    assert world.kafka.markers[MARKER] == (2, DIRECT_METADATA)


def test_declared_output_is_sent_to_executors_without_what_it_has_opened() -> None:
    """Applications are pickled; clients, locks and secrets read from files are not."""
    world = World()
    declared = KafkaOutput("out", KafkaCluster({"bootstrap.servers": "b", "sasl.password": "@/p"}))
    copied: KafkaOutput = pickle.loads(pickle.dumps(declared))  # noqa: S301 - our own

    assert copied.topic == "out"
    assert copied.cluster.config == declared.cluster.config
    assert "sasl" not in repr(copied)
    assert world.cluster().limits("out", 1.0).partitions == 3


@pytest.mark.parametrize("name", ["transactional.id", "acks", "isolation.level", "group.id"])
def test_setting_on_which_exactly_once_depends_is_refused_by_name(name: str) -> None:
    """Settings pass through, ours cannot be contradicted."""
    with pytest.raises(ValidationError, match=name.replace(".", r"\.")):
        KafkaCluster({"bootstrap.servers": "b", name: "x"})
