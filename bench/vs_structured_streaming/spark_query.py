"""A driver of Spark's own with one streaming query, as a process of its own: `python -m …spark_query '{…}'`.

It counts and sums `v` by `k`, from a topic of Kafka into another, and writes `{"started": pid}` to its standard output
once the query runs. A query that fails is started again from its checkpoint, as a supervisor does. The session has
Spark's defaults but for what is set below, each in Spark's favour or what the comparison is about.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import (
    DataFrame,
    Row,
    SparkSession,
    functions as F,  # noqa: N812 - everyone calls it so
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from broadsheet.spark_bridge.java import find_java
from broadsheet.spark_bridge.standalone import spark_home_of_pip

REAL_TIME = ("real_time", "real_time_1ms")
_SCHEMA = "k STRING, v LONG"
_SUMS = "k STRING, n LONG, total LONG"
_STATE_STORE = "spark.sql.streaming.stateStore"
_CONF = {
    "spark.driver.memory": "2g",
    "spark.ui.showConsoleProgress": "false",
    # As many as there are cores; 200 by default, which would cost it dearly.
    "spark.sql.shuffle.partitions": "2",
    f"{_STATE_STORE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # As Spark's own benchmarks of state have it: a commit writes what changed, in the newer format, rows are not
    # counted at each put, and no batch runs without data.
    f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE_STORE}.rocksdb.trackTotalNumberOfRows": "false",
    f"{_STATE_STORE}.checkpointFormatVersion": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
_CONF_OF = {"real_time_1ms": {"spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1"}}
REAL_TIME_BATCH = "5 minutes"
"""How often real-time mode commits; the default of its Scala API."""


class QueryPlan(msgspec.Struct, frozen=True):
    """The program of a driver."""

    system: str
    """One of `bench.vs_structured_streaming.spark.SYSTEMS`."""
    master_url: str
    session_conf: dict[str, str]
    jars: list[str]
    """The connector for Kafka."""
    servers: str
    rows_topic: str
    sums_topic: str
    checkpoint: str
    """Directory of the query's checkpoint."""


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


class CountAndSumInPandas(StatefulProcessor):
    """The same by `transformWithStateInPandas`: a key's rows come as frames."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._sums = handle.getValueState("sums", "n LONG, total LONG")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Add the rows of one key, and give its sums."""
        del timerValues
        n, total = self._sums.get() or (0, 0)
        for frame in rows:
            n += len(frame)
            total += int(frame["v"].sum())
        self._sums.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})

    def close(self) -> None:
        """Nothing is open."""


def main() -> None:
    """Run the query that the argument says, until the process is killed."""
    plan = msgspec.json.decode(sys.argv[1], type=QueryPlan)
    spark = _start_session(plan)
    spark.sparkContext.setLogLevel("ERROR")
    query = _start_query(plan, spark)
    _print({"started": os.getpid()})
    while True:
        try:
            query.awaitTermination()
        except Exception as error:
            sys.stderr.write(f"the query failed, and is started again: {error}\n")
        query = _start_query(plan, spark)


def _start_session(plan: QueryPlan) -> SparkSession:
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("SPARK_HOME", str(spark_home_of_pip()))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(plan.master_url).appName("vs_structured_streaming")
    conf = plan.session_conf | _CONF | _CONF_OF.get(plan.system, {})
    for name, value in (conf | {"spark.jars": ",".join(plan.jars)}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _start_query(plan: QueryPlan, spark: SparkSession) -> StreamingQuery:
    sums = _aggregated(plan, _rows(plan, spark))
    # With the key, so that all results of a key are in one partition: a reader of several takes them in any order, and
    # would see older sums last.
    results = sums.select(
        F.col("k").alias("key"), F.to_json(F.struct("k", "n", "total")).alias("value")
    )
    writer: Any = (  # The stubs do not know `realTime`.
        results.writeStream.outputMode("update")
        .format("kafka")
        .option("kafka.bootstrap.servers", plan.servers)
        .option("topic", plan.sums_topic)
        .option("checkpointLocation", plan.checkpoint)
    )
    if plan.system in REAL_TIME:
        writer = writer.trigger(realTime=REAL_TIME_BATCH)
    query: StreamingQuery = writer.start()
    return query


def _rows(plan: QueryPlan, spark: SparkSession) -> DataFrame:
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", plan.servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", plan.rows_topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    row = F.from_json(F.col("value").cast("string"), _SCHEMA)
    return messages.select(row.alias("row")).select("row.*")


def _aggregated(plan: QueryPlan, rows: DataFrame) -> DataFrame:
    grouped = rows.groupBy("k")
    stateful: dict[str, Any] = {"outputMode": "Update", "timeMode": "None"}
    stateful["outputStructType"] = _SUMS
    if plan.system == "transform_with_state":
        return grouped.transformWithState(statefulProcessor=CountAndSum(), **stateful)
    if plan.system == "transform_with_state_pandas":
        processor = CountAndSumInPandas()
        return grouped.transformWithStateInPandas(statefulProcessor=processor, **stateful)
    return grouped.agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def _print(record: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
