"""Shards with state that send straight into a real Kafka."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from broadsheet.cli.doctor.findings import Severity, judge_kafka
from broadsheet.cli.doctor.kafka import facts_of
from broadsheet.cli.main import main
from broadsheet.consumer.application import Shard
from broadsheet.consumer.direct import KafkaCluster, KafkaOutput
from broadsheet.consumer.keyed import (
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    StateOptions,
    TxnTime,
    count,
    stream,
)
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.relay import Sink, SinkKind, labels_of_sink
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec
from tests.support.eventually import eventually
from tests.support.kafka_sinks import CommittedReader
from tests.support.live_shards import (
    OUTPUT,
    SHARD,
    SOURCE,
    Counting,
    Counts,
    ShardHost,
    has_read,
    spec_of,
)
from tests.support.members import Producer
from tests.support.real_kafka import RealKafka

pytestmark = pytest.mark.etcd

KEYS = [f"k{number % 5}" for number in range(40)]


@dataclass
class Totals(Counting):
    """Counts by key in a JSON file, and sends each new count into a topic."""

    to: KafkaOutput | None = None
    record_outputs: list[KafkaOutput] = field(default_factory=list)

    def consume_message(
        self, shard: Shard, store: JsonFileStore[Counts], envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count and send."""
        super().consume_message(shard, store, envelope, publisher)
        key = envelope.message["key"]
        publisher.publish_record(self.to, {"key": key, "count": store.state[key]})


@pytest.fixture
async def topic(real_kafka: RealKafka) -> str:
    """A topic of the test's own with three partitions."""
    name = f"totals-{uuid4().hex[:12]}"
    await asyncio.to_thread(real_kafka.create, name, 3)
    return name


@pytest.fixture
def totals(real_kafka: RealKafka, topic: str, tmp_path: Path) -> Totals:
    """The application, which also echoes into a journal."""
    to = KafkaOutput(topic, KafkaCluster(real_kafka.config), key="key")
    return Totals(tmp_path, output=OUTPUT, to=to, record_outputs=[to])


@pytest.fixture
def reader(real_kafka: RealKafka, topic: str) -> Iterator[CommittedReader]:
    """An outside reader of committed records."""
    reader = CommittedReader(real_kafka.config, topic, partitions=3)
    yield reader
    reader.close()


def sent(reader: CommittedReader) -> dict[str, list[int]]:
    """Return the counts of each key, in the order of its partition."""
    counts = defaultdict(list)
    for _, key, value, _ in reader.catch_up():
        message = json.loads(value or b"")
        assert key == message["key"].encode()
        assert set(message) == {"key", "count"}
        counts[message["key"]].append(message["count"])
    return counts


async def test_state_and_records_agree_over_restarts(
    host: ShardHost, journals: JournalClient, totals: Totals, reader: CommittedReader
) -> None:
    """Three lives: each count is in the topic once, in order, and a transaction that has committed is there."""
    producer, spec = Producer(journals), spec_of(SHARD, SOURCE, max_seconds=0.1)
    await host.assign(spec)
    for life in range(1, 4):
        end = await producer.publish(SOURCE, KEYS)
        live = host.start(spec, totals)

        await has_read(live, SOURCE, end)

        counts = await asyncio.to_thread(sent, reader)
        assert counts == {f"k{key}": list(range(1, 8 * life + 1)) for key in range(5)}
        await live.stop()


async def test_records_that_a_kill_left_in_the_store_are_sent_by_the_next_life(
    host: ShardHost,
    journals: JournalClient,
    totals: Totals,
    reader: CommittedReader,
    real_kafka: RealKafka,
) -> None:
    """Kafka stops between the store's commit and its own: the next life sends what the checkpoint holds, once."""
    producer, spec = Producer(journals), spec_of(SHARD, SOURCE, max_seconds=0.1)
    await host.assign(spec)
    await producer.publish(SOURCE, KEYS)
    live = host.start(spec, totals)
    await has_read(live, SOURCE, 1)
    real_kafka.pause(paused=True)
    try:
        await producer.publish(SOURCE, KEYS)
        await eventually(lambda: totals.stores[-1].state.get("k4") == 16)
        await eventually(lambda: totals.finished[-1].done())  # type: ignore[attr-defined]  # a commit
        await live.stop(grace_seconds=0)
    finally:
        real_kafka.pause(paused=False)

    end = await producer.publish(SOURCE, ["k0"])
    await has_read(host.start(spec, totals), SOURCE, end)

    counts = await asyncio.to_thread(sent, reader)
    assert counts.pop("k0") == list(range(1, 18))
    assert counts == {f"k{key}": list(range(1, 17)) for key in range(1, 5)}


async def test_topic_that_does_not_exist_is_waited_for_and_named(
    host: ShardHost, journals: JournalClient, real_kafka: RealKafka, tmp_path: Path
) -> None:
    """Nothing is lost, nothing is sent elsewhere: the shard says what is missing and goes on once it is there."""
    name = f"late-{uuid4().hex[:12]}"
    to = KafkaOutput(name, KafkaCluster(real_kafka.config), key="key")
    spec = spec_of(SHARD, SOURCE, max_seconds=0.1)
    await host.assign(spec)
    await Producer(journals).publish(SOURCE, KEYS)
    host.start(spec, Totals(tmp_path, to=to, record_outputs=[to]))
    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, f"no topic {name}"))

    await asyncio.to_thread(real_kafka.create, name, 3)

    reader = CommittedReader(real_kafka.config, name, partitions=3)

    async def is_sent() -> bool:
        return len(await asyncio.to_thread(reader.catch_up)) == len(KEYS)

    await eventually(is_sent)
    reader.close()


