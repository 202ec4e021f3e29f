"""A random processor on a real Spark and on a shard emits the same rows; `make nightly-keyed` has many of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.random_queries import script_of

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
