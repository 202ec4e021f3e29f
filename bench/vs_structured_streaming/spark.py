"""Structured Streaming under measurement, on the executors of a standalone Spark, from Kafka to Kafka.

A query runs at once when there is something to do (the default trigger), or in real-time mode. `executor` is the kill
of one of its two executors, which its worker starts again while Spark runs the lost tasks again; `driver` that of the
driver, which is started again at once.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.vs_structured_streaming.driver import Driver
from bench.vs_structured_streaming.kafka import KafkaBroker, KafkaTopics
from bench.vs_structured_streaming.kafka_runs import KafkaRun
from bench.vs_structured_streaming.maven import spark_kafka_jars
from bench.vs_structured_streaming.results import Measured
from bench.vs_structured_streaming.rows import Chunk
from bench.vs_structured_streaming.spark_query import REAL_TIME, QueryPlan
from broadsheet.spark_bridge.standalone import StandaloneCluster

SYSTEMS = (
    "structured_streaming",
    "transform_with_state",
    "transform_with_state_pandas",
    *REAL_TIME,
)
WORKERS = 2
REAL_TIME_CORES = 2
"""Slots of a worker. In real-time mode all tasks of a query run at the same time: two that read and two that count."""


def measure(system: str, chunks: Sequence[Chunk]) -> Measured:
    """Measure everything once."""
    with running(system) as run:
        return run.measure(chunks)


@contextmanager
def running(system: str) -> Iterator[KafkaRun]:
    """Start a Kafka and a standalone Spark; end them with the block."""
    cores = REAL_TIME_CORES if system in REAL_TIME else 1
    with (
        tempfile.TemporaryDirectory(prefix="vs-") as name,
        KafkaBroker(Path(name) / "kafka") as kafka,
        StandaloneCluster(
            workers=WORKERS, cores_per_worker=cores, worker_memory_mib=2048
        ) as cluster,
    ):
        yield KafkaRun(SparkSystem(system, cluster), kafka.servers, Path(name))


@dataclass(frozen=True, slots=True)
class SparkSystem:
    """A query of Spark's own."""

    name: str
    cluster: StandaloneCluster
    kills: Mapping[str, int] = field(default_factory=lambda: {"executor": 3, "driver": 1})

    @contextmanager
    def running(self, topics: KafkaTopics, directory: Path) -> Iterator[_Query]:
        """Start the query's driver; end it with the block."""
        plan = QueryPlan(
            system=self.name,
            master_url=self.cluster.master_url,
            session_conf=self.cluster.session_conf,
            jars=[str(jar) for jar in spark_kafka_jars()],
            servers=topics.servers,
            rows_topic=topics.rows,
            sums_topic=topics.sums,
            checkpoint=str(directory / "checkpoint"),
        )
        query = _Query(self.cluster, plan, directory)
        try:
            query.start_driver()
            yield query
        finally:
            query.kill_driver()


class _Query:
    """A streaming query over several lives of its driver."""

    def __init__(self, cluster: StandaloneCluster, plan: QueryPlan, directory: Path) -> None:
        self._cluster = cluster
        self._plan = plan
        self._directory = directory
        self._lives = itertools.count()

    def start_driver(self) -> None:
        """Start it, and wait until the query runs."""
        self._driver = Driver(
            "bench.vs_structured_streaming.spark_query",
            self._plan,
            log_file=self._directory / f"driver-{next(self._lives)}.log",
            on_record=lambda record: None,
        )
        self._driver.start()
        self._driver.wait_until_started()

    def kill_driver(self) -> None:
        """Kill the driver and its JVM."""
        self._driver.kill()

    def kill(self, what: str) -> None:
        """Kill an executor, or the driver; that one is started again."""
        if what == "driver":
            self.kill_driver()
            self.start_driver()
            return
        os.kill(executor_pids(self._cluster)[0], signal.SIGKILL)


def executor_pids(cluster: StandaloneCluster) -> list[int]:
    """Return the processes of the executors of a cluster's newest application.

    Those of an application that has ended live on for a while, because they notice the end of their driver late; the
    kill of one of them would look like a recovery without an outage.
    """
    directory = str(cluster.directory)
    by_application: dict[str, list[int]] = {}
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command = process.info["cmdline"] or []
        if (process.info["cwd"] or "").startswith(directory) and "--app-id" in command:
            application = command[command.index("--app-id") + 1]
            by_application.setdefault(application, []).append(process.pid)
    return by_application[max(by_application)]
