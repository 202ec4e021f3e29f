"""Faults while rows are written into journals: none may be missing, and none there twice.

The judge is a full outer join of the input with what readers of committed messages see.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.formats import register_formats
from broadsheet.spark_bridge.standalone import StandaloneCluster
from tests.support.published import ids_of, messages_of
from tests.support.sink_queries import (
    SinkTopic,
    missing_and_twice,
    rows_of_files,
    small_batches,
    start_query,
    write_input_files,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
ROWS = 6_000
ROWS_OF_BATCH = 200
DRIVER_SECONDS = 600.0

# Runs where rows are mapped to journals: in the sink's own process, with rows appended before and rows to come.
FAULTS = """
import os, signal, time
from pathlib import Path

import psutil
from pyspark import TaskContext


def _mapped(rows, journals):
    return [id_ % len(journals) for id_ in rows.column("id").to_pylist()]


def _late_in_first_attempt(rows):
    context = TaskContext.get()
    seen = _seen.setdefault(context.taskAttemptId(), [0])
    seen[0] += rows.num_rows
    # Of 1,500 rows: by then the first append is done, because the third chunk waits for it.
    return context.attemptNumber() == 0 and seen[0] >= 1_300


_seen = {}


def _first_time(fault):
    # Of its stage: the attempts of a stage that is run again count from 0.
    try:
        Path("MARKERS", f"{fault}-{TaskContext.get().stageId()}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def process_dies(rows, journals):
    if _late_in_first_attempt(rows):
        os._exit(1)
    return _mapped(rows, journals)


def executor_dies(rows, journals):
    if TaskContext.get().partitionId() == 0 and _late_in_first_attempt(rows) and _first_time("executor"):
        jvm = next(parent for parent in psutil.Process().parents() if parent.name() == "java")
        os.kill(jvm.pid, signal.SIGKILL)
    return _mapped(rows, journals)


def original_waits_for_its_copy(rows, journals):
    context = TaskContext.get()
    copied = Path("MARKERS") / str(context.partitionId())
    if context.attemptNumber() > 0:
        copied.touch()
    elif context.partitionId() == 0 and _late_in_first_attempt(rows):
        deadline = time.monotonic() + 60
        while not copied.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    return _mapped(rows, journals)
"""


@pytest.fixture
def topic(spark: SparkSession, services: Services) -> SinkTopic:
    """Two journals of JSON lines."""
    register_formats(spark)
    return SinkTopic(services)


@pytest.fixture
def faults(tmp_path: Path, sent_path: Path) -> Path:
    """A module of mappings that fail, named for this test alone; ship it."""
    (tmp_path / "markers").mkdir()
    module = sent_path / f"sink_faults_{uuid4().hex}.py"
    module.write_text(FAULTS.replace("MARKERS", str(tmp_path / "markers")))
    return module


@pytest.fixture
def second_cluster(spark: SparkSession) -> Iterator[StandaloneCluster]:
    """A master and workers for drivers of other processes: the session has every slot of the first."""
    del spark
    with StandaloneCluster(
        workers=2,
        cores_per_worker=2,
        worker_hosts=("127.0.0.2", "127.0.0.3"),
        start_timeout_seconds=120.0,
    ) as cluster:
        yield cluster


def _published(topic: SinkTopic, *, committed: bool = True) -> list[int]:
    messages = asyncio.run(messages_of(topic.address, topic.journals, committed=committed))
    return list(ids_of(messages).elements())


def _run_driver(master_url: str, topic: SinkTopic, directory: Path, *arguments: str) -> int:
    """Run a driver to its end, and return its exit code."""
    command: Sequence[str] = (
        sys.executable,
        *("-m", "tests.support.sink_driver"),
        *(master_url, str(directory), json.dumps(topic.options), *arguments),
    )
    with (directory / "driver.log").open("ab") as log:
        return subprocess.run(
            command, cwd=ROOT, stdout=log, stderr=log, timeout=DRIVER_SECONDS, check=False
        ).returncode


@pytest.mark.timeout(2_400)
def test_driver_killed_at_each_step_of_the_commit(
    spark: SparkSession, topic: SinkTopic, tmp_path: Path
) -> None:
    """A driver dies whole, its JVM and its Python, in the commit of a batch. Each life repeats the batch that the one
    before died in, commits it, and dies in the next one's commit, a step later; the last life is undisturbed.
    """
    # A driver's life takes half a minute; `make nightly-sinks` tries all four steps.
    steps = os.environ.get("SINK_STEPS", "started,acknowledged").split(",")
    files = len(steps) + 1
    write_input_files(tmp_path / "input", files, rows_per_file=ROWS_OF_BATCH)

    for batch, step in enumerate(steps):
        ended = _run_driver("local[2,4]", topic, tmp_path, f"--kill={step}:{batch}")
        assert ended == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-3000:]
    start_query(
        rows_of_files(spark, tmp_path / "input"), topic.options, checkpoint=tmp_path / "checkpoint"
    ).awaitTermination()

    assert missing_and_twice(spark, _published(topic), rows=files * ROWS_OF_BATCH) == (0, 0, 0)
    # The batch that died before its record was written twice, and those that died after it were not.
    written = files + steps.count("started")
    assert len(_published(topic, committed=False)) == written * ROWS_OF_BATCH


def test_speculative_copies_of_tasks(
    spark: SparkSession,
    topic: SinkTopic,
    second_cluster: StandaloneCluster,
    faults: Path,
    tmp_path: Path,
) -> None:
    """A task waits, half of its rows appended, until Spark has started a copy of it; both write all of theirs."""
    write_input_files(tmp_path / "input", 1, rows_per_file=ROWS)
    topic.options["mapping"] = f"{faults.stem}:original_waits_for_its_copy"

    ended = _run_driver(
        second_cluster.master_url, topic, tmp_path, "--speculation", "--py-file", str(faults)
    )

    assert ended == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert (tmp_path / "markers" / "0").exists()
    assert missing_and_twice(spark, _published(topic), rows=ROWS) == (0, 0, 0)
    assert len(_published(topic, committed=False)) > ROWS


@pytest.mark.parametrize("fault", ["process_dies", "executor_dies"])
def test_batch_write_whose_tasks_die(
    spark: SparkSession, topic: SinkTopic, faults: Path, fault: str
) -> None:
    """A task's Python process, or its whole executor, is killed when it has appended most of its rows."""
    spark.sparkContext.addPyFile(str(faults))
    rows = spark.range(0, ROWS, 1, 4).selectExpr("id", "concat('key-', id % 50) AS key")

    with small_batches(spark, 100):
        rows.write.format("journal").options(**topic.options).option(
            "mapping", f"{faults.stem}:{fault}"
        ).mode("append").save()

    assert missing_and_twice(spark, _published(topic), rows=ROWS) == (0, 0, 0)
    assert len(_published(topic, committed=False)) > ROWS


def test_stream_whose_executor_dies(
    spark: SparkSession, topic: SinkTopic, faults: Path, tmp_path: Path
) -> None:
    """The same within a micro-batch, with another one after it."""
    spark.sparkContext.addPyFile(str(faults))
    write_input_files(tmp_path / "input", 2, rows_per_file=ROWS // 2)

    with small_batches(spark, 100):
        start_query(
            rows_of_files(spark, tmp_path / "input"),
            {**topic.options, "mapping": f"{faults.stem}:executor_dies"},
            checkpoint=tmp_path / "checkpoint",
        ).awaitTermination()

    assert missing_and_twice(spark, _published(topic), rows=ROWS) == (0, 0, 0)
    assert len(_published(topic, committed=False)) > ROWS
