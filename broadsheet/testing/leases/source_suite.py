"""Conformance suite for record sources.

    class TestMySource(RecordSourceConformance):
        @pytest.fixture
        async def subject(self): yield MySubject()

Nothing here imports pytest; the tests are coroutines.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Protocol

from broadsheet.leases.position import LATEST, TRIM_HORIZON, Position
from broadsheet.leases.record_processor.processor import ProcessorRecord
from broadsheet.leases.worker.source import RecordSource

READ_SECONDS = 20.0
"""Time limit of a read for existing records."""


class RecordSourceSubject(Protocol):
    """A stream that only one test uses, with one open shard."""

    @property
    def source(self) -> RecordSource:
        """The source."""
        ...

    async def put(self, shard_key: str, data: bytes) -> None:
        """Put a record into a shard."""
        ...

    async def split(self, shard_key: str) -> None:
        """Split a shard: it ends and gets two children."""
        ...


class RecordSourceConformance:
    """The suite for any source. A subclass defines a pytest fixture `subject`, a `RecordSourceSubject`."""

    async def test_records_come_in_order_from_the_oldest_on(
        self, subject: RecordSourceSubject
    ) -> None:
        """Records come in the order they were put, with growing positions; one read brings old and new ones."""
        (shard,) = await subject.source.list_shards()
        await _put(subject, shard.key, b"a", b"b")

        async with (
            asyncio.timeout(READ_SECONDS),
            aclosing(subject.source.read_records(shard.key, Position(TRIM_HORIZON))) as batches,
        ):
            found: list[ProcessorRecord] = []
            async for batch in batches:
                found += batch.records
                if len(found) == 2:
                    await subject.put(shard.key, b"c")
                if len(found) == 3:
                    break

        assert [record.binary_data for record in found] == [b"a", b"b", b"c"]
        positions = [record.position for record in found]
        assert positions == sorted(set(positions))
        assert not any(position.is_name for position in positions)

    async def test_read_at_a_position_begins_with_its_record(
        self, subject: RecordSourceSubject
    ) -> None:
        """So a checkpoint within an aggregate loses nothing: the worker leaves out what was processed."""
        (shard,) = await subject.source.list_shards()
        await _put(subject, shard.key, b"a", b"b", b"c")
        everything = await _read(subject.source, shard.key, Position(TRIM_HORIZON), count=3)

        again = await _read(subject.source, shard.key, everything[1].position, count=2)

        assert [record.position for record in again] == [each.position for each in everything[1:]]

    async def test_read_at_the_latest_leaves_out_what_is_there(
        self, subject: RecordSourceSubject
    ) -> None:
        """Such a read begins with records put after its first batch."""
        (shard,) = await subject.source.list_shards()
        await _put(subject, shard.key, b"old")

        async with (
            asyncio.timeout(READ_SECONDS),
            aclosing(subject.source.read_records(shard.key, Position(LATEST))) as batches,
        ):
            first = await anext(batches)
            await subject.put(shard.key, b"new")
            found = list(first.records)
            while not found:
                found += (await anext(batches)).records

        assert [record.binary_data for record in found] == [b"new"]

    async def test_shard_that_was_split_ends_and_has_children(
        self, subject: RecordSourceSubject
    ) -> None:
        """A read ends once all was read; by then the children are listed, after their parent."""
        (shard,) = await subject.source.list_shards()
        await _put(subject, shard.key, b"a")
        await subject.split(shard.key)

        found = await _read(subject.source, shard.key, Position(TRIM_HORIZON), count=None)
        listed = await subject.source.list_shards()

        assert [record.binary_data for record in found] == [b"a"]
        assert [each.parents for each in listed] == [(), (shard.key,), (shard.key,)]


async def _put(subject: RecordSourceSubject, shard_key: str, *data: bytes) -> None:
    for each in data:
        await subject.put(shard_key, each)


async def _read(
    source: RecordSource, shard_key: str, position: Position, *, count: int | None
) -> list[ProcessorRecord]:
    """Return the first `count` records; None: all, to the end of the shard."""
    found: list[ProcessorRecord] = []
    async with (
        asyncio.timeout(READ_SECONDS),
        aclosing(source.read_records(shard_key, position)) as batches,
    ):
        async for batch in batches:
            found += batch.records
            if count is not None and len(found) >= count:
                break
    return found
