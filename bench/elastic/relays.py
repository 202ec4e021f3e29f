"""An etcd, a broker and a member of the ready relay; rows that wait for it, and rows that come one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.duration_pb2 import Duration

from bench.dataplane.cluster import Brokerage
from bench.dataplane.rows import Load
from bench.journal_specs import journal_change
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.relay import Sink, labels_of_sink
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec

TRICKLE: Final = "elastic/trickle"
_DEADLINE_SECONDS: Final = 900.0
_POLL_SECONDS: Final = 0.02


class Carried(NamedTuple):
    """Rows that a shard has carried out."""

    applied: float
    """When the shard was applied, seconds since 1970."""
    seconds: float
    """From then until all are out."""


@dataclass(slots=True)
class Relays:
    """A member that serves shards of sinks."""

    of: Brokerage
    member: EmbeddedMemberProcess

    @staticmethod
    @contextmanager
    def running(directory: Path) -> Iterator[Relays]:
        """Start all; end them with the block."""
        with Brokerage.running(directory) as brokerage:
            arguments = ["--etcd", brokerage.etcd, "--broker", brokerage.broker.address]
            arguments += ["--root", "/bench/elastic", "--port", "0", "--log-level", "warning"]
            arguments += ["--drain-seconds", "0", "--drain-alone-seconds", "0"]
            member = EmbeddedMemberProcess(
                "broadsheet.consumer.relay:Relay", arguments, log_file=directory / "member.log"
            )
            try:
                member.wait_until_ready()
                yield Relays(brokerage, member)
            finally:
                member.stop()

    def carry_waiting(self, sink: Sink, rows: int, *, min_seconds: float) -> Carried:
        """Carry rows that are in a journal out; return how long it took.

        Args:
            sink: Where to.
            rows: How many.
            min_seconds: Least duration of a transaction.
        """
        (journal,) = self.of.preload(Load("message", rows), 1)
        return asyncio.run(self._carry(sink, journal, min_seconds))

    async def _carry(self, sink: Sink, journal: str, min_seconds: float) -> Carried:
        shard = f"waiting-{sink.kind.value}"
        async with JournalClient(self.of.broker.address) as journals:
            head = await journals.write_head(journal)
        async with self._client() as client:
            applied, began = time.time(), time.monotonic()
            await client.apply([self._upsert(shard, journal, sink, min_seconds)])
            await client.wait_read_through(
                shard, {journal: head}, timeout_seconds=_DEADLINE_SECONDS
            )
            seconds = time.monotonic() - began
            await client.apply([ApplyRequest.Change(delete=shard, expect_mod_revision=-1)])
        return Carried(applied, seconds)

    @asynccontextmanager
    async def trickle(
        self, sink: Sink, rows_per_second: float, *, min_seconds: float
    ) -> AsyncIterator[dict[int, float]]:
        """Publish rows while the block runs; yield when each was due, monotonic seconds by its number `n`.

        Args:
            sink: Where a shard carries them.
            rows_per_second: At even distances.
            min_seconds: Least duration of a transaction.
        """
        journal, shard = f"{TRICKLE}-{sink.kind.value}", f"trickle-{sink.kind.value}"
        due: dict[int, float] = {}
        async with (
            JournalClient(self.of.broker.address) as journals,
            AppendService(journals) as appends,
            self._client() as client,
        ):
            await journals.apply([journal_change(journal)])
            await client.apply([self._upsert(shard, journal, sink, min_seconds)])
            await self._serves(client, shard)
            async with TaskGroup() as group:
                publishing = _publish(appends, journal, rows_per_second, due)
                group.start_soon(publishing, name="rows")
                yield due
                group.stop()
            await client.apply([ApplyRequest.Change(delete=shard, expect_mod_revision=-1)])

    def _client(self) -> ShardClient:
        return ShardClient(self.member.wait_until_ready(), timeout_seconds=_DEADLINE_SECONDS)

    async def _serves(self, client: ShardClient, shard: str) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while time.monotonic() < deadline:
            for listed in (await client.list()).shards:
                codes = [each.code for each in listed.status]
                if listed.spec.id == shard and codes == [ReplicaStatus.PRIMARY]:
                    return
            await asyncio.sleep(_POLL_SECONDS)
        raise TimeoutError(f"{shard} has no primary")

    def _upsert(
        self, shard: str, journal: str, sink: Sink, min_seconds: float
    ) -> ApplyRequest.Change:
        spec = ShardSpec(
            id=shard,
            sources=[ShardSpec.Source(journal=journal)],
            labels=labels_of_sink(sink),
            min_txn_duration=Duration(nanos=round(min_seconds % 1 * 1e9), seconds=int(min_seconds)),
            max_txn_duration=Duration(seconds=max(1, round(2 * min_seconds))),
        )
        return ApplyRequest.Change(upsert=spec)


async def _publish(
    appends: AppendService, journal: str, rows_per_second: float, due: dict[int, float]
) -> None:
    clock = MessageClock()
    publisher = Publisher(clock, new_producer_id())
    began, number = time.monotonic(), 0
    while True:
        number += 1
        due[number] = began + number / rows_per_second
        await asyncio.sleep(due[number] - time.monotonic())
        clock.update(time.time())
        row = {"n": number, "k": f"key-{number % 1000}"}
        publisher.publish_committed(MappedJournal(journal, NDJSON), row, JsonType())
        for append in publisher.take_appends():
            # Without waiting: a row is published when it is due, however long those before it take.
            appends.append(append.journal, append.content)
