"""The journals of one measurement: rows go in, sums come out. What a producer and a reader of journals do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing

from bench.journal_specs import journal_change
from bench.vs_structured_streaming.key_sums import RESULTS, sums_journal
from bench.vs_structured_streaming.results import Results, Sums
from bench.vs_structured_streaming.rows import PARTS, Chunk, Row, part_of
from broadsheet.consumer.client.loop_thread import LoopThread
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import PendingAppend, Publisher
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.uuid import Flags, MessageClock, new_producer_id
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.labels import CONTENT_TYPE_RECOVERY_LOG
from broadsheet.wire.shard_pb2 import ShardSpec


class Topic:
    """Journals of rows, of sums and of recovery logs, and the shards between them: one of each for each part."""

    def __init__(self, name: str) -> None:
        """Name them after a measurement."""
        parts = [f"part-{part:03d}" for part in range(PARTS)]
        self._name = name
        self.shards = [f"{name}/{part}" for part in parts]
        self.rows = [f"bench/{name}/rows/{part}" for part in parts]
        self.sums = [sums_journal(journal) for journal in self.rows]

    async def make(self, journals: JournalClient) -> None:
        """Make the journals."""
        logs = [f"bench/logs/{shard}" for shard in self.shards]
        changes = [journal_change(journal) for journal in (*self.rows, *self.sums)]
        changes += [journal_change(log, CONTENT_TYPE_RECOVERY_LOG) for log in logs]
        await journals.apply(changes)

    def specs(self) -> list[ShardSpec]:
        """Return the shards, each with a hot standby."""
        specs = []
        for shard, journal in zip(self.shards, self.rows, strict=True):
            spec = ShardSpec(
                id=shard,
                sources=[ShardSpec.Source(journal=journal)],
                recovery_log_prefix="bench/logs",
                hint_prefix="/bench/hints",
                hint_backups=1,
                hot_standbys=1,
            )
            spec.max_txn_duration.FromMilliseconds(1000)
            specs.append(spec)
        return specs


class Connection:
    """A journal client on one event loop, for all of a run: gRPC does not like loops that come and go."""

    def __init__(self, broker: str) -> None:
        """Take the broker's address."""
        self.loop = LoopThread(name="journals")
        self._broker = broker

    def __enter__(self) -> Connection:
        self.loop.call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call(self._resources.aclose())
        self.loop.close()

    async def _open(self) -> None:
        self._resources = AsyncExitStack()
        self.journals = await self._resources.enter_async_context(JournalClient(self._broker))
        self.appends = AppendService(self.journals)
        await self._resources.enter_async_context(self.appends)


class Producer:
    """Publishes rows into the journals of a topic."""

    def __init__(self, connection: Connection, topic: Topic) -> None:
        """Begin as a new producer."""
        self._connection = connection
        self._topic = topic
        self._clock = MessageClock()
        self._publisher = Publisher(self._clock, new_producer_id())
        self._targets = [MappedJournal(journal, NDJSON) for journal in topic.rows]
        self._json_type = JsonType()

    def make_journals(self) -> None:
        """Make the topic's journals."""
        self._connection.loop.call(self._topic.make(self._connection.journals))

    def publish(self, chunks: Sequence[Chunk]) -> None:
        """Publish chunks of rows, a transaction each."""
        for chunk in chunks:
            self._append(self._topic.rows[chunk.part], [chunk.content, chunk.acknowledgement])

    def send(self, row: Row) -> None:
        """Publish one row, which commits by itself; do not wait until it is durable."""
        self._clock.update(time.time())
        target = self._targets[part_of(row.key)]
        self._publisher.publish_committed(target, row.as_message(), self._json_type)
        self._connection.loop.call(self._queue(self._publisher.take_appends()))

    async def _queue(self, appends: list[PendingAppend]) -> None:
        for append in appends:
            self._connection.appends.append(append.journal, append.content)

    def _append(self, journal: str, content: list[bytes]) -> None:
        self._connection.loop.call(self._connection.journals.append(journal, content))


class SumsReader:
    """Reads the committed sums of a topic as they come. A context manager."""

    def __init__(self, connection: Connection, topic: Topic, results: Results) -> None:
        """Describe what to read, and where it goes."""
        self._connection = connection
        self._topic = topic
        self._results = results
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def __enter__(self) -> SumsReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.loop.call(self._end())
        self._thread.join()

    def _live(self) -> None:
        try:
            self._connection.loop.call(self._run())
        except BaseException as error:
            self._results.fail(error)

    async def _end(self) -> None:
        self._stop.set()

    async def _run(self) -> None:
        async with TaskGroup() as group:
            for journal in self._topic.sums:
                group.start_soon(self._read(journal), name=f"read {journal}")
            await self._stop.wait()
            group.stop()

    async def _read(self, journal: str) -> None:
        batches = read_committed(self._connection.journals, journal, RESULTS, block=True)
        async with aclosing(batches):
            async for batch in batches:
                now = time.monotonic()
                self._results.add(
                    [
                        Sums(found.k, found.n, found.total, found.pid, now)
                        for found, flags in zip(batch.messages(), batch.flags, strict=True)
                        if flags != Flags.ACK_TXN
                    ]
                )
