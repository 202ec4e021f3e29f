"""Starts a SparkSession that can host members.

It starts the JVM, which must happen before this process opens its first gRPC channel: launching it forks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark_bridge.conf import recommended_conf
from spark_bridge.java import find_java
from spark_bridge.standalone import spark_home_of_pip


def start_session(
    master_url: str, *, app_name: str, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session with the conf that members need, a Java that was found, and this interpreter on executors.

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
    # The JVM asks for `python3` on PATH otherwise, which is seldom the one that has our packages.
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
