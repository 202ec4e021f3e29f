"""The client: publishes rows one at a time when they are due, and reads the sums that hold them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from bench.journal_specs import journal_change
from bench.row.cluster import LOGS, ROWS, SHARD, SUMS, RowCluster, shard_spec
from bench.vs_structured_streaming.key_sums import RESULTS
from bench.vs_structured_streaming.rows import KEYS, Row
from broadsheet.consumer.client import ShardClient
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.uuid import Flags, MessageClock, new_producer_id
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.labels import CONTENT_TYPE_RECOVERY_LOG
from broadsheet.wire.shard_pb2 import ApplyRequest

RESULT_SECONDS_MAX = 60.0
"""Longest wait for the sums of rows that were published."""
_ROWS_TARGET = MappedJournal(ROWS, NDJSON)
_JSON = JsonType()


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement at one rate."""

    rows: int
    cpu_seconds: Mapping[str, float]
    """Processor time by process."""
    latencies_seconds: Sequence[float]
    """Of each row, ascending."""
    transactions: int
    """Those of the shard that published sums."""

    @property
    def rows_per_txn(self) -> float:
        """Rows of one transaction, on average."""
        return self.rows / max(1, self.transactions)

    def latency_seconds(self, percentile: int) -> float:
        """Return a percentile of the latency."""
        index = len(self.latencies_seconds) * percentile // 100
        return self.latencies_seconds[min(index, len(self.latencies_seconds) - 1)]


class RowClient:
    """Publishes and reads over connections that stay open between measurements."""

    def __init__(self, cluster: RowCluster, appends: AppendService) -> None:
        self._cluster = cluster
        self._appends = appends
        self._clock = MessageClock()
        self._publisher = Publisher(self._clock, new_producer_id())
        self._published = 0
        self._due: dict[tuple[str, int], float] = {}
        """Time at which each row was due whose sums have not come, by its key and its ordinal, monotonic seconds."""
        self._latencies: list[float] = []
        self._transactions = 0
        self._all_seen = asyncio.Event()

    @staticmethod
    @asynccontextmanager
    async def connected(cluster: RowCluster) -> AsyncIterator[RowClient]:
        """Make journals and shard, and read its sums until the block ends."""
        async with JournalClient(cluster.broker.address) as journals:
            changes = [journal_change(journal) for journal in (ROWS, SUMS)]
            changes.append(journal_change(f"{LOGS}/{SHARD}", CONTENT_TYPE_RECOVERY_LOG))
            await journals.apply(changes)
            async with ShardClient(cluster.member.wait_until_ready()) as shards:
                await shards.apply([ApplyRequest.Change(upsert=shard_spec())])
            async with AppendService(journals) as appends, TaskGroup() as group:
                client = RowClient(cluster, appends)
                group.start_soon(client._read(journals), name="read sums")
                await client.publish_at(1.0, 1.0)  # The first row waits for the shard.
                yield client
                group.stop()

    async def idle(self, seconds: float) -> dict[str, float]:
        """Return the processor time that each process spends while no row is published, seconds."""
        before = self._cluster.cpu_seconds()
        await asyncio.sleep(seconds)
        return _spent(before, self._cluster.cpu_seconds())

    async def publish_at(self, rows_per_second: float, seconds: float) -> Measured:
        """Publish rows at a steady rate, and wait for the sums of each.

        Raises:
            TimeoutError: sums did not come.
        """
        rows = max(1, round(rows_per_second * seconds))
        self._latencies, self._transactions = [], 0
        before, began = self._cluster.cpu_seconds(), time.monotonic()
        for number in range(rows):
            due = began + number / rows_per_second
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            self._publish(due)
        async with asyncio.timeout(RESULT_SECONDS_MAX):
            await self._all_seen.wait()
        spent = _spent(before, self._cluster.cpu_seconds())
        return Measured(rows, spent, sorted(self._latencies), self._transactions)

    def _publish(self, due: float) -> None:
        row = Row(self._published)
        self._published += 1
        self._due[row.key, row.ordinal] = due
        self._all_seen.clear()
        self._clock.update(time.time())
        self._publisher.publish_committed(_ROWS_TARGET, row.as_message(), _JSON)
        for append in self._publisher.take_appends():
            self._appends.append(append.journal, append.content)

    async def _read(self, journals: JournalClient) -> None:
        async with aclosing(read_committed(journals, SUMS, RESULTS, block=True)) as batches:
            async for batch in batches:
                now = time.monotonic()
                for sums, flags in zip(batch.messages(), batch.flags, strict=True):
                    if flags == Flags.ACK_TXN:
                        self._transactions += 1
                    else:
                        self._note(sums.k, sums.n, sums.total, now)

    def _note(self, key: str, n: int, total: int, now: float) -> None:
        """Take the sums of a key after its first `n` rows, whose numbers are `KEYS` apart."""
        first = int(key.removeprefix("key-"))
        expected = n * first + KEYS * n * (n - 1) // 2
        assert total == expected, f"{key}: not exactly once: {total} of {n} rows, not {expected}"
        # A transaction of several rows publishes the sums of a key once.
        while (due := self._due.pop((key, n), None)) is not None:
            self._latencies.append(now - due)
            n -= 1
        if not self._due:
            self._all_seen.set()


def _spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {job: after[job] - before[job] for job in after}
