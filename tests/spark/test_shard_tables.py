"""Shards as DataFrames on a real standalone Spark: members as processes, etcd and broker as servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from spark_bridge.formats import register_formats
from spark_bridge.services import Services
from tests.support.eventually import eventually_sync
from tests.support.table_shards import TableCluster, running_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TableCluster]:
    """Two members and three shards, each with a standby; the last one's application fails."""
    register_formats(spark)
    directory = tmp_path_factory.mktemp("tables")
    with running_tables(
        services.etcd, services.broker_address, directory, letters="abc"
    ) as running:
        yield running


def _shards(spark: SparkSession, tables: TableCluster, **options: str) -> DataFrame:
    reader = spark.read.format("shards").option("address", ",".join(tables.addresses))
    return reader.options(**options).load()


def test_shards_one_row_a_replica_with_its_place_and_its_lag(
    spark: SparkSession, tables: TableCluster
) -> None:
    """Three shards with a standby each are six rows, in two zones; a primary that has read all is 0 bytes behind."""
    end = tables.publish("a", ["x", "y", "x"])

    rows = _shards(spark, tables).orderBy("shard_id", "slot").collect()

    assert [(row.shard_id, row.slot, row.status) for row in rows] == [
        (tables.shard_id(letter), slot, status)
        for letter in "abc"
        for slot, status in ((0, "PRIMARY"), (1, "STANDBY"))
    ]
    primary, standby = rows[0], rows[1]
    assert {primary.zone, standby.zone} == {"zone-a", "zone-b"}
    assert primary.member == f"{primary.zone}#member"
    assert primary.endpoint in tables.addresses
    assert (primary.bytes_behind, primary.lag_seconds) == (0, 0.0)
    assert primary.read_through == {tables.source("a"): end}
    assert primary.labels == {"letter": ["a"]}
    assert [source.journal for source in primary.sources] == [tables.source("a")]
    assert standby.bytes_behind is not None


def test_shards_failed_replica_shows_its_last_error(
    spark: SparkSession, tables: TableCluster
) -> None:
    """What an operator wants first: which replicas fail, and why; chosen by label, through the second address."""
    tables.publish("c", ["0"], wait=False)

    def is_failed() -> bool:
        rows = _shards(
            spark, tables, selector="letter=c", address=f"http://127.0.0.1:1,{tables.addresses[1]}"
        )
        found = rows.where("status = 'FAILED'").select("slot", "last_error").collect()
        assert len(found) == 1, found
        return found[0].slot == 0 and "cannot count 0" in found[0].last_error

    eventually_sync(is_failed, timeout_seconds=30.0)


def test_shards_narrow_schema_and_mistakes(spark: SparkSession, tables: TableCluster) -> None:
    """A caller may want few columns; a wrong option or an absent member is told in words."""
    address = tables.addresses[0]
    reader = spark.read.format("shards").schema("status STRING, shard_id STRING")
    few = reader.option("address", address).option("progress", "false").load()
    assert few.columns == ["status", "shard_id"]
    assert few.count() == 6

    with pytest.raises(PySparkException, match="option selektor: expected one of address"):
        _shards(spark, tables, selektor="a=b").count()
    with pytest.raises(PySparkException, match="no member answers"):
        _shards(spark, tables, address="http://127.0.0.1:1").count()
