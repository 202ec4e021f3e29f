"""A driver of its own that streams files into journals, and may die in the sink's commit.

    python -m tests.support.sink_driver MASTER DIRECTORY OPTIONS [--kill STEP:BATCH] [--speculation]

DIRECTORY has the input and the checkpoint; OPTIONS are the sink's, as JSON. Exits with 0 when everything is written.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from spark_bridge.journal_format import JournalFormat
from tests.support.sink_queries import rows_of_files, start_query

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

    from spark_bridge.journal_sink.commit import CommitStep

_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
}


class DriverKiller:
    """Ends the driver with SIGKILL, its JVM and this process of its too, at a step of a batch's commit."""

    def __init__(self, step: str, batch: int, *, driver_pid: int) -> None:
        self._step = step
        self._batch = batch
        self._driver_pid = driver_pid

    def __call__(self, step: CommitStep, batch: int) -> None:
        """Kill if it is the step."""
        if (step.value, batch) != (self._step, self._batch):
            return
        jvm = next(parent for parent in psutil.Process().parents() if parent.name() == "java")
        for pid in (self._driver_pid, jvm.pid, os.getpid()):
            os.kill(pid, signal.SIGKILL)


def killed_format(step: str, batch: int) -> type[JournalFormat]:
    """Return the format "journal" whose commit kills this driver."""
    driver_pid = os.getpid()

    class KilledFormat(JournalFormat):
        """The journal format, with a commit that is watched."""

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
            """Return the sink's writer."""
            from spark_bridge.journal_sink.options import write_options
            from spark_bridge.journal_sink.writers import StreamJournalWriter

            del overwrite
            killer = DriverKiller(step, batch, driver_pid=driver_pid)
            return StreamJournalWriter(write_options(self.options), schema, on_step=killer)

    return KilledFormat


def main() -> None:
    """Run the query to the end of its input."""
    from spark_bridge.session import start_session

    parser = argparse.ArgumentParser()
    parser.add_argument("master")
    parser.add_argument("directory", type=Path)
    parser.add_argument("options", type=json.loads)
    parser.add_argument("--kill", default="")
    parser.add_argument("--speculation", action="store_true")
    parser.add_argument("--py-file", default="")
    arguments = parser.parse_args()

    spark = start_session(arguments.master, app_name="sink", conf=_conf(arguments))
    spark.sparkContext.setLogLevel("OFF")
    if arguments.py_file:
        spark.sparkContext.addPyFile(arguments.py_file)
    step, _, batch = arguments.kill.partition(":")
    spark.dataSource.register(killed_format(step, int(batch)) if step else JournalFormat)
    tasks = 4 if arguments.speculation else 2
    rows = rows_of_files(spark, arguments.directory / "input", tasks=tasks)
    start_query(
        rows, arguments.options, checkpoint=arguments.directory / "checkpoint"
    ).awaitTermination()
    spark.stop()


def _conf(arguments: Any) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.cores.max": "4" if arguments.speculation else "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.sql.shuffle.partitions": "2",
        **(_SPECULATION if arguments.speculation else {}),
    }


if __name__ == "__main__":
    main()
