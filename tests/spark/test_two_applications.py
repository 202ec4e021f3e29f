"""Two Spark applications serve one cluster of shards: the kill of a driver is a fail-over, not an outage."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from broadsheet.examples.flights.app import FlightsApplication
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from tests.support.driver_kill import is_spread, kill_and_measure
from tests.support.eventually import eventually_sync
from tests.support.flight_rounds import Rounds, make_flight_journals
from tests.support.joining_driver import joining_driver
from tests.support.spark import shard_specs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

NAME = f"two-{uuid4().hex[:8]}"
JOURNALS = [f"{NAME}/{index:03d}" for index in range(4)]
SHARDS = [f"{NAME}-{index:03d}" for index in range(len(JOURNALS))]


def test_driver_of_one_application_killed_the_other_serves_every_shard_and_counts_once(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    """A real second driver joins by the address alone and takes its share of primaries, each with its standby in the
    first application; then it is killed. The survivor has them all long before a lease ends, answers, and goes on
    committing; its own members are what they were.
    """
    database = f"sqlite:///{tmp_path}/{{shard}}.db"
    make_flight_journals(services.broker_address, JOURNALS)
    with ShardCluster(
        spark,
        functools.partial(FlightsApplication, database),
        members=2,
        root=f"/test/{uuid4().hex}",
        join=True,
        etcd=services.etcd,
        broker=services.broker_address,
        lease_ttl_seconds=60.0,
    ) as cluster:
        rounds = Rounds(spark, cluster, journals=JOURNALS, shards=SHARDS)
        own = {str(one.member_id) for one in cluster.members()}
        with joining_driver(
            cluster.address,
            master_url="local[3,100000]",
            members=2,
            database=database,
            directory=tmp_path,
            conf={},
        ) as second:
            second.wait_joined()
            # Only now, so that primaries are in both applications.
            cluster.apply(shard_specs(NAME, JOURNALS))
            eventually_sync(lambda: is_spread(cluster, second))
            rounds.publish()
            rounds.check()
            killed = kill_and_measure(cluster, second, dict(zip(SHARDS, JOURNALS, strict=True)))
        primaries = cluster.wait_for_primary(SHARDS)

        # Its lease lasts longer than that: nobody waited for it.
        assert max(killed.seconds.values()) < 60.0
        assert {str(one) for one in primaries.values()} <= own
        assert {str(one.member_id) for one in cluster.members()} == own
        assert not own & set(second.members)
