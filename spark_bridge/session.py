"""Starts a SparkSession that can host members.

Starting it launches the JVM by a fork, so it must happen before this process opens its first gRPC channel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from broadsheet.spark_bridge.errors import ConnectNotSupportedError, SparkConfError
from broadsheet.spark_bridge.java import find_java
from broadsheet.spark_bridge.spark_version import MEMBERS_MIN, require_spark
from broadsheet.spark_bridge.standalone import spark_home_of_pip

TASK_FAILURES_MIN = 1_000
"""Every lost worker or executor of a member's whole life counts as a failure of its task."""
_CONNECT_PACKAGE = "pyspark.sql.connect."
_RECOMMENDED = {
    "spark.task.maxFailures": "100000",
    "spark.python.worker.reuse": "false",
    "spark.speculation": "false",
    # A member that leaves an executor must not be started there again (`ShardCluster.drain`).
    "spark.decommission.enabled": "true",
    # Without it the first executor to register gets every member.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "30s",
    # A member's job never ends, and neither would its line in a terminal or a notebook's cell.
    "spark.ui.showConsoleProgress": "false",
    # Off, because many retries of a member's task in place say nothing about the executor.
    "spark.excludeOnFailure.enabled": "false",
    # With any other value Spark measures the batch again for each row that goes to Python, which takes longer.
    # `spark.sql.execution.arrow.maxRecordsPerBatch` bounds batches.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
}


def recommended_conf() -> dict[str, str]:
    """Return the settings that a SparkSession needs before it can host members.

    A member is one task that runs for weeks. Spark's defaults are made for tasks that run for minutes: they give up
    after four failures, start a second copy of a slow task, and lend a used Python process to the next task.
    """
    return dict(_RECOMMENDED)


def check_session(spark: SparkSession) -> None:
    """Refuse a session that cannot host members.

    Raises:
        SparkVersionError: PySpark is older than members need.
        ConnectNotSupportedError: it is a Spark Connect session.
        SparkConfError: as `check_conf`.
    """
    require_spark("ShardCluster", MEMBERS_MIN)
    # Recognized by its name, because importing Connect needs packages that only its users have.
    if f"{type(spark).__module__}.".startswith(_CONNECT_PACKAGE):
        raise ConnectNotSupportedError(
            "ShardCluster",
            instead="start the members from a driver of its own "
            "(broadsheet.spark_bridge.start_session); data sources work from here",
        )
    check_conf(dict(spark.sparkContext.getConf().getAll()))


def check_conf(conf: Mapping[str, str]) -> None:
    """Refuse a Spark configuration that would end members, or start a member twice.

    Args:
        conf: The session's settings by name; absent ones have Spark's default.

    Raises:
        SparkConfError: a setting is unfit; the message names it, its value and the value needed.
    """
    for name, default, fits, needed, why in _CHECKS:
        value = conf.get(name, default)
        if not fits(value):
            raise SparkConfError(name, value=value, needed=needed, why=why)


def _is_false(value: str) -> bool:
    return value.strip().lower() == "false"


def _allows_failures(value: str) -> bool:
    return value.strip().isdigit() and int(value) >= TASK_FAILURES_MIN


# (setting, Spark's default, whether a value fits, the value needed, why)
_CHECKS: tuple[tuple[str, str, Callable[[str], bool], str, str], ...] = (
    (
        "spark.task.maxFailures",
        "4",
        _allows_failures,
        f"at least {TASK_FAILURES_MIN}, better 100000",
        "it counts every lost process of a member's whole life",
    ),
    (
        "spark.python.worker.reuse",
        "true",
        _is_false,
        "false",
        "a retried member must not inherit the process, the threads and the servers of the one before",
    ),
    (
        "spark.speculation",
        "false",
        _is_false,
        "false",
        "a second copy of a long task would be a second member",
    ),
)


def start_session(
    master_url: str, *, app_name: str, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session with the conf that members need, a suitable Java, and this interpreter on executors.

    Args:
        master_url: E.g. `spark://HOST:7077`, or `local[4,100000]` (the second number allows failures; without it a
            local master gives up at the first one).
        app_name: Shown in Spark's pages.
        conf: Further settings; they win over the recommended ones.

    Raises:
        JavaNotFoundError: there is no Java.
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("SPARK_HOME", str(spark_home_of_pip()))
    # Without it the JVM starts the `python3` on PATH, which seldom has our packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _is_this_machine(master_url):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master_url).appName(app_name)
    for name, value in {**recommended_conf(), **(conf or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _is_this_machine(master_url: str) -> bool:
    return master_url.startswith("local") or "//127.0.0.1:" in master_url
