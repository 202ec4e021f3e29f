"""Members take what they are told to of Spark's slots, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.errors import ScaleTimeoutError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]


def test_member_resources_are_those_of_its_profile(spark: SparkSession, services: Services) -> None:
    """Two slots a member: four members fill eight slots, and a fifth waits without being given up. Asked to shrink, the
    cluster lets go of the one that never came.
    """
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(2)).build

    with ShardCluster(
        spark,
        "broadsheet.examples.flights.app:create",
        members=3,
        root=f"/test/{uuid4().hex}",
        etcd=services.etcd,
        broker=services.broker_address,
        resources=profile,
        pool="members",
    ) as wide:
        wide.scale(4)
        with pytest.raises(ScaleTimeoutError, match="4 of 5 members after 1 s: each needs a task"):
            wide.scale(5, timeout_seconds=1)
        wide.scale(4)

        assert [member.partition for member in wide.members()] == [0, 1, 2, 3]
