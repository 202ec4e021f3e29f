"""One standalone Spark with two workers, one session on it, and one etcd and broker, for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broadsheet.spark_bridge.cluster.shard_cluster import Services
    from broadsheet.spark_bridge.standalone import StandaloneCluster


@pytest.fixture(scope="session", autouse=True)
def _quick_spark() -> Iterator[None]:
    """Every JVM of these tests, and of the programs that they start."""
    from tests.support.quick_spark import quick_spark

    with quick_spark():
        yield


@pytest.fixture(scope="session")
def standalone() -> Iterator[StandaloneCluster]:
    """A real master and two real workers."""
    from broadsheet.spark_bridge.standalone import StandaloneCluster

    with StandaloneCluster(workers=2, cores_per_worker=4, start_timeout_seconds=120.0) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(standalone: StandaloneCluster) -> Iterator[SparkSession]:
    """A session on both workers."""
    from broadsheet.spark_bridge.session import start_session

    conf = {
        **standalone.session_conf,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
    }
    session = start_session(standalone.master_url, app_name="tests", conf=conf)
    session.sparkContext.setLogLevel("OFF")  # lost workers are the tests' business
    yield session
    session.stop()


@pytest.fixture
def sent_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the test's own for files that it sends to executors with the session's `addPyFile`.

    The driver serves them to each later executor from where they are, and `tmp_path` goes with the test.
    """
    return tmp_path_factory.mktemp("sent")


@pytest.fixture(scope="session")
def services(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """An etcd and a broker that the executors reach; after the JVM, which must be started before gRPC is used."""
    from broadsheet.spark_bridge.cluster.shard_cluster import find_or_start

    del spark
    with find_or_start(None, None, data_dir=tmp_path_factory.mktemp("services")) as started:
        yield started
