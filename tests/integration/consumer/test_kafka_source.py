"""Topics of Kafka as sources of live shards: each message once and in order, whatever happens to the shard."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from broadsheet.consumer.application import DeferToNextTxnError, MessageProducer
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.sources.kafka.places import AtOffsets, Latest
from broadsheet.consumer.sources.kafka.source import KafkaSource
from broadsheet.consumer.sources.part import SOURCE_PART
from broadsheet.consumer.sources.received import WithMetadata
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.uuid import Flags, build_uuid, format_uuid
from broadsheet.wire.labels import label_set
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.in_order import InOrder, numbers, reach, serve
from tests.support.kafka_cluster import TestTopic
from tests.support.live_shards import SHARD, ShardHost, spec_of

pytestmark = pytest.mark.etcd


def counting(
    directory: Path, topic: TestTopic, *, metadata: bool = False, **options: Any
) -> InOrder:
    """Return an application that reads a topic."""
    message_type = WithMetadata(JsonType()) if metadata else JsonType()
    return InOrder(directory, KafkaSource(topic.name, message_type, topic.config, **options))


async def begun(application: InOrder) -> None:
    """Wait until it is settled where each partition begins."""
    await eventually(lambda: application.source.has_begun)


async def test_topic_is_counted_once_in_order_through_failures_and_restarts(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """Transactions end after every third message, some fail, and then another process goes on."""
    topic = TestTopic(kafka_servers)
    for partition in range(3):
        await topic.put(f"k{partition}", numbers(1, 10), partition=partition)
    application = counting(tmp_path, topic)
    assert isinstance(application, MessageProducer)
    failures = {("k0", 4), ("k1", 8), ("k2", 10)}
    begun = 0

    def meet(key: str, number: int) -> None:
        nonlocal begun
        if (key, number) in failures:
            failures.discard((key, number))
            raise OSError("as the test asked for")
        if application.began == begun and number % 3 == 0:
            raise DeferToNextTxnError
        begun = application.began

    application.meet = meet
    live = await serve(host, application)
    await reach(live, {"k0": 10, "k1": 10, "k2": 10})
    assert not failures

    await live.stop()
    await topic.put("k1", numbers(11, 15), partition=1)
    successor = host.start(spec_of(SHARD), counting(tmp_path, topic))
    await reach(successor, {"k0": 10, "k1": 15, "k2": 10})


async def test_offsets_behind_a_transactions_end_count_as_read(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """The end of a transaction takes an offset that holds no message: whoever waits for the end of the partition would
    wait for ever.
    """
    topic = TestTopic(kafka_servers)
    await topic.put_transaction("k", numbers(1, 3))
    await topic.put_transaction("k", numbers(4, 5))
    application = counting(tmp_path, topic)
    live = await serve(host, application)
    await reach(live, {"k": 5})

    with live.acquire() as reference:
        await reference.wait_for_offsets({topic.name_of(0): 7})
    assert live.progress()[0][topic.name_of(0)] == 7


async def test_latest_is_where_the_application_first_began(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """Also in partitions that had no message until another process goes on."""
    topic = TestTopic(kafka_servers)
    await topic.put("old", numbers(1, 5))
    await topic.put("old", numbers(6, 9), partition=1)
    application = counting(tmp_path, topic, start=Latest())
    live = await serve(host, application)
    await begun(application)
    await topic.put("new", numbers(1, 2))
    await reach(live, {"new": 2})

    await live.stop()
    await topic.put("late", numbers(1, 3), partition=1)
    successor = host.start(spec_of(SHARD), counting(tmp_path, topic, start=Latest()))
    await reach(successor, {"new": 2, "late": 3})


async def test_messages_carry_what_the_topic_says_of_them(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """Keys, headers, times and offsets reach an application that asks for them, and tombstones too."""
    topic = TestTopic(kafka_servers)
    await topic.put("k", numbers(1, 1), partition=2, headers=[("a", b"1"), ("a", None)])
    await topic.put_raw([None], partition=2, key="gone", timestamp=1_700_000_000_123)
    application = counting(tmp_path, topic, metadata=True)
    live = await serve(host, application)
    await reach(live, {"k": 1})
    await eventually(lambda: len(application.received) == 2)

    first, second = application.received
    assert (first.metadata.partition, first.metadata.offset, first.metadata.key) == (2, 0, b"k")
    assert first.metadata.headers == (("a", b"1"), ("a", None))
    assert (second.content, second.metadata.key) == (None, b"gone")
    assert second.metadata.timestamp == datetime.fromisoformat("2023-11-14T22:13:20.123+00:00")


async def test_shards_share_partitions_and_find_new_ones(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """Each reads the partitions of its label; one that is added later is read from its beginning, wherever the
    application began.
    """
    topic = TestTopic(kafka_servers)
    await topic.put("old", numbers(1, 2))
    shown = 2

    class Growing(Consumer):
        """Sees as many partitions as there are supposed to be: those of the cluster cannot be added."""

        def list_topics(
            self, *arguments: Any, **options: Any
        ) -> Any:  # Any: the stubs hide its type
            found: Any = super().list_topics(*arguments, **options)
            for partition in range(shown, 4):
                found.topics[topic.name].partitions.pop(partition, None)
            return found

    lives: list[LiveShard] = []
    for index in range(2):
        spec = spec_of(f"shard-{index}")
        spec.labels.CopyFrom(label_set({SOURCE_PART: f"{index}/2"}))
        application = counting(
            tmp_path, topic, start=Latest(), open_consumer=Growing, discovery_seconds=0.05
        )
        lives.append(await serve(host, application, spec))
        await begun(application)
    for partition in range(4):
        await topic.put(f"k{partition}", numbers(1, 5), partition=partition)
    await reach(lives[0], {"k0": 5})
    shown = 4

    await reach(lives[0], {"k0": 5, "k2": 5})
    await reach(lives[1], {"k1": 5, "k3": 5})


@pytest.mark.parametrize(
    ("begin", "lost"),
    [
        (1_000, "The next one is at offset 1000; there are 2 to 4"),
        (1, "The next one is at offset 1; offsets 1 to 1 are lost, there are 2 to 4"),
    ],
    ids=["beyond", "below"],
)
async def test_offset_that_is_not_there_is_data_loss(
    host: ShardHost, tmp_path: Path, kafka_servers: str, begin: int, lost: str
) -> None:
    """To begin elsewhere would leave messages out, or count some twice; what is lost is told."""
    topic = TestTopic(kafka_servers)
    await topic.put("k", numbers(1, 4))
    await topic.trim(0, 2)
    start = AtOffsets({(topic.name, 0): begin})

    await serve(host, counting(tmp_path, topic, start=start))

    await eventually(
        lambda: host.says(
            SHARD, ReplicaStatus.FAILED, "data loss", topic.name_of(0), "is gone", lost
        )
    )


async def test_sequenced_transactions_longer_than_memory_are_read_again(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """Messages with UUIDs, and a ring of two: what it does not hold is read once more; duplicates are dropped."""
    topic = TestTopic(kafka_servers)
    producer = uuid4().node | 1 << 40

    def message(clock: int, flags: int) -> bytes:
        uuid = format_uuid(build_uuid(producer, clock << 4, flags))
        return b'{"key": "k", "n": %d, "_meta": {"uuid": "%s"}}' % (clock, uuid.encode())

    pending = [message(clock, Flags.CONTINUE_TXN) for clock in numbers(1, 8)]
    await topic.put_raw([*pending, *pending[2:5], message(8, Flags.ACK_TXN)])
    application = counting(tmp_path, topic, sequenced=True)
    spec = spec_of(SHARD)
    spec.ring_buffer_size = 2

    live = await serve(host, application, spec)

    await reach(live, {"k": 8})


async def test_settings_that_break_the_promise_are_refused(kafka_servers: str) -> None:
    """Reading uncommitted messages, or committing to a group, would make the offsets say something else."""
    for name, value in (("isolation.level", "read_uncommitted"), ("enable.auto.commit", True)):
        with pytest.raises(ValueError, match=name):
            KafkaSource("t", JsonType(), {"bootstrap.servers": kafka_servers, name: value})
