"""The machine of every part: one Spark with two cores, one etcd, one broker, for the whole process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broadsheet.spark_bridge.cluster.shard_cluster import Services, find_or_start
from broadsheet.spark_bridge.formats import register_formats
from broadsheet.spark_bridge.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES = 2
_CONF = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(CORES),
    # Spark's default, which suits DataFrames: tasks share Python processes. Members need the contrary.
    "spark.python.worker.reuse": "true",
}


class Machine(NamedTuple):
    """The running servers."""

    spark: SparkSession
    services: Services
    directory: Path
    """Empty at first, and gone afterwards."""


@contextmanager
def running() -> Iterator[Machine]:
    """Start everything; the session is the process's one, so that parts that follow find it warm."""
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
        directory = Path(name)
        # The JVM comes first: launching it forks, which gRPC does not bear.
        spark = start_session(f"local[{CORES},4]", app_name="bench", conf=_CONF)
        spark.sparkContext.setLogLevel("ERROR")
        register_formats(spark)
        with find_or_start(None, None, data_dir=directory / "services") as services:
            yield Machine(spark, services, directory)


def rows_of(spark: SparkSession, count: int) -> DataFrame:
    """Return this many rows of a whole number, a key, a double and a text."""
    return spark.range(count, numPartitions=CORES).selectExpr(
        "id", "concat('key-', id % 1000) AS k", "id + 0.5D AS v", "'some text of sixteen' AS s"
    )
