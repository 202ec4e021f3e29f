"""A driver with dynamic allocation and fair pools, in a process of its own: `python -m tests.support.elastic_session`.

Each step prints what it saw, a JSON object a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.executors import Executors
from broadsheet.spark_bridge.session import start_session
from broadsheet.spark_bridge.standalone import StandaloneCluster
from tests.support.eventually import eventually_sync
from tests.support.spark import executor_of, make_journals, process_listening_at, shard_specs

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "false",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.scheduler.mode": "FAIR",
}


def main(directory: Path) -> None:
    """Run every step."""
    with ExitStack() as stack:
        standalone = stack.enter_context(StandaloneCluster(workers=2, cores_per_worker=2))
        spark = start_session(standalone.master_url, app_name="elastic", conf=CONF)
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")
        cluster = stack.enter_context(
            ShardCluster(
                spark,
                "broadsheet.examples.flights.app:create",
                members=1,
                root="/test/elastic",
                data_dir=directory,
                lease_ttl_seconds=60.0,
                pool="members",
            )
        )
        make_journals(cluster.services.broker_address, ["elastic/000"])
        cluster.apply(shard_specs("elastic", ["elastic/000"]))
        _grow_and_shrink(spark, cluster)
        _have_executors_of_its_own(spark, cluster)
        _wait_for_one_executor(spark)
        _wait_for_one_executor_process(standalone)
        _announce_the_end_of_a_worker(standalone, cluster)


def _grow_and_shrink(spark: SparkSession, cluster: ShardCluster) -> None:
    executors = Executors(spark.sparkContext)
    first = executors.alive()
    cluster.scale(3)
    grown = executors.alive()
    cluster.scale(1)
    _wait_for_one_executor(spark)
    (member,) = cluster.members()
    _tell(
        step="size",
        executors=[len(first), len(grown), len(executors.alive())],
        stays=member.executor_id in executors.alive(),
        pools=sorted(_pools(spark)),
    )


def _wait_for_one_executor(spark: SparkSession) -> None:
    executors = Executors(spark.sparkContext)
    eventually_sync(
        lambda: len(executors.alive()) == 1,
        timeout_seconds=60,
        message="idle executors are still there",
    )


def _wait_for_one_executor_process(standalone: StandaloneCluster) -> None:
    """What an executor takes of its worker is free only when its process ends, and the driver forgets it before."""

    def one_is_left() -> bool:
        children = (psutil.Process(pid).children() for pid in standalone.worker_pids)
        return sum(map(_is_executor, chain.from_iterable(children))) == 1

    eventually_sync(one_is_left, timeout_seconds=60, message="executors' processes are still there")


def _is_executor(child: psutil.Process) -> bool:
    """Tell a worker's child from others, such as what is left of the script that started the worker."""
    try:
        return child.status() != psutil.STATUS_ZOMBIE and child.name() == "java"
    except psutil.NoSuchProcess:
        return False


def _announce_the_end_of_a_worker(standalone: StandaloneCluster, cluster: ShardCluster) -> None:
    cluster.scale(2)
    workers = {one.member_id: _worker_at(one.endpoint, standalone) for one in cluster.members()}
    assert len(set(workers.values())) == 2, f"both members are on one worker: {workers}"
    primary = cluster.wait_for_primary(["elastic-000"])["elastic-000"]

    os.kill(workers[primary], signal.SIGPWR)

    primaries = cluster.wait_for_primary(["elastic-000"], not_on={primary})
    # A standalone master starts no executor for one that its worker's end took; so the cluster makes do with one.
    cluster.scale(1)
    (left,) = cluster.members()
    _tell(
        step="worker",
        serves=primaries["elastic-000"] == left.member_id,
        moved=_worker_at(left.endpoint, standalone) != workers[primary],
    )


def _have_executors_of_its_own(spark: SparkSession, cluster: ShardCluster) -> None:
    with ShardCluster(
        spark,
        "broadsheet.examples.flights.app:create",
        members=1,
        root="/test/apart",
        etcd=cluster.services.etcd,
        broker=cluster.services.broker_address,
        resources=_own_executors(),
    ) as apart:
        (member,) = apart.members()
        rows = spark.sparkContext.parallelize(range(4), 4).map(lambda _: _executor_here()).collect()
        _tell(
            step="apart",
            shared=member.executor_id in rows,
            dataframe_tasks=len(rows),
        )


def _own_executors() -> ResourceProfile:
    from pyspark.resource import (
        ExecutorResourceRequests,
        ResourceProfileBuilder,
        TaskResourceRequests,
    )

    executor = ExecutorResourceRequests().cores(1).memory("480m")
    return ResourceProfileBuilder().require(executor).require(TaskResourceRequests().cpus(1)).build


def _executor_here() -> str:
    from broadsheet.spark_bridge.member.executor import executor_command
    from broadsheet.spark_bridge.member.identity import executor_id_of

    return executor_id_of(executor_command())


def _pools(spark: SparkSession) -> set[str]:
    from broadsheet.spark_bridge.jvm import jvm_context_of

    pools = jvm_context_of(spark.sparkContext).getAllPools()
    return {pools.apply(index).name() for index in range(pools.size())}


def _worker_at(endpoint: str, standalone: StandaloneCluster) -> int:
    executor = executor_of(process_listening_at(endpoint))
    return next(one.pid for one in executor.parents() if one.pid in standalone.worker_pids)


def _tell(**seen: object) -> None:
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
