"""Shards as DataFrames on a real standalone Spark: members as processes, etcd and broker as servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from broadsheet.spark_bridge.cluster.shard_cluster import Services
from tests.support.eventually import eventually_sync
from tests.support.table_shards import TableCluster, running_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TableCluster]:
    """Two members and three shards, each with a standby; the last one's application fails."""
    # Its formats are not registered: Spark finds them.
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
    """Two shards with a standby each are four rows, in two zones; a primary that has read all is 0 bytes behind."""
    end = tables.publish("a", ["x", "y", "x"])

    rows = _shards(spark, tables, selector="letter in (a,b)").orderBy("shard_id", "slot").collect()

    assert [(row.shard_id, row.slot, row.status) for row in rows] == [
        (tables.shard_id(letter), slot, status)
        for letter in "ab"
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

    eventually_sync(is_failed, timeout_seconds=90)


def test_shards_narrow_schema_and_mistakes(spark: SparkSession, tables: TableCluster) -> None:
    """A caller may want few columns; an absent member is told in words, once and not by each attempt of a task."""
    address = tables.addresses[0]
    reader = spark.read.format("shards").schema("status STRING, shard_id STRING")
    few = reader.option("address", address).option("progress", "false").load()
    assert few.columns == ["status", "shard_id"]
    assert few.count() == 6

    with pytest.raises(PySparkException, match="no member answers"):
        _shards(spark, tables, address="http://127.0.0.1:1").count()


def _state(spark: SparkSession, tables: TableCluster, **options: str) -> DataFrame:
    reader = spark.read.format("shard_state").option("address", ",".join(tables.addresses))
    return reader.options(selector="letter in (a,b)", **options).load()


def test_shard_state_has_the_rows_of_each_shard_as_of_its_last_commit(
    spark: SparkSession, tables: TableCluster
) -> None:
    """A partition a shard, in the store's types, with the offsets that the rows reflect; of the primary."""
    tables.publish("a", ["s", "t", "s"])
    end = tables.publish("b", ["s", "s"])

    state = _state(spark, tables, includeMetadata="true")

    assert state.dtypes[:4] == [
        ("key", "string"),
        ("count", "bigint"),
        ("share", "double"),
        ("raw", "binary"),
    ]
    assert state.rdd.getNumPartitions() == 2
    rows = {(row["_shard_id"], row.key): row for row in state.where("key in ('s', 't')").collect()}
    counts = {key: row["count"] for key, row in rows.items()}
    assert counts == {("table-a", "s"): 2, ("table-a", "t"): 1, ("table-b", "s"): 2}
    row = rows["table-b", "s"]
    assert (row.share, bytes(row.raw), row["_slot"]) == (0.5, b"\x00\xff", 0)
    assert row["_read_through"] == {tables.source("b"): end}
    assert row["_member"].endswith("#member")


def test_shard_state_of_standbys_has_what_was_committed_when_they_were_asked(
    spark: SparkSession, tables: TableCluster
) -> None:
    """With a staleness allowed the standby answers, and nothing is missing that had been committed before."""
    tables.publish("a", ["u"])
    tables.publish("b", ["u", "u"])

    state = _state(spark, tables, includeMetadata="true", maxStalenessSeconds="20")

    rows = state.where("key = 'u'").collect()
    assert {row["_shard_id"]: row["count"] for row in rows} == {"table-a": 1, "table-b": 2}
    assert {row["_slot"] for row in rows} == {1}
    assert all(0 < row["_staleness_seconds"] < 20 for row in rows)


def test_shard_state_narrow_schema_and_mistakes(spark: SparkSession, tables: TableCluster) -> None:
    """Columns can be chosen, and cast; a wrong table is told on the driver, before a task starts."""
    tables.publish("a", ["v"])
    reader = spark.read.format("shard_state").schema("count INT, key STRING")
    few = reader.option("address", tables.addresses[1]).option("selector", "letter=a").load()
    assert [(row["count"], row.key) for row in few.where("key = 'v'").collect()] == [(1, "v")]

    with pytest.raises(PySparkException, match="option table: expected one of counts"):
        _state(spark, tables, table="count")


def _move_log(spark: SparkSession, tables: TableCluster, **options: str) -> DataFrame:
    reader = spark.read.format("shard_moves").option("address", tables.addresses[0])
    return reader.options(**options).load()


def test_shard_moves_has_every_assignment_and_an_operators_restart(
    spark: SparkSession, tables: TableCluster
) -> None:
    """What the leader did by itself and what somebody asked for, in columns that SQL can count."""
    rows = (
        _move_log(spark, tables)
        .where("move = 'assign'")
        .orderBy("shard_id", "time", "slot")
        .collect()
    )

    assert {row.shard_id for row in rows} == {tables.shard_id(letter) for letter in "abc"}
    first = rows[0]
    assert (first.slot, first.from_slot, first.reason) == (0, None, "uncovered")
    assert (first.zone, first.plan_id, first.actor) == (first.member.split("#")[0], None, None)
    assert first.revision > 0
    assert first.epoch > 0

    tables.client.unassign([tables.shard_id("b")])
    tables.wait_until_standing("b")
    removed = _move_log(spark, tables, shard=tables.shard_id("b")).where("move = 'remove'")
    (row,) = removed.select("reason", "actor", "slot").collect()
    assert (row.reason, row.slot) == ("unassigned", 0)
    assert "@" in row.actor
