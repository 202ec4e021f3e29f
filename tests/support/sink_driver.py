"""A driver of its own that streams files into journals, and may die in the sink's commit.

    python -m tests.support.sink_driver MASTER DIRECTORY OPTIONS [--kill STEP:BATCH] [--speculation]

DIRECTORY has the input and the checkpoint; OPTIONS are the sink's, as JSON. Exits with 0 when all is written.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from broadsheet.spark_bridge.formats import JournalFormat
from tests.support.dying_format import DyingFormat
from tests.support.sink_queries import rows_of_files, start_query

_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
}


def main() -> None:
    """Run the query to the end of its input."""
    from broadsheet.spark_bridge.session import start_session

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
    spark.dataSource.register(JournalFormat)
    spark.dataSource.register(DyingFormat)
    dies = {"killAt": arguments.kill, "driver": str(os.getpid())} if arguments.kill else {}
    tasks = 4 if arguments.speculation else 2
    start_query(
        rows_of_files(spark, arguments.directory / "input", tasks=tasks),
        {**arguments.options, **dies},
        checkpoint=arguments.directory / "checkpoint",
        format_name=(DyingFormat if dies else JournalFormat).name(),
    ).awaitTermination()
    spark.stop()


def _conf(arguments: Any) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # No members here, so a process may serve one task after the other.
        "spark.python.worker.reuse": "true",
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
