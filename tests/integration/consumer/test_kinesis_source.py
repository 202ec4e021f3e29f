"""Kinesis streams as sources of live shards: each record once and in order, whatever happens to stream and shard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.application import DeferToNextTxnError, MessageProducer
from broadsheet.consumer.sources.kinesis.pages import Pace
from broadsheet.consumer.sources.kinesis.places import Latest, Resume
from broadsheet.consumer.sources.kinesis.source import KinesisSource
from broadsheet.consumer.sources.received import WithMetadata
from broadsheet.consumer.stores.json_file import decode_documents
from broadsheet.journals.content.json import JsonType
from broadsheet.runtime.documents import decode_json
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.in_order import InOrder, numbers, reach, serve
from tests.support.kinesis_streams import HASH_END, TestStream
from tests.support.live_shards import SHARD, ShardHost, spec_of

pytestmark = pytest.mark.etcd

FAST = Pace(read_interval_seconds=0.01, idle_interval_seconds=0.02)


def counting(
    directory: Path, stream: TestStream, *, metadata: bool = False, **options: Any
) -> InOrder:
    """Return an application that reads a stream."""
    source = KinesisSource(
        stream.name,
        WithMetadata(JsonType()) if metadata else JsonType(),
        open_client=stream.open_client,
        pace=FAST,
        discovery_seconds=0.1,
        **options,
    )
    return InOrder(directory, source)


def failing_once(*places: tuple[str, int]) -> Callable[[str, int], None]:
    """Return a function that raises once at each of these messages."""
    left = set(places)

    def meet(key: str, number: int) -> None:
        if (key, number) in left:
            left.discard((key, number))
            raise OSError(f"as the test asked for at {key} {number}")

    return meet


async def test_stream_is_counted_once_in_order_through_splits_merges_and_restarts(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """Shards split and merge while the application fails now and then, and then gets a successor."""
    stream = await TestStream(kinesis_endpoint).create(2)
    low, high = 0, HASH_END - 1
    application = counting(tmp_path, stream)
    application.meet = failing_once(("low", 7), ("high", 13), ("low", 25))
    assert isinstance(application, MessageProducer)
    await stream.put("low", numbers(1, 10), hash_key=low)
    await stream.put("high", numbers(1, 10), hash_key=high)
    live = await serve(host, application)
    await reach(live, {"low": 10, "high": 10})

    await stream.put("low", numbers(11, 20), hash_key=low)
    await stream.split(0, HASH_END // 4)  # into 2 and 3
    await stream.put("low", numbers(21, 30), hash_key=low)
    await stream.put("high", numbers(11, 20), hash_key=high)
    await stream.merge(3, 1)  # into 4
    await stream.put("high", numbers(21, 30), hash_key=high)
    await reach(live, {"low": 30, "high": 30})

    await live.stop()
    await stream.put("high", numbers(31, 40), hash_key=high)
    await stream.merge(2, 4)  # into 5
    await stream.put("high", numbers(41, 50), hash_key=high)
    successor = host.start(spec_of(SHARD), counting(tmp_path, stream))
    await reach(successor, {"low": 30, "high": 50})


async def test_restart_within_a_page_goes_on_within_it(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """Transactions end after every third message, also within an aggregate, and some fail: the successor begins with
    the very message that was not committed.
    """
    stream = await TestStream(kinesis_endpoint).create(1)
    await stream.put("k", numbers(1, 4))
    await stream.put_aggregate("k", numbers(5, 11))
    await stream.put("k", numbers(12, 20))
    application = counting(tmp_path, stream)
    fail = failing_once(("k", 5), ("k", 8), ("k", 12), ("k", 20))
    begun = 0

    def meet(key: str, number: int) -> None:
        nonlocal begun
        fail(key, number)
        if application.began == begun and number % 3 == 0:
            raise DeferToNextTxnError
        begun = application.began

    application.meet = meet
    live = await serve(host, application)

    await reach(live, {"k": 20})


async def test_records_carry_what_the_stream_says_of_them(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """Keys, numbers and times reach an application that asks for them."""
    stream = await TestStream(kinesis_endpoint).create(1)
    await stream.put_aggregate("k", numbers(1, 2), hash_key=7)
    application = counting(tmp_path, stream, metadata=True)
    live = await serve(host, application)
    await reach(live, {"k": 2})

    first, second = (message.metadata for message in application.received)
    assert first.sequence_number == second.sequence_number
    assert len(first.sequence_number) == 56
    assert (first.sub_sequence_number, second.sub_sequence_number) == (0, 1)
    assert (second.partition_key, second.explicit_hash_key) == ("k", "7")
    assert second.arrived_at is not None
    assert second.shard_id == "shardId-000000000000"


async def test_throttling_and_expired_iterators_are_waited_out(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """The stream refuses readings: nothing is lost or repeated, and the shard does not fail."""
    stream = await TestStream(kinesis_endpoint).create(1)
    await stream.put("k", numbers(1, 3))
    application = counting(tmp_path, stream)
    live = await serve(host, application)
    await reach(live, {"k": 3})

    await stream.refuse("ProvisionedThroughputExceededException", times=3)
    await stream.put("k", numbers(4, 6))
    await reach(live, {"k": 6})
    await stream.refuse("ExpiredIteratorException", times=2)
    await stream.put("k", numbers(7, 9))
    await reach(live, {"k": 9})

    assert len(application.stores) == 1


async def test_latest_is_when_the_application_first_began(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """What came before is not read. What comes while no process reads is, also in shards that had nothing before."""
    stream = await TestStream(kinesis_endpoint).create(2)
    await stream.put("old", numbers(1, 5))
    application = counting(tmp_path, stream, start=Latest())
    live = await serve(host, application)
    await eventually(lambda: application.source.is_reading)
    await stream.put("low", numbers(1, 2))
    await reach(live, {"low": 2})

    await live.stop()
    await stream.put("high", numbers(1, 3), hash_key=HASH_END - 1)
    await stream.put("low", numbers(3, 4))
    successor = host.start(spec_of(SHARD), counting(tmp_path, stream, start=Latest()))
    await reach(successor, {"low": 4, "high": 3})


async def test_record_lost_in_the_middle_of_a_page_is_data_loss(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """The checkpoint lies within a page whose first records are gone: leaving out as many of those that are there
    would lose some, and so would anything else.
    """
    stream = await TestStream(kinesis_endpoint).create(1)
    await stream.put("k", numbers(1, 9))
    application = counting(tmp_path, stream)
    deferred = False

    def meet(key: str, number: int) -> None:
        nonlocal deferred
        if number == 4 and not deferred:
            deferred = True
            raise DeferToNextTxnError
        if number >= 4:
            raise OSError("not yet")

    application.meet = meet
    live = await serve(host, application)
    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, "not yet"))
    await live.stop()
    await stream.trim(5)
    host.start(spec_of(SHARD), counting(tmp_path, stream))

    await eventually(
        lambda: host.says(SHARD, ReplicaStatus.FAILED, "data loss", "the record", "is gone")
    )


async def test_fan_out_brings_the_same(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """Subscriptions end again and again, and shards too."""
    stream = await TestStream(kinesis_endpoint).create(1)
    application = counting(tmp_path, stream, consumer_arn=stream.consumer_arn)
    await stream.put("k", numbers(1, 8))
    live = await serve(host, application)
    await reach(live, {"k": 8})

    await stream.put("k", numbers(9, 10))
    await stream.split(0, HASH_END // 2)
    await stream.put("k", numbers(11, 14))
    await reach(live, {"k": 14})


async def test_latest_on_a_quiet_stream_is_committed_before_the_shard_is_primary(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """A shard serves, and is stopped before any record came: what comes while it is stopped is read by the next."""
    stream = await TestStream(kinesis_endpoint).create(2)
    await stream.put("old", numbers(1, 5))
    live = await serve(host, counting(tmp_path, stream, start=Latest()))
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    await live.stop()

    await stream.put("down", numbers(1, 10))
    successor = host.start(spec_of(SHARD), counting(tmp_path, stream, start=Latest()))

    await reach(successor, {"down": 10})


async def test_end_of_a_shard_is_committed_though_no_record_follows(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """The parent is read to its end and its children are empty: the successor must not need the parent any more."""
    stream = await TestStream(kinesis_endpoint).create(1)
    await stream.put("k", numbers(1, 3))
    application = counting(tmp_path, stream)
    live = await serve(host, application)
    await reach(live, {"k": 3})

    await stream.split(0, HASH_END // 2)

    await eventually(lambda: stream.name_of(0) in ended(tmp_path))


async def test_stream_made_again_is_data_loss_and_read_from_its_beginning_if_told_so(
    host: ShardHost, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """Its shards have the ids of the old one's, of which one was read to its end: that one would be passed by."""
    stream = await TestStream(kinesis_endpoint).create(1)
    await stream.put("old", numbers(1, 3))
    await stream.split(0, HASH_END // 2)
    live = await serve(host, counting(tmp_path, stream))
    await reach(live, {"old": 3})
    await eventually(lambda: stream.name_of(0) in ended(tmp_path))
    await live.stop()
    await stream.delete()
    await stream.create(1)
    await stream.put("new", numbers(1, 7))

    live = host.start(spec_of(SHARD), counting(tmp_path, stream, start=Latest()))
    await eventually(
        lambda: host.says(SHARD, ReplicaStatus.FAILED, "data loss", stream.name, "read_recreated")
    )
    await live.stop()
    options: dict[str, Any] = {"start": Latest(), "read_recreated": True}
    live = host.start(spec_of(SHARD), counting(tmp_path, stream, **options))
    await reach(live, {"old": 3, "new": 7})
    await live.stop()
    await stream.put("new", numbers(8, 9))
    live = host.start(spec_of(SHARD), counting(tmp_path, stream, start=Latest()))
    await reach(live, {"old": 3, "new": 9})


def ended(directory: Path) -> set[str]:
    """Return the names of the stream's shards that the only shard's stored checkpoint has read to their ends."""
    for file in directory.rglob("*.json"):
        _, checkpoint = decode_documents(file.read_bytes())
        return {
            name
            for name, source in checkpoint.sources.items()
            if decode_json(source.resume, Resume).ended
        }
    return set()
