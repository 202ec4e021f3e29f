"""A standby that is promoted into a hold takes over, after it, what it has played and made of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.consumer.keyed import (
    JournalOutput,
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    StateOptions,
    TxnTime,
)
from broadsheet.consumer.shard.crash_loop import YoungDeath
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.live_shards import OUTPUT, SHARD, SOURCE, ShardHost, read_through, spec_of
from tests.support.members import Producer
from tests.support.recorded_tally import create_logs, recorded

pytestmark = pytest.mark.etcd

HELD = ShardConfig(
    restart_delay_seconds=0.05, stop_grace_seconds=2, hold_seconds=1.5, young_deaths_max=2
)


class Counts(KeyedProcessor):
    """Counts the rows of each key."""

    def init(self, state: StateHandle) -> None:
        """Declare the count."""
        self.count = state.value("count", int)

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Count and tell."""
        del time
        self.count.update((self.count.get() or 0) + len(rows))
        yield *key, self.count.get()


def _counting() -> KeyedApplication:
    return KeyedApplication(
        Counts,
        key="key string",
        rows="key string, n long",
        output=JournalOutput(MappedJournal(OUTPUT, NDJSON), JsonType(), "key string, n long"),
        state=StateOptions(index="memory"),
    )


async def test_standby_promoted_into_a_hold_keeps_its_index_and_takes_over_after_it(
    host: ShardHost, etcd: EtcdClient, journals: JournalClient
) -> None:
    """The hold ends an attempt before it takes the log over. What the standby has made of the log is worth most just
    then, for no other replica serves; the attempt after the hold goes on from it, and reads nothing from the beginning.
    """
    await create_logs(journals, SHARD)
    spec = recorded(spec_of(SHARD, SOURCE), host.key_space.keys.root)
    producer = Producer(journals)
    await host.assign(spec)
    first = host.start(spec, _counting())
    await read_through(first, source=await producer.publish(SOURCE, ["a", "b", "a"]))
    await first.stop()
    await host.unassign(SHARD)
    await host.assign(spec, slot=1)
    shard = host.start(spec, _counting(), slot=1, config=HELD)

    async def follows() -> bool:
        return await shard.follow_played() is not None

    await eventually(lambda: host.says(SHARD, ReplicaStatus.STANDBY, slot=1))
    await eventually(follows)
    records = host.death_records(HELD)
    for life in range(2):
        await records.add(YoungDeath(ItemId(SHARD), MemberId("zone-a", f"member-{life}"), life))

    with capture_logs() as logs:
        await host.promote(SHARD, slot=1)
        await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, "held back"))
        await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))

    (opened,) = [each for each in logs if each["event"] == "keyed.index_opened"]
    assert opened["from_standby"]
    assert opened["commits_behind"] == 0
    await read_through(shard, source=await producer.publish(SOURCE, ["a"]))
    with shard.acquire() as reference:
        assert await reference.call(lambda store: store.state("count", "a")) == 3
