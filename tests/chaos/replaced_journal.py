"""A shard whose only source is deleted and made anew: it must fail, say so, and go on when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random

from broadsheet.consumer.client import RecoveryClient, ShardClient
from broadsheet.consumer.errors import ConsumerError
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.message.mapping import MappedJournal
from broadsheet.consumer.message.publisher import Publisher
from broadsheet.consumer.message.uuid import MessageClock, new_producer_id
from broadsheet.consumer.protocol import journal_pb2, shard_pb2
from broadsheet.examples.stream_sum.messages import CHUNKS, Chunk
from tests.support.eventually import eventually

SHARD = "stream-sum-replaced"
JOURNAL = "stream-sum/replaced"
SEEN_SECONDS = 60.0
"""Longest wait for each step; other faults go on meanwhile."""
_CHUNKS = 20


class ReplacedJournal:
    """The journal and its shard."""

    def __init__(self, address: Callable[[], Awaitable[str]], random: Random) -> None:
        """Describe them.

        Args:
            address: Returns where a member serves now.
            random: Names the producer.
        """
        self._address = address
        self._clock = MessageClock()
        self._publisher = Publisher(self._clock, new_producer_id(random.randbytes))
        self._numbers = count()
        self._turn = asyncio.Lock()
        self.replaced = 0
        """How often the journal was made anew, and the shard noticed."""

    def spec(self, like: shard_pb2.ShardSpec) -> shard_pb2.ShardSpec:
        """Return the shard's spec."""
        spec = shard_pb2.ShardSpec()
        spec.CopyFrom(like)
        spec.id = SHARD
        del spec.sources[:]
        spec.sources.add(journal=JOURNAL)
        spec.hot_standbys = 0
        return spec

    async def create(self, journals: JournalClient, like: journal_pb2.JournalSpec) -> None:
        """Make the journal, and its shard's recovery log."""
        source, log = journal_pb2.JournalSpec(), journal_pb2.JournalSpec()
        for spec, name in ((source, JOURNAL), (log, f"stream-sum/logs/{SHARD}")):
            spec.CopyFrom(like)
            spec.name = name
        for label in log.labels.labels:
            if label.name == "content-type":
                label.value = "application/x-gazette-recoverylog"
        changes = [journal_pb2.ApplyRequest.Change(upsert=spec) for spec in (source, log)]
        await journals.apply(changes)

    async def replace(self, journals: JournalClient, unix_seconds: float) -> None:
        """Delete the journal under its shard, make it anew, and see the shard fail, be reset, and read on."""
        async with self._turn:
            await self._read(await self._write(journals, unix_seconds))
            listed = await journals.get(JOURNAL)
            await journals.apply(
                [
                    journal_pb2.ApplyRequest.Change(
                        delete=JOURNAL, expect_mod_revision=listed.mod_revision
                    )
                ]
            )
            await journals.apply([journal_pb2.ApplyRequest.Change(upsert=listed.spec)])
            await eventually(self._has_failed, timeout_seconds=SEEN_SECONDS, message="it fails")
            head = await self._write(journals, unix_seconds)
            await eventually(self._is_reset, timeout_seconds=SEEN_SECONDS, message="it is reset")
            await self._read(head)
            self.replaced += 1

    async def _write(self, journals: JournalClient, unix_seconds: float) -> int:
        self._clock.update(unix_seconds)
        to = MappedJournal(JOURNAL, CHUNKS.content_type)
        for _ in range(_CHUNKS):
            # Of streams that never end: no sum comes of them.
            chunk = Chunk(stream=f"replaced-{next(self._numbers)}", data=b"x")
            self._publisher.publish_committed(to, chunk, CHUNKS)
        end = 0
        for append in self._publisher.take_appends():
            response = await journals.append(append.journal, append.content)
            end = response.commit.end
        return end

    async def _read(self, offset: int) -> None:
        async def has_read() -> bool:
            async with ShardClient(await self._address()) as client:
                await client.wait_read_through(SHARD, {JOURNAL: offset}, timeout_seconds=5.0)
            return True

        await eventually(
            _patient(has_read), timeout_seconds=SEEN_SECONDS, message="the shard reads on"
        )

    async def _has_failed(self) -> bool:
        async def has_failed() -> bool:
            async with ShardClient(await self._address()) as client:
                errors = [
                    error
                    for listed in (await client.list()).shards
                    if listed.spec.id == SHARD
                    for status in listed.status
                    if status.code == shard_pb2.ReplicaStatus.FAILED
                    for error in status.errors
                ]
            return any(JOURNAL in error for error in errors)

        return await _patient(has_failed)()

    async def _is_reset(self) -> bool:
        async def is_reset() -> bool:
            async with RecoveryClient(await self._address()) as client:
                await client.reset_source(SHARD, journal=JOURNAL, offset=0)
            return True

        return await _patient(is_reset)()


def _patient(look: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
    """Return a look that is False while etcd, the broker or a member is away."""

    async def patient() -> bool:
        try:
            return await look()
        except (ConsumerError, TimeoutError):
            return False

    return patient
