"""Streams through every fault that members on Spark executors can suffer: `make chaos`, shortened."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.cluster_plan import ClusterPlan
from tests.chaos.report import OFTEN_MADE, ChaosReport
from tests.chaos.run import ChaosRun
from tests.chaos.services import ChaosServices
from tests.chaos.spark_hosts import SparkHosts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broadsheet.spark_bridge.standalone import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

SECONDS = 24.0
PAUSE_SECONDS = 2.5
"""So that most kinds of fault strike once."""


def test_every_stream_is_summed_once_whatever_befalls_executors(
    spark: SparkSession, standalone: StandaloneCluster, tmp_path: Path
) -> None:
    """Two executors host two members of four shards, with recovery logs and standbys. Python workers are killed, frozen
    and drained, executors killed, etcd and the broker killed and restarted. Every sum is right, and there once.
    A failure tells the seed and the schedule, and shows the executors' logs.
    """
    with ChaosServices(tmp_path) as services:
        plan = services.plan(
            tmp_path,
        )
        hosts = SparkHosts(plan, spark=spark, standalone=standalone)
        report = asyncio.run(_run(plan, services, hosts))

    assert report.streams > 0
    assert all(report.counts[kind] for kind in OFTEN_MADE), report


async def _run(plan: ClusterPlan, services: ChaosServices, hosts: SparkHosts) -> ChaosReport:
    async with hosts:
        run = ChaosRun.planned(
            secrets.randbelow(1 << 31),
            seconds=SECONDS,
            plan=plan,
            services=services,
            hosts=hosts,
            tell=print,
            pause_seconds=PAUSE_SECONDS,
        )
        return await run.run()
