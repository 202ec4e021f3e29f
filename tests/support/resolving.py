"""A task resolver beside members of the same process: its calls block, so they are made on another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message

from broadsheet.consumer.member.service import Service
from broadsheet.spark_bridge.task_resolver import TaskResolver, close_connections
from broadsheet.wire.shard_pb2 import StatRequest, StatResponse
from tests.support.asked_tally import TOTAL, AskedTally, TallyStub
from tests.support.members import Cluster

JOURNALS = ("ask/part-000", "ask/part-001")


class AskedCluster(Cluster):
    """Its members serve the application that can be asked."""

    def tally(self) -> AskedTally:
        """The test application."""
        return AskedTally(self.directory, output=self.output)


@contextmanager
def connections_closed() -> Iterator[None]:
    """Let a test begin, and the next one, with a worker that knows nothing."""
    close_connections()
    try:
        yield
    finally:
        close_connections()


async def resolver_of(*members: Service, **settings: Any) -> TaskResolver:
    """Make a resolver of these members."""
    return await asyncio.to_thread(TaskResolver, [one.address for one in members], **settings)


async def ask(
    resolver: TaskResolver,
    shard_or_key: str | bytes,
    *,
    method: str = "Count",
    request: Message | None = None,
    **options: Any,
) -> int:
    """Return the total that a method answers with."""

    def call() -> int:
        stub = resolver.stub(shard_or_key, TallyStub)
        wanted = request or StatRequest(shard=resolver.shard_of(shard_or_key))
        answer: StatResponse = getattr(stub, method)(wanted, **options)
        return answer.publish_at[TOTAL]

    return await asyncio.to_thread(call)
