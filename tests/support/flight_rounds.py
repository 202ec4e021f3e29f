"""Rounds of made-up flights for a cluster of `broadsheet.examples.flights`, and the proof that each was counted
once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from broadsheet.examples.flights.client import list_aircraft
from broadsheet.examples.flights.messages import ALERT_JOURNALS
from broadsheet.spark_bridge.publish import PublishTarget, publish_dataframe
from broadsheet.wire.errors import ApplyConflictError
from tests.support.spark import make_journals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from broadsheet.spark_bridge.cluster import ShardCluster

FLIGHTS_A_ROUND = 2_000
LATE_EVERY = 40
"""One flight in so many is late enough for an alert."""


def make_flight_journals(broker_address: str, journals: Sequence[str]) -> None:
    """Create journals for flights, and those for alerts, whose names the application has, unless they are there."""
    make_journals(broker_address, journals)
    with suppress(ApplyConflictError):
        make_journals(broker_address, ALERT_JOURNALS)


def publish_round(
    spark: SparkSession, cluster: ShardCluster, *, journals: Sequence[str], number: int
) -> None:
    """Publish round `number`, from 0: flights that depart after those of the rounds before."""
    first = number * FLIGHTS_A_ROUND
    flights: DataFrame = spark.range(first, first + FLIGHTS_A_ROUND).selectExpr(
        "concat('N', id % 97) AS aircraft",
        "'UA' AS carrier",
        "CAST(id AS INT) AS flight",
        "'EWR' AS origin",
        "'IAH' AS destination",
        "id AS scheduled_at",
        "id AS departs_at",
        "false AS cancelled",
        "CAST(1 AS INT) AS air_minutes",
        f"CAST(IF(id % {LATE_EVERY} = 0, 121, 0) AS INT) AS late_minutes",
    )
    target = PublishTarget(
        broker_address=cluster.services.broker_address,
        etcd_endpoints=cluster.services.etcd.endpoints,
        root=cluster.root,
        journals=tuple(journals),
    )
    publish_dataframe(
        flights, target, publication=f"round-{number}", key="aircraft", order_by=["departs_at"]
    )


def wait_for_rounds(cluster: ShardCluster, *, shards: Sequence[str], rounds: int) -> int:
    """Wait until the shards together have so many rounds, not a flight more, and return their alerts."""
    flights = rounds * FLIGHTS_A_ROUND
    deadline = time.monotonic() + 120
    while True:
        answers = [list_aircraft(cluster, shard) for shard in shards]
        total = sum(answer.flights for answer in answers)
        if total >= flights or time.monotonic() >= deadline:
            assert total == flights
            return sum(one.alerts for answer in answers for one in answer.aircraft)


class Rounds:
    """Publishes round after round, and knows how many there are."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: ShardCluster,
        *,
        journals: Sequence[str],
        shards: Sequence[str],
    ) -> None:
        """Bind it; nothing is published yet.

        Args:
            spark: Runs the DataFrame jobs.
            cluster: Counts the flights.
            journals: Of flights.
            shards: Their readers.
        """
        self._spark = spark
        self._cluster = cluster
        self._journals = journals
        self._shards = shards
        self._published = 0

    def publish(self, rounds: int = 1) -> None:
        """Publish so many rounds."""
        for _ in range(rounds):
            publish_round(
                self._spark, self._cluster, journals=self._journals, number=self._published
            )
            self._published += 1

    def check(self) -> None:
        """Wait until all that was published is counted; each flight and each alert once."""
        alerts = wait_for_rounds(self._cluster, shards=self._shards, rounds=self._published)
        assert alerts == self._published * FLIGHTS_A_ROUND // LATE_EVERY