async def test_marker_is_a_committed_offset_of_the_shards_own_group(
    host: ShardHost, journals: JournalClient, totals: Totals, real_kafka: RealKafka
) -> None:
    """The name that operators look for; `shardctl kafka assume` writes the same."""
    spec = spec_of(SHARD, SOURCE, max_seconds=0.1)
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, KEYS)
    live = host.start(spec, totals)
    await has_read(live, SOURCE, end)

    root = host.key_space.keys.root
    config: dict[str, Any] = {**real_kafka.config, "group.id": f"{root}/{SHARD}"}
    consumer = Consumer(config)
    place = TopicPartition("broadsheet-checkpoints", 0)
    (found,) = await asyncio.to_thread(consumer.committed, [place], 30)
    consumer.close()

    assert found.offset >= 1
    assert found.metadata == "1 direct"


class Tally(KeyedProcessor):
    """Counts the rows of each key, and tells each count."""

    def init(self, state: StateHandle) -> None:
        """Declare the count."""
        self.count = state.value("count", int)

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Count."""
        del time
        before = self.count.get() or 0
        self.count.update(before + len(rows))
        for each in range(before + 1, before + len(rows) + 1):
            yield key[0], each


@pytest.mark.parametrize("kind", ["processor", "stream"])
async def test_keyed_rows_go_straight_to_a_topic(
    host: ShardHost,
    journals: JournalClient,
    real_kafka: RealKafka,
    topic: str,
    reader: CommittedReader,
    tmp_path: Path,
    kind: str,
) -> None:
    """A `KafkaOutput` stands where a `JournalOutput` does: for a processor, and for the operators of a stream."""
    cluster = KafkaCluster(real_kafka.config)
    state = StateOptions(directory=lambda _: LocalState(tmp_path / "state"), index="memory")
    application: Any
    if kind == "processor":
        application = KeyedApplication(
            Tally,
            key="key string",
            rows="key string, n long",
            output=KafkaOutput(topic, cluster, key="key", schema="key string, count long"),
            state=state,
        )
    else:
        counted = stream(SOURCE, "key string, n long").key_by("key").agg(count=count())
        application = counted.to(KafkaOutput(topic, cluster, key="key"), state=state)
    spec = spec_of(SHARD, SOURCE, max_seconds=0.1)
    await host.assign(spec)
    for life in range(1, 3):
        end = await Producer(journals).publish(SOURCE, KEYS)
        live = host.start(spec, application)
        await has_read(live, SOURCE, end)
        counts = await asyncio.to_thread(sent, reader)
        assert {key: each[-1] for key, each in counts.items()} == {
            f"k{key}": 8 * life for key in range(5)
        }
        assert all(each == sorted(set(each)) for each in counts.values())
        await live.stop()


async def test_operator_says_what_kafka_has_forgotten_and_the_shard_goes_on(
    host: ShardHost, journals: JournalClient, real_kafka: RealKafka, totals: Totals
) -> None:
    """The error's own command line, as it is printed, ends the doubt; a second word is refused."""
    spec = spec_of(SHARD, SOURCE, max_seconds=0.1)
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, KEYS)
    live = host.start(spec, totals)
    await has_read(live, SOURCE, end)
    end = await Producer(journals).publish(SOURCE, KEYS)
    await has_read(live, SOURCE, end)
    await live.stop()
    root = host.key_space.keys.root
    await asyncio.to_thread(_forget, real_kafka, f"{root}/{SHARD}")
    config = ShardConfig(restart_delay_seconds=0.05, restart_delay_seconds_max=0.2)
    live = host.start(spec, totals, config=config)
    # Taken as it is seen: the shard begins again soon, and the next status has no error yet.
    command = (await eventually(lambda: _told_command(host))).split()[1:7]
    command[3] = "produced"

    done = await asyncio.to_thread(shardctl, real_kafka, *command)
    again = await asyncio.to_thread(shardctl, real_kafka, *command)

    assert done.exit_code == 0, done.output
    assert "nothing to assume" in again.output
    end = await Producer(journals).publish(SOURCE, ["k0"])
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    await has_read(live, SOURCE, end)


def shardctl(kafka: RealKafka, *words: str) -> Result:
    """Run a command that asks this Kafka."""
    runner = CliRunner()
    return runner.invoke(main, [*words, "--set", f"bootstrap.servers={kafka.servers}"])


def _told_command(host: ShardHost) -> str:
    status = host.status(SHARD)
    said = " ".join(status.errors)
    at = said.find("shardctl kafka assume")
    return said[at:] if at >= 0 and status.code == ReplicaStatus.FAILED else ""


def _forget(kafka: RealKafka, group: str) -> None:
    admin = AdminClient(kafka.config)
    for done in admin.delete_consumer_groups([group]).values():
        done.result(30)


def test_doctor_tells_topics_limits_retention_and_markers_of_kafka(real_kafka: RealKafka) -> None:
    """The facts are the brokers': a topic that is missing, and a shard that never sent, are named."""
    there = f"there-{uuid4().hex[:8]}"
    real_kafka.create(there, 2, max_message_bytes="5000")
    shards = [
        ShardSpec(
            id=f"sink/{name}",
            labels=labels_of_sink(Sink(kind=SinkKind.KAFKA, to=name)),
        )
        for name in (there, "missing")
    ]

    facts = facts_of({"bootstrap.servers": real_kafka.servers}, shards)

    missing, found = facts.topics
    assert (missing.partitions, found.partitions, found.record_bytes_max) == (None, 2, 5000)
    assert facts.retention_seconds == 7 * 86_400
    assert facts.transaction_ms_max == 900_000
    assert list(facts.without_marker) == [f"sink/{there}", "sink/missing"]
    levels = {(each.level, each.detail) for each in judge_kafka(facts, 10.0)}
    assert (Severity.BAD, "there is no topic missing") in levels
