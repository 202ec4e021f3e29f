"""KCL-style record processors on the executors of a real Spark, each a shard of a cluster of members."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from broadsheet.journals.client import JournalClient
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from tests.support.eventually import eventually_sync
from tests.support.executor_processors import key_counters
from tests.support.members import Producer
from tests.support.spark import make_journals, process_listening_at, shard_specs
from tests.support.tally import counts_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

NAME = "orders-of-kinesis"
JOURNALS = tuple(f"{NAME}/part-{index:03d}" for index in range(2))
SHARDS = tuple(f"{NAME}-{index:03d}" for index in range(2))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the shards' databases are."""
    return tmp_path


@pytest.fixture
def cluster(spark: SparkSession, services: Services, directory: Path) -> Iterator[ShardCluster]:
    """Two members that run a processor for each of two journals."""
    with ShardCluster(
        spark,
        functools.partial(key_counters, directory),
        members=2,
        root=f"/test/{uuid4().hex}",
        etcd=services.etcd,
        broker=services.broker_address,
    ) as running:
        make_journals(services.broker_address, JOURNALS)
        running.apply(shard_specs(NAME, JOURNALS))
        running.wait_for_primary(SHARDS)
        yield running


def publish(services: Services, keys: list[str]) -> None:
    """Publish the keys to each journal."""

    async def run() -> None:
        async with JournalClient(services.broker_address) as journals:
            producer = Producer(journals)
            for journal in JOURNALS:
                await producer.publish(journal, keys)

    asyncio.run(run())


def test_processors_on_executors_count_each_record_once_over_a_kill(
    services: Services, cluster: ShardCluster, directory: Path
) -> None:
    """The process of a primary is killed as the second lot of records comes.

    A processor goes on elsewhere from what the first one checkpointed, and each record is counted once.
    """

    def counted(expected: Counter[str]) -> bool:
        found = [Counter(counts_in(directory, shard)) for shard in SHARDS]
        return found == [expected] * len(SHARDS)

    publish(services, ["a", "b", "a"] * 10)
    once = Counter(a=20, b=10)
    eventually_sync(lambda: counted(once), message="the first lot is counted")

    primaries = cluster.wait_for_primary(SHARDS)
    victim = next(one for one in cluster.members() if one.member_id == primaries[SHARDS[0]])
    process_listening_at(victim.endpoint).kill()
    publish(services, ["b", "c"] * 10)
    cluster.wait_for_primary(SHARDS, not_on={victim.member_id})

    twice = once + Counter(b=10, c=10)
    eventually_sync(lambda: counted(twice), message="the second lot is counted")
