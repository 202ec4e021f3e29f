"""Members as processes, with an application whose stores are tables: for tests of what Spark reads of shards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.consumer.application import Shard
from broadsheet.consumer.client import SyncShardClient
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire import journal_pb2
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec
from tests.support.broker import journal_spec
from tests.support.eventually import eventually_sync
from tests.support.members import Producer, create_journals

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, count INTEGER, share REAL, raw BLOB)"
)
_COUNT = "INSERT INTO counts VALUES (?, 1, 0.5, x'00ff') ON CONFLICT (key) DO UPDATE SET count = count + 1"


class TableApplication:
    """Counts messages by key in a SQLite file; a key that is a digit fails the shard."""

    def new_store(self, shard: Shard) -> Any:
        """Open what the log replayed to."""
        return SqliteStore(shard, schema=SCHEMA)

    def message_type(self, journal_spec: journal_pb2.JournalSpec) -> MessageType:
        """JSON lines."""
        del journal_spec
        return JsonType()

    def consume_message(
        self, shard: Shard, store: Any, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count the message."""
        del shard, publisher
        if envelope.flags == 2:
            return
        key = envelope.message["key"]
        if key.isdigit():
            raise ValueError(f"cannot count {key}")
        store.connection.execute(_COUNT, (key,))

    def finalize_txn(self, shard: Shard, store: Any, publisher: Publisher) -> None:
        """Nothing is buffered."""


@dataclass
class TableCluster:
    """Two members of zones of their own, and shards whose sources are named like them."""

    broker_address: str
    addresses: tuple[str, ...]
    client: SyncShardClient
    name: str
    """Part of the names of its journals."""

    def shard_id(self, letter: str) -> str:
        """The id of a shard."""
        return f"table-{letter}"

    def source(self, letter: str) -> str:
        """The journal that a shard reads."""
        return f"{self.name}/source-{letter}"

    def wait_until_standing(self, letters: str) -> None:
        """Wait until each of the shards has a primary, and a standby that has caught up."""
        wanted = {self.shard_id(letter) for letter in letters}

        def are_standing() -> bool:
            codes = {
                listed.spec.id: sorted(status.code for status in listed.status)
                for listed in self.client.list().shards
                if listed.spec.id in wanted
            }
            expected = [ReplicaStatus.STANDBY, ReplicaStatus.PRIMARY]
            assert codes == dict.fromkeys(wanted, expected), codes
            return True

        eventually_sync(are_standing, timeout_seconds=30.0)

    def publish(self, letter: str, keys: Sequence[str], *, wait: bool = True) -> int:
        """Publish a message a key to a shard, and wait until it has counted them; return where the journal ends."""

        async def append() -> int:
            async with JournalClient(self.broker_address) as journals:
                return await Producer(journals).publish(self.source(letter), keys)

        end = asyncio.run(append())
        if wait:
            offsets = {self.source(letter): end}
            self.client.wait_read_through(self.shard_id(letter), offsets, timeout_seconds=20.0)
        return end


@contextmanager
def running_tables(
    etcd: EtcdConfig, broker_address: str, directory: Path, *, letters: str
) -> Iterator[TableCluster]:
    """Run members whose shards, one a letter, each have a standby in the other zone that has caught up."""
    name = f"tables-{uuid4().hex}"
    root = f"/test/{name}"
    with ExitStack() as stack:
        addresses = []
        for zone in ("zone-a", "zone-b"):
            arguments = [
                *("--root", root, "--etcd", ",".join(etcd.endpoints), "--broker", broker_address),
                *("--zone", zone, "--suffix", "member", "--port", "0"),
                *("--state-dir", str(directory / zone)),
            ]
            member = EmbeddedMemberProcess(
                "tests.support.table_shards:TableApplication",
                arguments,
                log_file=directory / f"{zone}.log",
            )
            stack.callback(member.kill)
            addresses.append(member)
        endpoints = tuple(member.wait_until_ready() for member in addresses)
        client = stack.enter_context(SyncShardClient(endpoints[0]))
        cluster = TableCluster(broker_address, endpoints, client, name)
        asyncio.run(_create_journals(cluster, letters))
        specs = [_spec(cluster, letter, root) for letter in letters]
        client.apply([ApplyRequest.Change(upsert=spec) for spec in specs])
        cluster.wait_until_standing(letters)
        yield cluster


def _spec(cluster: TableCluster, letter: str, root: str) -> ShardSpec:
    spec = ShardSpec(
        id=cluster.shard_id(letter),
        sources=[ShardSpec.Source(journal=cluster.source(letter))],
        recovery_log_prefix=f"{cluster.name}/logs",
        hint_prefix=f"/hints{root}",
        hint_backups=1,
        hot_standbys=1,
        labels=label_set(("letter", letter)),
    )
    spec.max_txn_duration.FromMilliseconds(100)
    return spec


async def _create_journals(cluster: TableCluster, letters: str) -> None:
    async with JournalClient(cluster.broker_address) as journals:
        await create_journals(journals, *(cluster.source(letter) for letter in letters))
        labels = label_set((CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG))
        logs = [f"{cluster.name}/logs/{cluster.shard_id(letter)}" for letter in letters]
        await journals.apply(
            [JournalApply.Change(upsert=journal_spec(log, labels=labels)) for log in logs]
        )
