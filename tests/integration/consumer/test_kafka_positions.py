"""Positions in topics: committed before the shard is primary, of one topic only, and behind what is no message."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer

from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.sources.kafka.places import Latest
from broadsheet.consumer.sources.kafka.source import KafkaSource
from broadsheet.consumer.sources.part import SOURCE_PART
from broadsheet.consumer.sources.received import WithMetadata
from broadsheet.consumer.stores.json_file import decode_documents
from broadsheet.journals.content.json import JsonType
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, label_set
from broadsheet.wire.shard_pb2 import Checkpoint, ReplicaStatus, ShardSpec
from tests.support.eventually import eventually
from tests.support.fixed_shard import FixedShard
from tests.support.in_order import InOrder, numbers, reach, serve
from tests.support.kafka_cluster import TestTopic
from tests.support.live_shards import SECOND_SOURCE, SHARD, ShardHost, spec_of
from tests.support.source_reads import read_from

pytestmark = pytest.mark.etcd

MICROSECONDS = 1_764_000_000_000_000
YEAR_10000_MS = 253_402_300_800_000
NO_TEXT = r"headers: expected names in UTF-8, got b'gr\\xf6"


def counting(
    directory: Path, topic: TestTopic, *, metadata: bool = False, **options: Any
) -> InOrder:
    """Return an application that reads a topic."""
    message_type = WithMetadata(JsonType()) if metadata else JsonType()
    return InOrder(directory, KafkaSource(topic.name, message_type, topic.config, **options))


async def primary(host: ShardHost, spec: ShardSpec) -> None:
    """Wait until a shard says that it serves."""
    await eventually(lambda: host.says(spec.id, ReplicaStatus.PRIMARY))


def committed(directory: Path) -> Checkpoint:
    """Return the only shard's stored checkpoint; an empty one before the first commit."""
    for file in directory.rglob("*.json"):
        _, checkpoint = decode_documents(file.read_bytes())
        return checkpoint
    return Checkpoint()


def showing(topic: TestTopic, partitions: Callable[[], int]) -> type[Consumer]:
    """Return a client that sees as many partitions as there are supposed to be: the cluster cannot add any."""

    class Growing(Consumer):
        def list_topics(
            self, *arguments: Any, **options: Any
        ) -> Any:  # Any: the stubs hide its type
            found: Any = super().list_topics(*arguments, **options)
            for partition in range(partitions(), 4):
                found.topics[topic.name].partitions.pop(partition, None)
            return found

    return Growing


