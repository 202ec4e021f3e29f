"""Tasks of a real Spark ask live shards: in each of the four ways, through a kill, and leave nothing behind."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import pytest

from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.partitioning import fnv1a_32
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.task_resolver import (
    TaskResolver,
    close_connections,
    token_accumulator,
    token_of_heads,
)
from broadsheet.wire.shard_pb2 import StatRequest, StatResponse
from tests.support.asked_tally import TOTAL, AskedTally, TallyStub
from tests.support.certificates import CertificateAuthority
from tests.support.eventually import eventually_sync
from tests.support.members import Producer
from tests.support.spark import make_journals, process_listening_at, shard_specs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

NAME = "asked-by-tasks"
"""The same in each process that imports this module: tasks do."""
JOURNALS = tuple(f"{NAME}/part-{index:03d}" for index in range(3))
SHARDS = tuple(f"{NAME}-{index:03d}" for index in range(3))
KEYS = tuple(f"key-{index}" for index in range(40))
SHORT_TASKS = 24
WATCH_SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def cluster(
    spark: SparkSession, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShardCluster]:
    """Two members that serve three shards of an application that can be asked, each with a standby.

    They speak TLS alone, and ask their clients for certificates, as the session's conf says.
    """
    application = functools.partial(AskedTally, tmp_path_factory.mktemp("states"), output="")
    with _tls_in_conf(spark, tmp_path_factory.mktemp("certificates")):
        described = ShardCluster(
            spark,
            application,
            members=2,
            root=f"/test/{uuid4().hex}",
            etcd=services.etcd,
            broker=services.broker_address,
        )
    with described as running:
        make_journals(services.broker_address, JOURNALS)
        running.apply(shard_specs(NAME, JOURNALS))
        running.wait_for_primary(SHARDS)
        yield running
    close_connections()


@contextmanager
def _tls_in_conf(spark: SparkSession, directory: Path) -> Iterator[None]:
    """Name the files for TLS in the conf, for clusters that are described within the block."""
    tls = CertificateAuthority(directory).tls("member", "127.0.0.1", mutual=True)
    named = {
        "caFile": tls.ca_file,
        "certFile": tls.cert_file,
        "keyFile": tls.key_file,
        "clientCaFile": tls.client_ca_file,
    }
    for name, path in named.items():
        spark.conf.set(f"spark.broadsheet.tls.{name}", str(path))
    try:
        yield
    finally:
        for name in named:
            spark.conf.unset(f"spark.broadsheet.tls.{name}")


@pytest.fixture
def resolver(cluster: ShardCluster) -> TaskResolver:
    """By key, as of all that is published."""
    token = token_of_heads(cluster.services.broker_address, JOURNALS)
    return TaskResolver(cluster, mapping="modulo", journals=JOURNALS, token=token)


def publish(broker_address: str, keys: Iterable[str]) -> dict[str, int]:
    """Publish a message a key, and return the token of them."""
    keys_by_journal: dict[str, list[str]] = {}
    for key in keys:
        journal = JOURNALS[fnv1a_32(key.encode()) % len(JOURNALS)]
        keys_by_journal.setdefault(journal, []).append(key)

    async def run() -> dict[str, int]:
        async with JournalClient(broker_address) as journals:
            producer = Producer(journals)
            return {
                journal: await producer.publish(journal, its_keys)
                for journal, its_keys in keys_by_journal.items()
            }

    return asyncio.run(run())


def total_beside(resolver: TaskResolver, key: str) -> int:
    """Return how many messages the shard of a key has counted."""
    answer: StatResponse = resolver.stub(key, TallyStub).Count(StatRequest())
    return answer.publish_at[TOTAL]


def test_what_tasks_wrote_the_next_job_reads(spark: SparkSession, cluster: ShardCluster) -> None:
    """foreachPartition: each task publishes and adds the offsets to an accumulator; the tasks of the next job take them
    along, and every count has all of it, at once.
    """
    broker = cluster.services.broker_address
    before = TaskResolver(cluster, token=token_of_heads(broker, JOURNALS))
    written = token_accumulator(spark)
    stub_of = before.stub

    def write(keys: Iterable[str]) -> None:
        written.add(publish(broker, keys))

    def total_of(shards: Iterable[str]) -> Iterator[tuple[str, int]]:
        for shard in shards:
            answer: StatResponse = after.stub(shard, TallyStub).Count(StatRequest())
            yield shard, answer.publish_at[TOTAL]

    counted = sum(
        stub_of(shard, TallyStub).Count(StatRequest()).publish_at[TOTAL] for shard in SHARDS
    )
    spark.sparkContext.parallelize(KEYS, 3).foreachPartition(write)
    assert written.value.keys() == set(JOURNALS)
    after = before.reading(written.value)
    totals = dict(spark.sparkContext.parallelize(SHARDS, 3).mapPartitions(total_of).collect())

    assert totals.keys() == set(SHARDS)
    assert sum(totals.values()) == counted + len(KEYS)


def test_each_way_to_run_python_asks_alike(spark: SparkSession, resolver: TaskResolver) -> None:
    """mapPartitions, mapInArrow, foreachPartition and a pandas UDF give the counts that the driver gets."""
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa
    from pyspark.sql.pandas.functions import pandas_udf
    from pyspark.sql.types import LongType

    expected = {key: total_beside(resolver, key) for key in KEYS}
    frame = spark.range(0, len(KEYS), 1, 2).selectExpr("concat('key-', id) AS key")
    summed = spark.sparkContext.accumulator(0)

    def in_rows(rows: Iterable[Any]) -> Iterator[tuple[str, int]]:
        return ((row.key, total_beside(resolver, row.key)) for row in rows)

    def in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            totals = [total_beside(resolver, key) for key in batch.column("key").to_pylist()]
            yield pa.RecordBatch.from_arrays([batch.column("key"), pa.array(totals)], ["key", "n"])

    def for_each(rows: Iterable[Any]) -> None:
        summed.add(sum(n for _, n in in_rows(rows)))

    def in_pandas(keys: pd.Series) -> pd.Series:
        return keys.map(lambda key: total_beside(resolver, key))

    in_pandas.__annotations__ = {"keys": pd.Series, "return": pd.Series}
    udf: Any = pandas_udf(in_pandas, LongType())  # type: ignore[call-overload]

    frame.foreachPartition(for_each)
    assert summed.value == sum(expected.values())
    assert dict(frame.rdd.mapPartitions(in_rows).collect()) == expected
    assert dict(_pairs(frame.mapInArrow(in_arrow, "key string, n long"))) == expected
    assert dict(_pairs(frame.select("key", udf("key").alias("n")))) == expected


def test_job_whose_tasks_find_no_member_ends_with_its_cause(
    spark: SparkSession, cluster: ShardCluster
) -> None:
    """The tasks know one member, which is gone, and no etcd: the driver gets the error, not the log alone.

    Why: a streaming query stood still for as long as nobody read the executors' logs.
    """
    plan = TaskResolver(cluster, deadline_seconds=0.5).plan
    gone = "https://127.0.0.1:1"
    stale = TaskResolver.from_plan(
        replace(plan, cluster="gone", seeds=(gone,), routes=(), directory=None)
    )

    def ask(shards: Iterable[str]) -> Iterator[int]:
        return (total_beside(stale, shard) for shard in shards)

    job = spark.sparkContext.parallelize(SHARDS[:1], 1).mapPartitions(ask)

    with pytest.raises(
        Exception, match=rf"MembersGoneError: .* shard {SHARDS[0]} was not answered"
    ):
        job.collect()


def test_member_killed_under_tasks_delays_them_only(
    spark: SparkSession, cluster: ShardCluster, resolver: TaskResolver
) -> None:
    """SIGKILL of a primary's process while tasks ask, one after the other: none fails, and each answer is right."""
    expected = {key: total_beside(resolver, key) for key in KEYS}
    primaries = cluster.wait_for_primary(SHARDS)
    victim = next(one for one in cluster.members() if one.member_id in primaries.values())
    process = process_listening_at(victim.endpoint)
    pid = process.pid

    def ask(partition: int, keys: Iterable[str]) -> Iterator[tuple[str, int]]:
        for index, key in enumerate(keys):
            if partition == 0 and index == 5 and psutil.pid_exists(pid):
                psutil.Process(pid).kill()
            yield key, total_beside(resolver, key)

    answers = spark.sparkContext.parallelize(KEYS, 2).mapPartitionsWithIndex(ask).collect()

    assert dict(answers) == expected
    assert not process.is_running()
    eventually_sync(lambda: len(cluster.members()) == 2)


