"""A driver of Spark's own with one streaming query, as a process of its own: `python -m …spark_query '{…}'`.

It counts and sums `v` by `k`, and writes to its standard output a line of JSON for what happens: `{"started": pid}`
once the query runs, then, for each micro-batch, the sums that it changed and the time at which the driver has them.
The session has Spark's defaults but for what is set below, each in Spark's favour or what the comparison is about.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everyone calls it so
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from broadsheet.spark_bridge.java import find_java
from broadsheet.spark_bridge.standalone import spark_home_of_pip

_SCHEMA = "k STRING, v LONG"
_SUMS = "k STRING, n LONG, total LONG"
_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "3g",
    "spark.ui.showConsoleProgress": "false",
    # As many as there are cores; 200 by default, which would cost it dearly.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A commit writes what changed, and no snapshot of the whole store.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


class QueryPlan(msgspec.Struct, frozen=True):
    """What a driver is to run."""

    system: str
    """`structured_streaming` or `transform_with_state`."""
    checkpoint: str
    """Directory of the query's checkpoint."""
    input_directory: str = ""
    """Where files of JSON lines come to be; the file source."""
    socket_port: int = 0
    """Of 127.0.0.1, from which lines come; the socket source, if there is no directory."""


class CountAndSum(StatefulProcessor):
    """The same aggregation, by `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._sums = handle.getValueState("sums", "n LONG, total LONG")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """Add the rows of one key, and give its sums."""
        del timerValues
        n, total = self._sums.get() or (0, 0)
        for row in rows:
            n += 1
            total += row.v
        self._sums.update((n, total))
        yield Row(k=key[0], n=n, total=total)

    def close(self) -> None:
        """Nothing is open."""


def main() -> None:
    """Run the query that the argument says, until the process is killed."""
    plan = msgspec.json.decode(sys.argv[1], type=QueryPlan)
    spark = _start_session()
    spark.sparkContext.setLogLevel("ERROR")
    query = (
        _aggregated(plan, _rows(plan, spark))
        .writeStream.outputMode("update")
        .option("checkpointLocation", plan.checkpoint)
        .foreachBatch(_show)
        .start()
    )
    _print({"started": os.getpid()})
    query.awaitTermination()


def _start_session() -> SparkSession:
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("SPARK_HOME", str(spark_home_of_pip()))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("vs_structured_streaming")
    for name, value in _CONF.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _rows(plan: QueryPlan, spark: SparkSession) -> DataFrame:
    if plan.input_directory:
        return spark.readStream.schema(_SCHEMA).json(plan.input_directory)
    lines = (
        spark.readStream.format("socket")
        .option("host", "127.0.0.1")
        .option("port", plan.socket_port)
        .load()
    )
    return lines.select(F.from_json("value", _SCHEMA).alias("row")).select("row.*")


def _aggregated(plan: QueryPlan, rows: DataFrame) -> DataFrame:
    if plan.system == "transform_with_state":
        return rows.groupBy("k").transformWithState(
            statefulProcessor=CountAndSum(),
            outputStructType=_SUMS,
            outputMode="Update",
            timeMode="None",
        )
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def _show(changed: DataFrame, batch_id: int) -> None:
    del batch_id
    rows: Iterable[Row] = changed.collect()
    _print(
        {
            "at": time.monotonic(),
            "pid": os.getpid(),
            "sums": [[row.k, row.n, row.total] for row in rows],
        }
    )


def _print(record: dict[str, object]) -> None:
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
