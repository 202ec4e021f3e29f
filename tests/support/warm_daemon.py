"""PySpark's daemon with imports done: the `spark.python.daemon.module` of sessions in tests.

Members share no process with anything, so each task of a session that hosts them is a process of its own. Forked from
here it has its modules, instead of spending a second of a processor on reading them. Without gRPC, which does not
survive a fork: whoever needs it imports it in the child.
"""

from __future__ import annotations

import importlib
import sys

from broadsheet.spark_bridge.spark_version import JOURNALS_MIN, is_spark_at_least

MODULES = (
    "pyspark.worker",
    "pyarrow.compute",
    "sqlalchemy",
    "prometheus_client",
    "broadsheet.allocator.placement.flow",
    "broadsheet.consumer.shard.transaction_machine",
)
OF_JOURNALS = (
    "broadsheet.spark_bridge.journal_sink.writers",
    "broadsheet.spark_bridge.journal_source.readers",
)
"""Members need none of it, and an earlier PySpark has not what it imports."""


def main() -> None:
    """Import, then fork a process for each task that asks, until Spark's JVM ends."""
    for module in MODULES + (OF_JOURNALS if is_spark_at_least(JOURNALS_MIN) else ()):
        importlib.import_module(module)
    assert "grpc" not in sys.modules, "it would not survive the forks"
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
