"""Queries of a real Spark whose state shards take over. Too slow for CI: `make nightly-import`.

IMPORT_SEEDS=first:end   the cases, one query each; a query has 200 keys, each of which is a trace of its own
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
FIRST = 3
ROWS = 600
_FIRST, _, _END = os.environ.get("IMPORT_SEEDS", "0:12").partition(":")
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def local_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with one worker process, which is kept."""
    from broadsheet.spark_bridge.session import start_session

    conf = {
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.python.worker.reuse": "true",
        "spark.ui.enabled": "false",
    }
    session = start_session("local[1]", app_name="taken-over-queries", conf=conf)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.mark.parametrize("seed", range(int(_FIRST), int(_END)))
def test_a_random_query_goes_on_on_a_shard_as_it_does_on_spark(
    local_spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Values, lists, maps, timers and both watermarks are taken over: every later batch emits the same rows."""
    from tests.support.spark_queries import query_conf
    from tests.support.taken_over import both_continued

    script = script_of(
        seed,
        mode=MODES[seed % len(MODES)],
        in_pandas=bool(seed // len(MODES) % 2),
        keys=KEYS,
        batches=BATCHES,
        rows=ROWS,
    )
    with query_conf(local_spark):
        expected, found, report = both_continued(local_spark, tmp_path, script, first=FIRST)
    assert report.rows["v"] > 0
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        only = sorted(set(ours) ^ set(theirs))
        assert not only, f"batch {number} behind the take-over: {only[:10]}"
    assert found == expected
