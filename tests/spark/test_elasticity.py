"""A cluster grows, shrinks and moves on a real standalone Spark, by order and by what befalls executors."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from broadsheet.allocator.model import MemberId
from broadsheet.examples.flights.app import FlightsApplication
from broadsheet.spark_bridge.cluster import MemberInfo, ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.errors import NotInClusterError
from tests.support.eventually import eventually_sync
from tests.support.flight_rounds import Rounds, make_flight_journals
from tests.support.spark import executor_of, process_listening_at, shard_specs

if TYPE_CHECKING:
    import psutil
    from pyspark.sql import SparkSession

    from broadsheet.spark_bridge.standalone import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

NAME = f"elastic-{uuid4().hex[:8]}"
JOURNALS = [f"{NAME}/{index:03d}" for index in range(4)]
SHARDS = [f"{NAME}-{index:03d}" for index in range(len(JOURNALS))]
LEASE_SECONDS = 60.0
"""Nothing here may wait for a lease to end."""

NewCluster = Callable[..., AbstractContextManager[ShardCluster]]


@pytest.fixture(scope="module")
def new_cluster(
    spark: SparkSession, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> NewCluster:
    """Describes a cluster of the flights example at a root of its own."""
    make_flight_journals(services.broker_address, JOURNALS)

    def describe(members: int, **settings: Any) -> ShardCluster:  # whatever a test sets
        states = tmp_path_factory.mktemp("states")
        return ShardCluster(
            spark,
            functools.partial(FlightsApplication, f"sqlite:///{states}/{{shard}}.db"),
            members=members,
            root=f"/test/{uuid4().hex}",
            etcd=services.etcd,
            broker=services.broker_address,
            lease_ttl_seconds=LEASE_SECONDS,
            **settings,
        )

    return describe


@pytest.fixture(scope="module")
def cluster(new_cluster: NewCluster) -> Iterator[ShardCluster]:
    """Two members with four shards, each with a standby. Peers do not watch each other: the driver alone must do."""
    with new_cluster(2, watch_peers=False) as running:
        running.apply(shard_specs(NAME, JOURNALS))
        running.wait_for_primary(SHARDS)
        yield running


@pytest.fixture(scope="module")
def rounds(spark: SparkSession, cluster: ShardCluster) -> Rounds:
    """What was published for the cluster."""
    return Rounds(spark, cluster, journals=JOURNALS, shards=SHARDS)


def _by_executor(members: tuple[MemberInfo, ...]) -> dict[str, list[MemberInfo]]:
    found: dict[str, list[MemberInfo]] = {}
    for member in members:
        found.setdefault(member.executor_id, []).append(member)
    return found


def test_cluster_scaled_up_and_down_under_load_counts_each_flight_once(
    cluster: ShardCluster, rounds: Rounds
) -> None:
    """Messages are published by DataFrame jobs of the same session while members come and go. What is left is spread
    over both executors; each flight and alert is counted once; who left is not started again.
    """
    cluster.scale(2)
    before = {member.partition for member in cluster.members()}

    with ThreadPoolExecutor(1) as publisher:
        publishing = publisher.submit(rounds.publish, 4)
        cluster.scale(5)
        grown = cluster.members()
        cluster.wait_for_primary(SHARDS)
        cluster.scale(2)
        publishing.result(180)
    rounds.check()
    shrunk = cluster.members()

    assert len(grown) == 5
    assert before < {member.partition for member in grown}
    assert len(shrunk) == len(_by_executor(shrunk)) == 2
    assert set(cluster.wait_for_primary(SHARDS).values()) <= {one.member_id for one in shrunk}


def test_cluster_drained_member_leaves_for_good(cluster: ShardCluster) -> None:
    """Its shards are handed over before it goes, and its task is not started again; the cluster is smaller by one."""
    cluster.scale(3)
    primaries = cluster.wait_for_primary(SHARDS)
    victim = next(one for one in cluster.members() if one.member_id in primaries.values())

    cluster.drain(victim)
    after = cluster.wait_for_primary(SHARDS, not_on={victim.member_id})

    left = cluster.members()
    assert len(left) == 2
    assert victim.partition not in {member.partition for member in left}
    assert victim.member_id not in after.values()


def test_cluster_drain_of_a_stranger_or_of_the_last_says_so(
    cluster: ShardCluster, new_cluster: NewCluster
) -> None:
    """A mistyped name must not wait for something that never comes, nor may a drain end the cluster."""
    with pytest.raises(NotInClusterError, match=r"got zone#nobody; there are members .*-0"):
        cluster.drain(MemberId("zone", "nobody"))
    with pytest.raises(NotInClusterError, match=r"got executor '999'; there are executors \d"):
        cluster.drain("999")
    with new_cluster(1) as alone, pytest.raises(ValueError, match=r"stop\(\) ends the last one"):
        alone.drain(alone.members()[0])


def test_cluster_executor_killed_with_its_workers_is_buried_by_the_driver(
    cluster: ShardCluster, standalone: StandaloneCluster
) -> None:
    """SIGKILL of a whole executor, JVM and Python workers at once: nobody there can tell anybody, peers do not look,
    the lease lives a minute. The driver hears of it from Spark; the shards are PRIMARY elsewhere within seconds.

    Members take every slot: where Spark has one to spare it starts them again at once, and each buries its predecessor.
    """
    slots = standalone.total_cores
    cluster.scale(slots)
    primaries = cluster.wait_for_primary(SHARDS)
    members = _by_executor(cluster.members())
    dying = next(
        group
        for group in members.values()
        if {one.member_id for one in group} & set(primaries.values())
    )
    workers = [process_listening_at(member.endpoint) for member in dying]
    with capture_logs() as logs:

        def all_are_buried() -> bool:
            buried = {log["member"] for log in logs if log["event"] == "cluster.executor_lost"}
            assert buried == {str(member.member_id) for member in dying}
            return True

        killed = time.monotonic()
        _kill_at_once(executor_of(workers[0]), workers)
        cluster.wait_for_primary(SHARDS, not_on={member.member_id for member in dying})
        failover_seconds = time.monotonic() - killed
        # They are logged once all of them are.
        eventually_sync(all_are_buried)
    cluster.scale(slots)

    assert failover_seconds < LEASE_SECONDS / 2
    assert len(cluster.members()) == slots
    cluster.scale(4)


def _kill_at_once(executor: psutil.Process, workers: Sequence[psutil.Process]) -> None:
    """Let the JVM not see its workers end, nor them see it end."""
    executor.suspend()
    for worker in workers:
        worker.kill()
    executor.kill()


def test_cluster_drained_executor_is_emptied_and_its_members_come_back_elsewhere(
    cluster: ShardCluster, rounds: Rounds
) -> None:
    """The executor is decommissioned, as a cluster manager would do it. Spark tells its tasks nothing, so the driver
    tells its members to move. No shard waits for a lease, and as many members as before serve, none of them there.
    """
    cluster.scale(3)
    cluster.wait_for_primary(SHARDS)
    rounds.publish()
    leaving = cluster.members()[0].executor_id
    moved = {one.member_id for one in cluster.members() if one.executor_id == leaving}

    cluster.drain(leaving)
    cluster.wait_for_primary(SHARDS, not_on=moved)
    cluster.scale(3)
    rounds.publish()
    rounds.check()

    assert len(cluster.members()) == 3
    assert leaving not in _by_executor(cluster.members())
    assert not moved & {member.member_id for member in cluster.members()}


def test_two_clusters_of_one_session_live_and_die_apart(
    cluster: ShardCluster, new_cluster: NewCluster
) -> None:
    """Another application's cluster, at a root of its own: stopping it takes nothing from the first."""
    cluster.scale(2)
    before = cluster.members()

    with new_cluster(2) as second:
        (journal,) = JOURNALS[:1]
        second.apply(shard_specs("second", [journal]))
        found = second.wait_for_primary(["second-000"])

        assert found.keys() == {"second-000"}
        assert len(second.members()) == 2
    assert cluster.members() == before
    assert cluster.wait_for_primary(SHARDS).keys() == set(SHARDS)


def test_dataframe_job_finishes_while_members_run(
    spark: SparkSession, cluster: ShardCluster
) -> None:
    """Members hold their slots for ever; a job of more tasks than slots goes through those that are left."""
    cluster.scale(3)

    rows = spark.range(0, 24_000, 1, 24).selectExpr("id % 7 AS k").groupBy("k").count().collect()

    assert sum(row["count"] for row in rows) == 24_000
    assert len(cluster.members()) == 3
