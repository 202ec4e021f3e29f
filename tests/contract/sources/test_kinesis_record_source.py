"""A Kinesis stream keeps what every source of records promises to workers."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
import sqlalchemy as sa

from broadsheet.consumer.sources.kinesis.pages import Pace
from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.position import AT_TIMESTAMP, SHARD_END, TRIM_HORIZON, Position
from broadsheet.leases.stores.sql.store import SqlRecordStore
from broadsheet.leases.worker.kinesis_source import KinesisRecordSource
from broadsheet.leases.worker.settings import WorkerSettings
from broadsheet.leases.worker.worker import LeaseWorker
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.leases.source_suite import RecordSourceConformance
from tests.support.eventually import eventually
from tests.support.kinesis_streams import HASH_END, TestStream
from tests.support.scripted_processor import BlockingProcessor, Script

FAST = Pace(read_interval_seconds=0.01, idle_interval_seconds=0.02)


class StreamSubject:
    """A stream of one shard."""

    def __init__(self, stream: TestStream) -> None:
        self.stream = stream
        self.source = KinesisRecordSource(stream.name, open_client=stream.open_client, pace=FAST)

    async def put(self, shard_key: str, data: bytes) -> None:
        """Put into the one open shard that has the lowest hash key."""
        del shard_key
        await self.stream.put_data(data)

    async def split(self, shard_key: str) -> None:
        """Split it in the middle."""
        await self.stream.split(int(shard_key.removeprefix("shardId-")), HASH_END // 2)


@pytest.fixture
async def subject(kinesis_endpoint: str) -> StreamSubject:
    """A stream of the test's own."""
    return StreamSubject(await TestStream(kinesis_endpoint).create(1))


class TestKinesisRecordSource(RecordSourceConformance):
    """The suite, on a stream."""


async def test_aggregate_is_read_from_its_first_record_with_positions_of_its_own(
    subject: StreamSubject,
) -> None:
    """A position within an aggregate begins with the whole of it: the worker leaves out what was processed."""
    await subject.stream.put_aggregate("k", range(3))
    (shard,) = await subject.source.list_shards()
    async with aclosing(subject.source.read_records(shard.key, Position(TRIM_HORIZON))) as batches:
        first = await anext(batches)
    middle = first.records[1].position
    async with aclosing(subject.source.read_records(shard.key, middle)) as batches:
        again = await anext(batches)

    assert [record.position.sub for record in again.records] == [0, 1, 2]
    assert again.records == first.records


async def test_positions_that_cannot_be_read_from(subject: StreamSubject) -> None:
    """A finished shard has nothing, one that is gone neither; a time must be given."""
    (shard,) = await subject.source.list_shards()
    for key, name in ((shard.key, SHARD_END), ("shardId-000000000099", TRIM_HORIZON)):
        assert [batch async for batch in subject.source.read_records(key, Position(name))] == []
    with pytest.raises(InvalidStateError, match="at: expected a time"):
        await anext(aiter(subject.source.read_records(shard.key, Position(AT_TIMESTAMP))))


async def test_worker_reads_a_stream_that_is_split_and_a_successor_goes_on(
    subject: StreamSubject, tmp_path: Path
) -> None:
    """Leases follow the stream's shards; what one worker committed is not read by the next."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'leases'}")
    store, script = SqlRecordStore(engine), Script()
    settings = WorkerSettings(
        lease_seconds=5.0, take_seconds=0.1, parent_poll_seconds=0.1, sync_seconds=0.2, threads=4
    )

    def worker(name: str) -> LeaseWorker:
        return LeaseWorker(
            name,
            store=store,
            source=subject.source,
            new_processor=lambda: BlockingProcessor(script),
            settings=settings,
        )

    try:
        first, second = worker("w1"), worker("w2")
        await subject.put("", b"before")
        async with TaskGroup() as group:
            group.start_soon(first.run(), name="w1")
            await eventually(lambda: script.data == [b"before"])
            await subject.split("shardId-000000000000")
            await subject.put("", b"after")
            await eventually(lambda: script.data == [b"before", b"after"])
            first.stop()
        await subject.put("", b"later")
        async with TaskGroup() as group:
            group.start_soon(second.run(), name="w2")
            await eventually(lambda: script.data == [b"before", b"after", b"later"])
            second.stop()
    finally:
        engine.dispose()
