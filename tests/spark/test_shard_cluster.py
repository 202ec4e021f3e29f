"""Members on the executors of a real standalone Spark: they serve, are killed, come back, and leave."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil
import pytest
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from structlog.testing import capture_logs

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import MemberId
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.examples.flights.app import FlightsApplication
from broadsheet.examples.flights.messages import FLIGHT_JOURNALS
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.interrupts import spared_jobs
from broadsheet.spark_bridge.cluster.membership import MemberInfo
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.errors import ClusterStartError, ExecutorUnfitError, SparkConfError
from broadsheet.spark_bridge.jvm import jvm_context_of
from tests.support.eventually import eventually_sync
from tests.support.flight_rounds import (
    FLIGHTS_A_ROUND,
    LATE_EVERY,
    make_flight_journals,
    publish_round,
    wait_for_rounds,
)
from tests.support.spark import executor_of, make_journals, process_listening_at, shard_specs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

JOURNALS = FLIGHT_JOURNALS[:4]
SHARDS = [f"counts-{index:03d}" for index in range(len(JOURNALS))]
LEASE_SECONDS = 60.0
LEASE_LEFT_SECONDS = 40.0
"""What a lease lives on without its holder, at least, for it is renewed every third of its time."""


@pytest.fixture(scope="module")
def cluster(
    spark: SparkSession, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShardCluster]:
    """Three members that serve four shards of the flights example, each with a standby."""
    database = f"sqlite:///{tmp_path_factory.mktemp('states')}/{{shard}}.db"
    with ShardCluster(
        spark,
        functools.partial(FlightsApplication, database),
        members=3,
        root=f"/test/{uuid4().hex}",
        etcd=services.etcd,
        broker=services.broker_address,
        lease_ttl_seconds=LEASE_SECONDS,
    ) as running:
        make_flight_journals(services.broker_address, JOURNALS)
        running.apply(shard_specs("counts", JOURNALS))
        running.wait_for_primary(SHARDS)
        yield running


def _wait_for_members(
    cluster: ShardCluster, count: int, *, none_of: Collection[MemberId] = ()
) -> tuple[MemberInfo, ...]:
    def are_there() -> tuple[MemberInfo, ...]:
        members = cluster.members()
        counting = [member for member in members if member.member_id not in none_of]
        assert len(members) == len(counting) >= count, (members, cluster.last_failure())
        return members

    return eventually_sync(are_there)


def test_shard_cluster_members_are_processes_of_executors(cluster: ShardCluster) -> None:
    """Each task is a member in a process of its own below an executor, and every shard has a primary among them."""
    members = _wait_for_members(cluster, 3)

    processes = [process_listening_at(member.endpoint) for member in members]
    primaries = cluster.wait_for_primary(SHARDS)

    # Not 0 to 2: members whose jobs were cancelled come back under new numbers.
    assert len({member.partition for member in members}) == 3, cluster.last_failure()
    assert len({process.pid for process in processes}) == 3
    assert all(executor_of(process).is_running() for process in processes)
    assert set(primaries.values()) <= {member.member_id for member in members}


def test_shard_cluster_worker_killed_in_mid_run_counts_each_flight_once(
    spark: SparkSession, cluster: ShardCluster
) -> None:
    """SIGKILL of a primary's process between two publications: its next attempt revokes its lease, so its shards are
    PRIMARY elsewhere long before the lease's 60 seconds, and every flight and alert is counted exactly once.
    """
    publish_round(spark, cluster, journals=JOURNALS, number=0)
    primaries = cluster.wait_for_primary(SHARDS)
    victim = next(one for one in cluster.members() if one.member_id in primaries.values())
    lost = [shard for shard, member in primaries.items() if member == victim.member_id]

    killed = time.monotonic()
    process_listening_at(victim.endpoint).kill()
    cluster.wait_for_primary(lost, not_on={victim.member_id})
    failover_seconds = time.monotonic() - killed
    publish_round(spark, cluster, journals=JOURNALS, number=1)
    alerts = wait_for_rounds(cluster, shards=SHARDS, rounds=2)
    _wait_for_members(cluster, 3)

    [successor] = [one for one in cluster.members() if one.partition == victim.partition]
    assert successor.attempt == victim.attempt + 1
    assert alerts == 2 * FLIGHTS_A_ROUND // LATE_EVERY
    assert failover_seconds < LEASE_LEFT_SECONDS


def test_shard_cluster_executor_killed_members_come_back_elsewhere(cluster: ShardCluster) -> None:
    """SIGKILL of an executor's JVM takes its members along: they notice, and Spark starts them again."""
    processes = {
        member.member_id: process_listening_at(member.endpoint)
        for member in _wait_for_members(cluster, 3)
    }
    victim = executor_of(next(iter(processes.values())))
    dying = {
        member_id: process
        for member_id, process in processes.items()
        if executor_of(process) == victim
    }

    victim.kill()
    cluster.wait_for_primary(SHARDS, not_on=dying.keys())
    _wait_for_members(cluster, 3, none_of=dying.keys())

    _, alive = psutil.wait_procs(dying.values(), timeout=20)
    assert not alive, "the Python workers of a dead executor must not go on"
    assert not dying.keys() & {member.member_id for member in cluster.members()}


