"""A `StatefulProcessor` on the executors of a real Spark, run and read by a driver's one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge import token_of_heads
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.errors import ClusterStartError, ClusterStoppedError
from tests.support.executor_processors import Totals
from tests.support.spark import make_journals, process_listening_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broadsheet.spark_bridge.cluster.keyed_query import KeyedQuery

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]


@pytest.fixture
def root() -> str:
    """Of a cluster of the test's own."""
    return f"/test/{uuid4().hex}"


@pytest.fixture
def cluster(spark: SparkSession, services: Services, root: str) -> Iterator[ShardCluster]:
    """A cluster without an application, and two journals of orders."""
    make_journals(services.broker_address, [f"{root[1:]}/orders/part-{each}" for each in (0, 1)])
    with ShardCluster(
        spark, members=2, root=root, etcd=services.etcd, broker=services.broker_address
    ) as running:
        yield running


def _started(cluster: ShardCluster, **changes: Any) -> KeyedQuery:
    given: dict[str, Any] = {
        "sources": f"{cluster.root[1:]}/orders/",
        "output": f"{cluster.root[1:]}/totals",
        "key": "user",
        "inputSchema": "user string, cents long",
        "outputStructType": "user string, total long",
    }
    return cluster.transform_with_state(Totals(), **{**given, **changes})


def _publish(spark: SparkSession, cluster: ShardCluster, *orders: tuple[str, int]) -> None:
    writer = spark.createDataFrame(list(orders), "user string, cents long").write.format("journal")
    writer = writer.option("address", cluster.services.broker_address)
    writer = writer.option("selector", f"name:prefix={cluster.root[1:]}/orders/")
    writer = writer.option("key", "user").option("root", cluster.root)
    writer.option("etcd", ",".join(cluster.services.etcd.endpoints)).mode("append").save()


def test_keyed_query_goes_on_over_a_kill_and_a_stop(
    spark: SparkSession, cluster: ShardCluster
) -> None:
    """One call makes shards, logs and output; its answers are committed rows and state, whatever is killed; a second
    call at the root goes on from there.
    """
    with pytest.raises(ValidationError, match="sources: expected journals below no/such/"):
        _started(cluster, sources="no/such/")
    query = _started(cluster)
    _publish(spark, cluster, ("ann", 1), ("bob", 2), ("cyd", 3))
    query.wait()
    primaries = cluster.wait_for_primary(query.shard_ids)
    victim = next(one for one in cluster.members() if one.member_id in primaries.values())
    process_listening_at(victim.endpoint).kill()
    _publish(spark, cluster, ("ann", 10), ("bob", 20))
    query.wait()
    last = {row.user: row.total for row in query.output().orderBy("total").collect()}

    with pytest.raises(ClusterStartError, match="runs a processor already"):
        _started(cluster)
    query.stop()
    with pytest.raises(ClusterStoppedError, match="transform_with_state starts them"):
        cluster.members()
    again = _started(cluster)

    assert again.shard_ids == query.shard_ids
    state = {row.user: row.total.total for row in again.state().collect()}
    assert last == state == {"ann": 11, "bob": 22, "cyd": 3}
    found = again.get("ann")
    assert found is not None
    assert found["total"] == {"total": 11}
    assert again.get("dan") is None
    reader = again.reader(columns=("user", "total"))
    assert reader.get("bob") == {"user": "bob", "total": {"total": 22}}


def test_a_look_up_has_what_its_token_names(spark: SparkSession, cluster: ShardCluster) -> None:
    """Read-your-writes: with the offsets of a publication, an answer waits until its shard has read it."""
    query = _started(cluster)
    sources = [f"{cluster.root[1:]}/orders/part-{each}" for each in (0, 1)]
    for count in (1, 2, 3):
        _publish(spark, cluster, ("ann", 1))
        token = token_of_heads(cluster.services.broker_address, sources)
        found = query.get("ann", token=token)
        assert found is not None
        assert found["total"] == {"total": count}
