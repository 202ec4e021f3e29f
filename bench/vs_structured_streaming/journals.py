"""The journals of one measurement: rows go in, sums come out. What a producer and a reader of journals do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from allocator.runtime.task_group import TaskGroup
from bench.journal_specs import journal_change
from bench.vs_structured_streaming.key_sums import RESULTS, sums_journal
from bench.vs_structured_streaming.results import Results, Sums
from bench.vs_structured_streaming.rows import PARTS, Chunk, Row, part_of
from consumer.client.loop_thread import LoopThread
from consumer.journal.client import JournalClient
from consumer.message.clock import MessageClock
from consumer.message.framing import NDJSON
from consumer.message.json_type import JsonType
from consumer.message.mapping import MappedJournal
from consumer.message.publisher import Publisher
from consumer.message.reader import read_committed
from consumer.message.uuid import Flags, new_producer_id
from consumer.protocol.labels import CONTENT_TYPE_RECOVERY_LOG
from consumer.protocol.shard_pb2 import ShardSpec


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


class Producer:
    """Publishes rows into the journals of a topic. A context manager."""

    def __init__(self, broker: str, topic: Topic) -> None:
        """Take the broker's address."""
        self._broker = broker
        self._topic = topic
        self._loop = LoopThread(name="producer")
        self._clock = MessageClock()
        self._publisher = Publisher(self._clock, new_producer_id())
        self._targets = [MappedJournal(journal, NDJSON) for journal in topic.rows]
        self._json_type = JsonType()

    def make_journals(self) -> None:
        """Make the topic's journals."""
        self._loop.call(self._topic.make(self._journals))

    def publish(self, chunks: Sequence[Chunk]) -> None:
        """Publish chunks of rows, a transaction each."""
        for chunk in chunks:
            content = [chunk.content, chunk.acknowledgement]
            self._loop.call(self._journals.append(self._topic.rows[chunk.part], content))

    def send(self, row: Row) -> None:
        """Publish one row, which commits by itself; return when it is durable."""
        self._clock.update(time.time())
        target = self._targets[part_of(row.key)]
        self._publisher.publish_committed(target, row.as_message(), self._json_type)
        for append in self._publisher.take_appends():
            self._loop.call(self._journals.append(append.journal, append.content))

    def __enter__(self) -> Producer:
        self._journals = JournalClient(self._broker)
        self._loop.call(self._journals.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call(self._journals.__aexit__(None, None, None))
        self._loop.close()


class SumsReader:
    """Reads the committed sums of a topic as they come, on a thread of its own. A context manager."""

    def __init__(self, broker: str, topic: Topic, results: Results) -> None:
        """Take the broker's address, and where results go."""
        self._broker = broker
        self._topic = topic
        self._results = results
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> SumsReader:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._event_loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _live(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._results.fail(error)

    async def _run(self) -> None:
        self._event_loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        async with JournalClient(self._broker) as journals, TaskGroup() as group:
            for journal in self._topic.sums:
                group.start_soon(self._read(journals, journal), name=f"read {journal}")
            await self._stop.wait()
            group.stop()

    async def _read(self, journals: JournalClient, journal: str) -> None:
        async for batch in read_committed(journals, journal, RESULTS, block=True):
            now = time.monotonic()
            self._results.add(
                [
                    Sums(found.k, found.n, found.total, found.pid, now)
                    for found, flags in zip(batch.messages(), batch.flags, strict=True)
                    if flags != Flags.ACK_TXN
                ]
            )