def test_shard_cluster_failed_member_comes_back_and_the_driver_is_told_why(
    services: Services, cluster: ShardCluster
) -> None:
    """Somebody removes a member's key: it stops at once, Spark restarts it, and the driver can say what happened."""
    victim = _wait_for_members(cluster, 3)[1]

    _delete_key(services, Keys(cluster.root).member(victim.member_id))

    next_life = (victim.partition, victim.attempt + 1)
    eventually_sync(
        lambda: next_life in {(one.partition, one.attempt) for one in cluster.members()},
        timeout_seconds=60,
    )
    assert "MemberKeyLostError" in cluster.last_failure()


def test_shard_cluster_second_one_at_the_same_root_is_refused(
    spark: SparkSession, cluster: ShardCluster
) -> None:
    """Members of one application and one root would take each other for dead predecessors."""
    _wait_for_members(cluster, 3)
    second = ShardCluster(
        spark,
        "broadsheet.examples.flights.app:create",
        members=1,
        root=cluster.root,
        etcd=cluster.services.etcd,
        broker=cluster.services.broker_address,
    )

    with pytest.raises(ClusterStartError, match=r"3 members of this Spark application are at"):
        second.start()

    assert len(cluster.members()) == 3


def test_shard_cluster_stop_leaves_no_key(spark: SparkSession, services: Services) -> None:
    """Members spread over the executors, so that losing one is not losing all. After a cooperative stop every task has
    returned, and no member, assignment or key of the cluster is left in etcd.
    """
    root = f"/test/{uuid4().hex}"
    cluster = ShardCluster(
        spark,
        "broadsheet.examples.flights.app:create",
        members=2,
        root=root,
        etcd=services.etcd,
        broker=services.broker_address,
        lease_ttl_seconds=LEASE_SECONDS,
    )
    eventually_sync(lambda: _executors_of_a_job(spark) == 2)
    cluster.start()
    executors = {executor_of(process_listening_at(one.endpoint)).pid for one in cluster.members()}

    stopped = time.monotonic()
    cluster.stop()

    assert len(executors) == 2
    assert time.monotonic() - stopped < LEASE_LEFT_SECONDS
    assert _keys_at(services, root) == []
    cluster.stop()


def _executors_of_a_job(spark: SparkSession) -> int:
    """How many executors take tasks now: one that was killed before takes a while to be there again."""
    tasks = spark.sparkContext.parallelize(range(8), 8)
    # Each executor has one Python daemon, which forks a process for each task.
    return len(set(tasks.map(lambda _: os.getppid()).collect()))


def test_shard_cluster_settings_reach_the_shards_on_executors(
    spark: SparkSession, services: Services
) -> None:
    """What the driver says of failures holds where the shards are: a store without a place is given up at once."""
    nowhere = functools.partial(FlightsApplication, "sqlite:////no/such/directory/{shard}.db")
    with ShardCluster(
        spark,
        nowhere,
        members=1,
        root=f"/test/{uuid4().hex}",
        etcd=services.etcd,
        broker=services.broker_address,
        watch_peers=False,
        shards=ShardConfig(attempts_max=1, quarantine_seconds=0),
    ) as cluster:
        journal = f"settings/{uuid4().hex}"
        make_journals(services.broker_address, [journal])
        cluster.apply(shard_specs("settings", [journal]))

        def is_quarantined() -> bool:
            (listed,) = cluster.client.list().shards
            said = [error for status in listed.status for error in status.errors]
            assert "attempt 1 failed (application); QUARANTINED; not retried" in "; ".join(said), (
                said
            )
            return True

        eventually_sync(is_quarantined, timeout_seconds=90)


def test_shard_cluster_application_fails_error_says_why(
    spark: SparkSession, services: Services
) -> None:
    """Spark retries a failing member for ever, on machines the user does not look at: the driver must say why, soon."""
    cluster = ShardCluster(
        spark,
        "broadsheet.examples.flights.app:no_such_factory",
        members=1,
        root=f"/test/{uuid4().hex}",
        etcd=services.etcd,
        broker=services.broker_address,
    )

    with pytest.raises(ExecutorUnfitError, match=r"ApplicationLoadError: .*no attribute 'no_such_"):
        cluster.start()


def test_shard_cluster_unfit_session_is_refused_at_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark's default of four failures the cluster would end within days; it must not even start."""
    conf = spark.sparkContext.getConf().set("spark.task.maxFailures", "4")
    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: conf)

    with pytest.raises(SparkConfError, match=r"spark\.task\.maxFailures is 4"):
        ShardCluster(spark, "broadsheet.examples.flights.app:create", members=1, root="/test/conf")


