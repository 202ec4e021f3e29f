"""A random processor on a real Spark and on a shard emits the same rows; `make nightly-keyed` has many of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.random_queries import Script, script_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_random_processor_of_200_keys_emits_what_it_emits_on_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """State, timers, watermark and late rows of 200 keys, each a trace of its own: batch by batch the same rows."""
    from tests.support.spark_queries import on_a_shard, on_spark, query_conf

    script = script_of(6, mode="EventTime", in_pandas=False, keys=200, batches=3, rows=600)
    with query_conf(spark):
        expected = on_spark(spark, tmp_path / "spark", script)

    assert len({name for batch in script.batches for name, _, _ in batch}) == 200
    assert on_a_shard(tmp_path / "shard", script) == expected


def test_timer_registered_in_the_past_while_timers_fire_waits_for_rows_on_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Batch 1 does not move the watermark, and its timer registers one in the past: Spark ends there, with the timer in
    its state, and fires it with the next rows, of whichever key. A shard fires it at once, in a transaction that Spark
    has not, so a comparison ends where Spark does.
    """
    from tests.support.spark_queries import on_a_shard, on_spark, query_conf

    at = 100_000
    # The handler of the timer at 75 s registers 85 s; the watermark is 90 s.
    steps = [("a", ["nothing"]), ("a", ["register", -15_000]), ("b", ["nothing"])]
    batches = [[(name, at, json.dumps(operation))] for name, operation in steps]
    whole = Script("EventTime", in_pandas=False, batches=batches)
    with query_conf(spark):
        ended = on_spark(spark, tmp_path / "ended", replace(whole, batches=batches[:2]))
        expected = on_spark(spark, tmp_path / "whole", whole)

    fired = [[text.split("'")[1] for _, text in batch] for batch in expected]
    assert fired == [["rows"], ["rows", "timer 75000"], ["rows", "timer 85000"]]
    assert ended == expected[:2]
    assert on_a_shard(tmp_path / "shard-ended", replace(whole, batches=batches[:2])) == ended
    assert on_a_shard(tmp_path / "shard", whole) == expected
