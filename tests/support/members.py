"""Members in this process, around real servers: what integration tests of the service share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.policy import AllocationPolicy, TransitionPolicy
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.member.service import Service
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import PendingAppend, Publisher
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.uuid import Flags, MessageClock, new_producer_id
from broadsheet.leases.live_page import lease_route
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import ClientAuth
from broadsheet.wire.journal_pb2 import AppendResponse, ApplyRequest as JournalApply
from broadsheet.wire.labels import CONTENT_TYPE, label_set
from broadsheet.wire.shard_pb2 import (
    ApplyRequest,
    ListRequest,
    ListResponse,
    ReplicaStatus,
    ShardSpec,
)
from broadsheet.wire.shard_pb2_grpc import ShardServicer
from tests.support.broker import journal_spec
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.tally import JsonTally, Tally, counts_in, json_counts_in


@dataclass
class Cluster:
    """One root, one broker, and the directory where shards keep their databases."""

    etcd_endpoint: str
    broker_address: str
    root: str
    directory: Path
    output: str = ""
    json_store: bool = False
    """Keep states in JSON files, which nobody locks for longer than a commit; else in SQLite."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of every member's configuration."""

    def config(self, name: str, **overrides: Any) -> MemberConfig:
        """The configuration of member `name`, quick to leave."""
        settings: dict[str, Any] = {
            "root": self.root,
            "zone": "zone-a",
            "suffix": f"member-{name}",
            "etcd": EtcdConfig(endpoints=(self.etcd_endpoint,)),
            "broker_address": self.broker_address,
            "allocation": AllocationPolicy(transition=TransitionPolicy(settle_seconds=0.0)),
            "drain_alone_seconds_max": 0.2,
            "stop_seconds_max": 2.0,
        }
        return MemberConfig(**settings | self.settings | overrides)

    def tally(self) -> Tally:
        """The test application."""
        kind = JsonTally if self.json_store else Tally
        return kind(self.directory, output=self.output)

    @asynccontextmanager
    async def member(
        self, name: str, *, application: Tally | None = None, **overrides: Any
    ) -> AsyncIterator[Service]:
        """A ready member; stopped by force at the end, unless it ended before."""
        tally = application or self.tally()
        service = Service(tally, self.config(name, **overrides), lease_route=lease_route)
        try:
            async with TaskGroup() as group:
                group.start_soon(service.run(), name=f"member {name}")
                await service.ready
                try:
                    yield service
                finally:
                    service.force_stop()
        finally:
            tally.close()

    def counts(self, *shard_ids: str) -> Counter[str]:
        """What the shards' databases hold together."""
        total: Counter[str] = Counter()
        read = json_counts_in if self.json_store else counts_in
        for shard_id in shard_ids:
            total.update(read(self.directory, shard_id))
        return total


class MemberWithoutWatch(ShardServicer):
    """A member as Gazette's are: it lists, and has no WatchShards. What it lists is a real member's."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        self.lists = 0

    async def List(self, request: ListRequest, context: Any) -> ListResponse:  # noqa: N802 - gRPC's name
        """Answer as the real member does."""
        self.lists += 1
        return await self._client.list(request.selector)


def shard(shard_id: str, *sources: str, hot_standbys: int = 0, **labels: str) -> ShardSpec:
    """A spec with short transactions."""
    spec = ShardSpec(
        id=shard_id,
        sources=[ShardSpec.Source(journal=journal) for journal in sorted(sources)],
        hot_standbys=hot_standbys,
        labels=label_set(labels),
    )
    spec.max_txn_duration.FromMilliseconds(200)
    return spec


def upserts(*specs: ShardSpec, expect: int = 0) -> list[ApplyRequest.Change]:
    """Changes that create (or, with another `expect`, update) shards."""
    return [ApplyRequest.Change(upsert=spec, expect_mod_revision=expect) for spec in specs]


async def create_journals(journals: JournalClient, *names: str) -> None:
    """Create journals of JSON lines."""
    labels = label_set((CONTENT_TYPE, NDJSON))
    await journals.apply(
        [
            JournalApply.Change(upsert=journal_spec(name, labels=labels), expect_mod_revision=0)
            for name in names
        ]
    )


class Producer:
    """Publishes messages that are committed by themselves."""

    def __init__(self, journals: JournalClient, *, ahead_seconds: float = 0.0) -> None:
        self._journals = journals
        self._clock = MessageClock()
        self._clock.update(time.time() + ahead_seconds)
        self._publisher = Publisher(self._clock, new_producer_id())
        self._published = 0

    async def publish(self, journal: str, keys: Iterable[str]) -> int:
        """Append one message a key, and return the offset after the last, bytes."""
        for key in keys:
            self._published += 1
            self._publisher.publish_committed(
                MappedJournal(journal, NDJSON), {"key": key, "n": self._published}, JsonType()
            )
        (pending,) = self._publisher.take_appends()
        return (await self.append(pending)).commit.end

    async def append(self, pending: PendingAppend) -> AppendResponse:
        """Append what is published."""
        return await self._journals.append(pending.journal, pending.content)


async def committed(journals: JournalClient, journal: str) -> list[dict[str, Any]]:
    """Every message of a journal that readers see once, acknowledgements left out."""
    found: list[dict[str, Any]] = []
    async with aclosing(read_committed(journals, journal, JsonType(), block=False)) as batches:
        async for batch in batches:
            found.extend(
                message
                for message, flags in zip(batch.messages(), batch.flags, strict=True)
                if flags != Flags.ACK_TXN
            )
    return found


async def statuses(client: ShardClient) -> dict[str, list[tuple[str, str]]]:
    """(suffix, status) of each shard's replicas, the primary first."""
    return {listed.spec.id: _replicas(listed) for listed in (await client.list()).shards}


async def wait_for_primaries(
    client: ShardClient, *shard_ids: str, timeout_seconds: float = DEADLINE_SECONDS
) -> dict[str, str]:
    """Wait until each shard has a PRIMARY; return the suffix of its process, by shard."""

    async def primaries() -> dict[str, str]:
        found = await statuses(client)
        for shard_id in shard_ids:
            assert found.get(shard_id, [("", "")])[0][1:] == ("PRIMARY",), found
        return {shard_id: found[shard_id][0][0] for shard_id in shard_ids}

    return await eventually(
        primaries, timeout_seconds=timeout_seconds, message=f"PRIMARY of {shard_ids}"
    )


def client_of(service: Service, auth: ClientAuth | None = None) -> ShardClient:
    """A client of one member."""
    return ShardClient(service.address, auth=auth)


def _replicas(listed: ListResponse.Shard) -> list[tuple[str, str]]:
    replicas = [
        (member.suffix, ReplicaStatus.Code.Name(status.code))
        for member, status in zip(listed.route.members, listed.status, strict=True)
    ]
    if listed.route.primary < 0:
        return [("", "")]
    return [replicas.pop(listed.route.primary), *replicas]