def _delete_key(services: Services, key: bytes) -> None:
    import asyncio

    from broadsheet.allocator.etcd.client import EtcdClient

    async def delete() -> None:
        async with EtcdClient(services.etcd) as etcd:
            await etcd.delete(key)

    asyncio.run(delete())


def _keys_at(services: Services, root: str) -> list[bytes]:
    import asyncio

    from broadsheet.allocator.etcd.client import EtcdClient
    from broadsheet.allocator.ops import prefix_range_end

    async def read() -> list[bytes]:
        async with EtcdClient(services.etcd) as etcd:
            found = await etcd.get_range(root.encode(), prefix_range_end(root.encode()))
            return [kv.key for kv in found.kvs]

    return asyncio.run(read())


def _small_cluster(spark: SparkSession, services: Services, directory: Path) -> ShardCluster:
    database = f"sqlite:///{directory}/{{shard}}.db"
    return ShardCluster(
        spark,
        functools.partial(FlightsApplication, database),
        members=1,
        root=f"/test/{uuid4().hex}",
        etcd=services.etcd,
        broker=services.broker_address,
        lease_ttl_seconds=LEASE_SECONDS,
    )


def test_shard_cluster_stopped_without_etcd_gives_its_slots_back(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    """Each step of the end is tried: without etcd no member gets an order, and Spark must end the tasks instead."""
    with EmbeddedEtcdProcess(tmp_path / "etcd", listen="tcp") as etcd:
        own = replace(services, etcd=EtcdConfig(endpoints=(etcd.endpoint,)))
        cluster = _small_cluster(spark, own, tmp_path)
        cluster.start()
        tracker = spark.sparkContext.statusTracker()
        active = set(tracker.getActiveJobsIds())
        etcd.kill()

        with pytest.raises(EtcdUnavailableError):
            cluster.stop()

        assert len(active - set(tracker.getActiveJobsIds())) == 1
        cluster.stop()  # all that could be done is done


def test_shard_cluster_all_jobs_cancelled_members_come_back_at_once(
    spark: SparkSession, cluster: ShardCluster
) -> None:
    """`cancelAllJobs`, a notebook's button, spares no job: the members' are submitted again, and no lease runs out."""
    before = {each.member_id for each in _wait_for_members(cluster, 3)}

    spark.sparkContext.cancelAllJobs()

    began = time.monotonic()
    after = _wait_for_members(cluster, 3, none_of=before)
    cluster.wait_for_primary(SHARDS, not_on=before)
    assert time.monotonic() - began < LEASE_LEFT_SECONDS
    assert len({each.partition for each in after}) == 3


def test_job_beside_members_fails_as_soon_as_it_would_without_them(
    spark: SparkSession, cluster: ShardCluster
) -> None:
    """A session with members repeats a task 100,000 times: a job that no attempt can bring further ends after four,
    with the executor's error; of one that may succeed, the driver is at least told why it does not.
    """
    _wait_for_members(cluster, 1)
    rows = spark.sparkContext.parallelize([0], 1)
    ended: list[str] = []

    def run() -> None:
        with pytest.raises(Py4JError) as raised:
            rows.map(lambda _: os.environ["NO_SUCH_NAME"]).count()
        ended.append(str(raised.value))

    with capture_logs() as logs:
        with pytest.raises(Py4JError, match=r"No module named 'no_such_module'.* --py-files"):
            rows.map(lambda _: importlib.import_module("no_such_module").__name__).count()
        job = InheritableThread(target=run, session=spark)
        job.start()

        def told() -> bool:
            causes = {each["event"]: each.get("cause") for each in logs}
            return causes.get("cluster.task_fails_again") == "KeyError: 'NO_SUCH_NAME'"

        eventually_sync(told)
        assert not ended
        tracker = spark.sparkContext.statusTracker()
        members = spared_jobs(spark.sparkContext)
        for number in set(tracker.getActiveJobsIds()) - members:
            jvm_context_of(spark.sparkContext).cancelJob(number)
        job.join(LEASE_SECONDS)

    assert len(ended) == 1


def test_shard_cluster_interrupted_program_keeps_its_members(
    spark: SparkSession, cluster: ShardCluster
) -> None:
    """Ctrl-C cancels the jobs of the cell that it interrupts; PySpark's handler would cancel the members, too."""
    before = _wait_for_members(cluster, 3)
    tracker = spark.sparkContext.statusTracker()
    jobs = len(tracker.getActiveJobsIds())
    rows = spark.sparkContext.parallelize([0], 1)
    cancelled = threading.Event()

    def run() -> None:
        # Not by name, because executors do not import tests.
        with pytest.raises(Py4JError, match="cancelled"):
            rows.foreach(lambda _: time.sleep(LEASE_SECONDS))
        cancelled.set()

    InheritableThread(target=run, session=spark).start()
    eventually_sync(lambda: len(tracker.getActiveJobsIds()) > jobs)

    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(LEASE_SECONDS)

    assert cancelled.wait(LEASE_SECONDS)
    assert cluster.members() == before
