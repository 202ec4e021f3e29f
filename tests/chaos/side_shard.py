"""A shard beside those whose sums count: faults that must end in FAILED strike it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from random import Random

from broadsheet.consumer.client import ShardClient
from broadsheet.examples.stream_sum.messages import CHUNKS, Chunk
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.wire import journal_pb2, shard_pb2
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from tests.chaos.patience import patient
from tests.support.eventually import eventually

SEEN_SECONDS = 60.0
"""Longest wait for each step; other faults go on meanwhile."""
_CHUNKS = 20


class SideShard:
    """One shard, its only journal, and its recovery log."""

    def __init__(
        self, address: Callable[[], Awaitable[str]], random: Random, *, shard: str, journal: str
    ) -> None:
        """Describe them.

        Args:
            address: Returns where a member serves now.
            random: Names the producer.
            shard: The shard's id.
            journal: Its source.
        """
        self.shard, self.journal = shard, journal
        self.log = f"stream-sum/logs/{shard}"
        self._address = address
        self._clock = MessageClock()
        self._publisher = Publisher(self._clock, new_producer_id(random.randbytes))
        self._numbers = count()

    def spec(self, like: shard_pb2.ShardSpec) -> shard_pb2.ShardSpec:
        """Return the shard's spec."""
        spec = shard_pb2.ShardSpec()
        spec.CopyFrom(like)
        spec.id = self.shard
        del spec.sources[:]
        spec.sources.add(journal=self.journal)
        spec.hot_standbys = 0
        return spec

    async def create(self, journals: JournalClient, like: journal_pb2.JournalSpec) -> None:
        """Make the journal, and the recovery log."""
        source, log = journal_pb2.JournalSpec(), journal_pb2.JournalSpec()
        for spec, name in ((source, self.journal), (log, self.log)):
            spec.CopyFrom(like)
            spec.name = name
            # A journal that is made again would begin with what a store has of the deleted one.
            del spec.fragment.stores[:]
        log.labels.CopyFrom(label_set((CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG)))
        changes = [journal_pb2.ApplyRequest.Change(upsert=spec) for spec in (source, log)]
        await journals.apply(changes)

    async def write(self, journals: JournalClient, unix_seconds: float) -> int:
        """Publish some chunks; return where they end, bytes."""
        self._clock.update(unix_seconds)
        to = MappedJournal(self.journal, CHUNKS.content_type)
        for _ in range(_CHUNKS):
            # Of streams that never end: no sum comes of them.
            chunk = Chunk(stream=f"{self.shard}-{next(self._numbers)}", data=b"x")
            self._publisher.publish_committed(to, chunk, CHUNKS)
        end = 0
        for append in self._publisher.take_appends():
            response = await journals.append(append.journal, append.content)
            end = response.commit.end
        return end

    async def has_read(self, offset: int, *, timeout_seconds: float = 5.0) -> bool:
        """Report whether the shard has committed what it read up to an offset, bytes."""

        async def has_read() -> bool:
            async with ShardClient(await self._address()) as client:
                await client.wait_read_through(
                    self.shard, {self.journal: offset}, timeout_seconds=timeout_seconds
                )
            return True

        return await patient(has_read)()

    async def read(self, offset: int) -> None:
        """Wait until the shard has read up to an offset, bytes."""
        await eventually(
            lambda: self.has_read(offset),
            timeout_seconds=SEEN_SECONDS,
            message=f"{self.shard} reads on",
        )

    async def has_failed(self, *causes: str) -> bool:
        """Report whether the shard is FAILED now, and its status names one of the causes."""
        return await has_failed(self._address, self.shard, *causes)


async def has_failed(address: Callable[[], Awaitable[str]], shard: str, *causes: str) -> bool:
    """Report whether a shard is FAILED now, and its status names one of the causes."""

    async def look() -> bool:
        async with ShardClient(await address()) as client:
            errors = [
                error
                for listed in (await client.list()).shards
                if listed.spec.id == shard
                for status in listed.status
                if status.code == shard_pb2.ReplicaStatus.FAILED
                for error in status.errors
            ]
        return any(cause in error for error in errors for cause in causes)

    return await patient(look)()