async def test_latest_on_a_quiet_topic_is_committed_before_the_shard_is_primary(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """A shard serves, and is stopped before any message came: what comes while it is stopped is read by the next."""
    topic, spec = TestTopic(kafka_servers), spec_of(SHARD)
    await topic.put("old", numbers(1, 5))
    live = await serve(host, counting(tmp_path, topic, start=Latest()))
    await primary(host, spec)
    await live.stop()

    await topic.put("down", numbers(1, 10), partition=1)
    successor = host.start(spec, counting(tmp_path, topic, start=Latest()))

    await reach(successor, {"down": 10})


@pytest.mark.parametrize("restarted", [False, True])
async def test_partition_added_to_a_part_without_any_is_read_from_its_beginning(
    host: ShardHost, tmp_path: Path, kafka_servers: str, restarted: bool
) -> None:
    """A part that had no partition began with the topic all the same, in this life or in the one before."""
    topic, shown = TestTopic(kafka_servers), 1
    await topic.put("old", numbers(1, 2))
    spec = spec_of(SHARD)
    spec.labels.CopyFrom(label_set({SOURCE_PART: "1/2"}))
    options: dict[str, Any] = {
        "start": Latest(),
        "open_consumer": showing(topic, lambda: shown),
        "discovery_seconds": 0.05,
    }
    live = await serve(host, counting(tmp_path, topic, **options), spec)
    await primary(host, spec)
    if restarted:
        await live.stop()
    await topic.put("new", numbers(1, 5), partition=1)
    shown = 2
    if restarted:
        live = host.start(spec, counting(tmp_path, topic, **options))

    await reach(live, {"new": 5})


async def test_topic_made_again_is_data_loss_and_read_from_its_beginning_if_told_so(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """The new topic has more messages than the old one had, so every offset exists; the new offsets go on from the old,
    also for the life after the next, and for a caller that waits for a message.
    """
    topic, spec = TestTopic(kafka_servers), spec_of(SHARD)
    await topic.put("old", numbers(1, 5))
    live = await serve(host, counting(tmp_path, topic))
    await reach(live, {"old": 5})
    await live.stop()
    await topic.delete()
    await topic.create(4)
    await topic.put("new", numbers(1, 12))

    live = host.start(spec, counting(tmp_path, topic))
    await eventually(
        lambda: host.says(SHARD, ReplicaStatus.FAILED, "data loss", topic.name, "read_recreated")
    )
    await live.stop()
    live = host.start(spec, counting(tmp_path, topic, read_recreated=True))
    await reach(live, {"old": 5, "new": 12})
    await live.stop()
    await topic.put("new", numbers(13, 14))
    application = counting(tmp_path, topic)
    live = host.start(spec, application)
    await reach(live, {"old": 5, "new": 14})

    name = topic.name_of(0)
    assert application.source.read_through(live, None, {name: 14}) == {name: 19}
    assert live.progress()[0][name] == 19


async def test_topic_made_again_under_a_reader_is_begun_again(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """The shard serves all the time; what it had read stays counted."""
    topic = TestTopic(kafka_servers)
    await topic.put("old", numbers(1, 5))
    options: dict[str, Any] = {"read_recreated": True, "discovery_seconds": 0.05}
    live = await serve(host, counting(tmp_path, topic, **options))
    await reach(live, {"old": 5})

    await topic.delete()
    await topic.create(2)
    # Both notice another topic by its id alone: nothing was written to it yet.
    before = committed(tmp_path).sources[f"kafka/{topic.name}"].resume
    await eventually(lambda: committed(tmp_path).sources[f"kafka/{topic.name}"].resume != before)
    await topic.put("new", numbers(1, 3))
    await reach(live, {"old": 5, "new": 3})


async def test_checkpoint_without_an_id_adopts_the_topic_that_is_there(
    kafka_servers: str,
) -> None:
    """Checkpoints of earlier releases hold offsets alone: they go on, and are of this topic from then on."""
    topic = TestTopic(kafka_servers)
    await topic.put("k", numbers(1, 5))
    checkpoint = Checkpoint()
    checkpoint.sources[topic.name_of(0)].read_through = 3
    source = KafkaSource(topic.name, JsonType(), topic.config, start=Latest())

    async with aclosing(cast("Any", source.read_messages(FixedShard(), None, checkpoint))) as read:
        noted = await anext(read)
        batch = await anext(read)

    assert len(noted) == 0
    assert b'"id"' in noted.resumes[f"kafka/{topic.name}"]
    assert topic.name_of(0) not in noted.resumes
    assert batch.begins.tolist() == [3, 4]


async def test_end_of_a_transaction_that_expires_alone_is_no_loss(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """The last offset holds no message but the end of a transaction. No message follows it before the shard stops, and
    then retention removes it.
    """
    topic, spec = TestTopic(kafka_servers), spec_of(SHARD)
    await topic.put_transaction("k", numbers(1, 3))
    live = await serve(host, counting(tmp_path, topic))
    await eventually(lambda: committed(tmp_path).sources[topic.name_of(0)].read_through == 4)
    await topic.put_transaction("k", numbers(4, 5))
    await eventually(lambda: committed(tmp_path).sources[topic.name_of(0)].read_through == 7)
    await live.stop()
    await topic.trim(0, 7)

    live = host.start(spec, counting(tmp_path, topic))
    await topic.put("k", numbers(6, 7))

    await reach(live, {"k": 7})


async def test_end_of_a_transaction_is_committed_with_its_last_message(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """Kafka's client steps over a transaction's end with its last message, and tells so by its position alone: the mock
    cluster stores no such ends, so the step is made here.
    """
    topic = TestTopic(kafka_servers)
    await topic.put_transaction("k", numbers(1, 3))

    class Stepping(Consumer):
        def position(self, partitions: Any) -> Any:  # Any: the stubs hide its types
            found = super().position(partitions)
            for each in found:
                each.offset += each.offset == 3
            return found

    application = counting(tmp_path, topic, open_consumer=Stepping)
    live = await serve(host, application)
    await eventually(lambda: committed(tmp_path).sources[topic.name_of(0)].read_through > 0)

    assert committed(tmp_path).sources[topic.name_of(0)].read_through == 4
    await topic.put("k", numbers(4, 4))
    await reach(live, {"k": 4})


async def test_damaged_metadata_that_is_not_asked_for_stops_no_shard(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """Producers set times in microseconds, beyond the year 9999, and names of headers that are no UTF-8."""
    topic = TestTopic(kafka_servers)
    await topic.put("k", numbers(1, 1), timestamp=MICROSECONDS)
    await topic.put("k", numbers(2, 2), timestamp=YEAR_10000_MS)
    await topic.put_with_header("k", 3, name="größe".encode("latin-1"))
    await topic.put("k", numbers(4, 4))

    live = await serve(host, counting(tmp_path, topic))

    await reach(live, {"k": 4})


async def test_damaged_metadata_that_is_asked_for_goes_to_the_dead_letters(
    host: ShardHost, tmp_path: Path, kafka_servers: str
) -> None:
    """It is a damaged message then, and named with its place; the others are consumed."""
    topic, spec = TestTopic(kafka_servers), spec_of(SHARD)
    spec.labels.CopyFrom(label_set({DEAD_LETTER_JOURNAL: SECOND_SOURCE}))
    await topic.put("k", numbers(1, 1))
    await topic.put("x", numbers(1, 1), timestamp=MICROSECONDS)
    await topic.put_with_header("x", 1, name="größe".encode("latin-1"))
    await topic.put("k", numbers(2, 2))
    await host.assign(spec)

    live = host.start(
        spec,
        counting(tmp_path, topic, metadata=True),
        config=ShardConfig(restart_delay_seconds=0.02, stop_grace_seconds=2, attempts_max=3),
    )

    await reach(live, {"k": 2})


async def test_names_of_headers_that_are_no_text_are_an_error_each_time(kafka_servers: str) -> None:
    """Kafka's client sets an error and returns a broken tuple: after some calls, the interpreter no longer looks for
    that, and the process ends when the tuple is unpacked.
    """
    topic, count = TestTopic(kafka_servers), 50
    for number in range(count):
        await topic.put_with_header("k", number, name=b"gr\xf6\xdfe")

    payloads = await read_from(KafkaSource(topic.name, JsonType(), topic.config), count)

    for number, payload in enumerate(payloads + payloads):
        # The headers alone, too, before the rest of the metadata and behind it.
        for _ in range(number % 3):
            with pytest.raises(ValueError, match=NO_TEXT):
                _ = payload.headers
        with pytest.raises(ValueError, match=NO_TEXT):
            _ = payload.metadata


async def test_headers_are_read_though_the_time_is_damaged(kafka_servers: str) -> None:
    """Schema ids are in headers, and a producer's clock is no reason to leave a message out."""
    topic = TestTopic(kafka_servers)
    await topic.put("k", numbers(1, 1), timestamp=MICROSECONDS)
    await topic.put("k", numbers(2, 2), timestamp=YEAR_10000_MS)

    payloads = await read_from(KafkaSource(topic.name, JsonType(), topic.config), 2)

    for payload in payloads + payloads:
        assert payload.headers == ()
        with pytest.raises(ValueError, match="timestamp: expected milliseconds"):
            _ = payload.metadata
        assert payload.headers == ()