def test_task_that_goes_on_watches_and_leaves_nothing(
    spark: SparkSession, cluster: ShardCluster, resolver: TaskResolver
) -> None:
    """Two tasks ask for as long as it takes until their workers watch: one thread each, whose call and connection do
    not outlive the work by much.
    """

    def ask(keys: Iterable[str]) -> Iterator[int]:
        mine = list(keys)
        deadline = time.monotonic() + WATCH_SECONDS_MAX
        watches = 0
        while not watches and time.monotonic() < deadline:
            for key in mine:
                total_beside(resolver, key)
            watches = sum(1 for one in threading.enumerate() if one.name == "route watch")
        yield watches

    watches = spark.sparkContext.parallelize(KEYS[:4], 2).mapPartitions(ask).collect()

    assert watches == [1, 1]
    _wait_for_nobody_connected(cluster)


def test_short_tasks_leave_no_connection(
    spark: SparkSession, cluster: ShardCluster, resolver: TaskResolver
) -> None:
    """Many tasks, each with a few calls to every member: afterwards nobody but the members themselves and this process
    is connected to them; and no task ever was to etcd.
    """
    etcd_ports = {
        int(one.rpartition(":")[2])
        for one in cluster.services.etcd.endpoints
        if one.rpartition(":")[2].isdigit()
    }

    def ask(keys: Iterable[str]) -> Iterator[tuple[int, int]]:
        answered = sum(1 for key in keys if total_beside(resolver, key) >= 0)
        mine = psutil.Process().net_connections("tcp")
        to_etcd = sum(1 for one in mine if _remote_port(one) in etcd_ports)
        yield answered, to_etcd

    keys = KEYS[:3] * SHORT_TASKS
    asked = spark.sparkContext.parallelize(keys, SHORT_TASKS).mapPartitions(ask).collect()

    assert sum(answered for answered, _ in asked) == len(keys)
    assert not any(to_etcd for _, to_etcd in asked)
    _wait_for_nobody_connected(cluster)


def _wait_for_nobody_connected(cluster: ShardCluster) -> None:
    """Wait until nobody but the members themselves and this process is connected to them."""
    ports = {int(one.endpoint.rpartition(":")[2]) for one in cluster.members()}
    allowed = {process_listening_at(one.endpoint).pid for one in cluster.members()}
    allowed.add(os.getpid())

    def none_left() -> bool:
        left = [
            one
            for one in psutil.net_connections("tcp")
            if _remote_port(one) in ports and one.pid not in allowed
        ]
        return not [one for one in left if one.status == psutil.CONN_ESTABLISHED]

    eventually_sync(none_left)


def _remote_port(connection: Any) -> int:
    port: int = getattr(connection.raddr, "port", 0)  # a listener has no other end
    return port


def _pairs(frame: Any) -> Iterator[tuple[str, int]]:
    return ((row.key, row.n) for row in frame.collect())
