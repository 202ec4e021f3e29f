"""A primary that gives way serves until its successor does: what is published meanwhile need not wait."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from broadsheet.consumer.application import Shard
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.client import JournalClient
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    committed,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.tally import Tally

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
OUTPUT = "test/output"
SHARD = "shard-1"


class SlowToOpen(Tally):
    """Opens its store when it is allowed to."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.directory, output=OUTPUT)
        self.may_open = threading.Event()
        self.opening = threading.Event()

    def new_store(self, shard: Shard) -> Any:
        """Wait, and open it: that is when the predecessor is fenced."""
        self.opening.set()
        assert self.may_open.wait(timeout=30)
        return super().new_store(shard)


async def _standing(client: ShardClient, *wanted: tuple[str, str]) -> bool:
    found = (await statuses(client))[SHARD]
    assert found == list(wanted), found
    return True


async def _counted(cluster: Cluster, count: int) -> bool:
    found = cluster.counts(SHARD)
    assert found == Counter(k=count), found
    return True


async def _echoed(journals: JournalClient, count: int) -> bool:
    echoed = Counter(message["n"] for message in await committed(journals, OUTPUT))
    assert echoed == Counter(range(1, count + 1)), echoed
    return True


async def test_leaving_primary_serves_until_its_standby_does(
    cluster: Cluster, journals: JournalClient
) -> None:
    """Two members hold both replicas, so nobody can replace the one that leaves: its primary is handed over at once.
    The successor does not come to open its store; what is published is counted by the old primary, whose slot is gone.
    Then it opens, and every message was counted and echoed once.
    """
    cluster.settings["drain_covered_seconds_max"] = 60.0
    cluster.settings["shards"] = ShardConfig(hand_over_seconds=30.0)
    producer = Producer(journals)
    successor = SlowToOpen(cluster)
    async with (
        cluster.member("a") as a,
        client_of(a) as client,
    ):
        await client.apply(upserts(shard(SHARD, SOURCE, hot_standbys=1)))
        await wait_for_primaries(client, SHARD)
        await producer.publish(SOURCE, ["k"] * 10)
        async with cluster.member("b", application=successor) as b, client_of(b) as second:
            await eventually(
                lambda: _standing(client, ("member-a", "PRIMARY"), ("member-b", "STANDBY"))
            )
            a.stop()
            await eventually(successor.opening.is_set)

            await producer.publish(SOURCE, ["k"] * 10)
            await eventually(lambda: _counted(cluster, 20))
            successor.may_open.set()
            await eventually(
                lambda: _standing(second, ("member-b", "PRIMARY"), ("member-a", "STANDBY"))
            )
            await producer.publish(SOURCE, ["k"] * 10)
            await eventually(lambda: _counted(cluster, 30))
            await eventually(lambda: _echoed(journals, 30))


async def test_primary_does_not_wait_for_its_successor_for_ever(
    cluster: Cluster, journals: JournalClient
) -> None:
    """The successor hangs: the old primary stops when its time is over, and what is published waits for the new one."""
    cluster.settings["drain_covered_seconds_max"] = 60.0
    cluster.settings["shards"] = ShardConfig(hand_over_seconds=0.2)
    producer = Producer(journals)
    successor = SlowToOpen(cluster)
    async with cluster.member("a") as a, client_of(a) as client:
        await client.apply(upserts(shard(SHARD, SOURCE, hot_standbys=1)))
        await wait_for_primaries(client, SHARD)
        async with cluster.member("b", application=successor) as b, client_of(b) as second:
            await eventually(
                lambda: _standing(client, ("member-a", "PRIMARY"), ("member-b", "STANDBY"))
            )
            a.stop()
            await eventually(successor.opening.is_set)
            # The new life of the replica here begins when the old one has ended.
            await eventually(lambda: _stands_by(second))

            await producer.publish(SOURCE, ["k"] * 10)
            successor.may_open.set()
            await eventually(lambda: _counted(cluster, 10))
            await eventually(lambda: _echoed(journals, 10))


async def _stands_by(client: ShardClient) -> bool:
    found = (await statuses(client))[SHARD]
    assert ("member-a", "STANDBY") in found, found
    return True
