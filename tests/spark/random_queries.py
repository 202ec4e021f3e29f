"""Random processors on a real Spark and on a shard emit the same rows. Too slow for CI: `make nightly-keyed`.

KEYED_SEEDS=first:end   the cases, one query each; a query has 200 keys, each of which is a trace of its own
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.random_queries import MODES, script_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = 200
BATCHES = 6
ROWS = 600
_FIRST, _, _END = os.environ.get("KEYED_SEEDS", "0:60").partition(":")


@pytest.fixture(scope="module")
def local_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with one worker process, which is kept."""
    from broadsheet.spark_bridge.session import start_session

    conf = {
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.python.worker.reuse": "true",
        "spark.ui.enabled": "false",
    }
    session = start_session("local[1]", app_name="random-queries", conf=conf)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.mark.spark
@pytest.mark.parametrize("seed", range(int(_FIRST), int(_END)))
def test_a_random_processor_emits_what_it_emits_on_spark(
    local_spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """State, timers, watermark and late rows, in each time mode, by rows and by frames: batch by batch the same."""
    from tests.support.spark_queries import on_a_shard, on_spark, query_conf

    script = script_of(
        seed,
        mode=MODES[seed % len(MODES)],
        in_pandas=bool(seed // len(MODES) % 2),
        keys=KEYS,
        batches=BATCHES,
        rows=ROWS,
    )
    with query_conf(local_spark):
        expected = on_spark(local_spark, tmp_path / "spark", script)
    assert on_a_shard(tmp_path / "shard", script) == expected
