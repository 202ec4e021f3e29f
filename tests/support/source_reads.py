"""Reads sources as a shard does, without one: from no checkpoint, until so many messages came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from broadsheet.consumer.sources.kafka.source import KafkaSource
from broadsheet.consumer.sources.kinesis.source import KinesisSource
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.eventually import eventually
from tests.support.fixed_shard import FixedShard

SECONDS_MAX = 10.0
AnySource = KinesisSource | KafkaSource


def reading(source: AnySource) -> AsyncGenerator[MessageBatch, None]:
    """Begin to read all of a source."""
    # Both are generators, of which the port says only that they iterate.
    return cast(
        "AsyncGenerator[MessageBatch, None]",
        source.read_messages(FixedShard(), None, Checkpoint()),
    )


async def read_from(
    source: AnySource, count: int, *, when_begun: Callable[[], Awaitable[None]] | None = None
) -> list[Any]:  # Any: payloads of the source, with its metadata.
    """Return the first `count` messages.

    Args:
        source: What to read.
        count: Of messages; more at once are an error.
        when_begun: Called once it is settled where the partitions of a topic begin.
    """
    found: list[Any] = []

    async def begun() -> bool:
        assert isinstance(source, KafkaSource), (
            "sources of other kinds begin where they are told to"
        )
        return source.has_begun

    async def wait() -> None:
        if when_begun is not None:
            await eventually(begun)
            await when_begun()

    async with (
        asyncio.timeout(SECONDS_MAX),
        TaskGroup() as group,
        aclosing(reading(source)) as batches,
    ):
        group.start_soon(wait(), name="meanwhile")
        async for batch in batches:
            found += batch.payloads
            if len(found) >= count:
                break
    assert len(found) == count, found
    return found
