"""The Spark job whose tasks are members: submitted, watched, and as a last resort cancelled."""

from __future__ import annotations

import threading
from uuid import uuid4

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from spark_bridge.member.task import MemberResult, MemberTask


class MemberJob:
    """One job in a job group of its own, on a thread of its own: other jobs of the session run beside it."""

    def __init__(self, spark: SparkSession, task: MemberTask, *, members: int) -> None:
        """Describe the job; `start` submits it.

        Args:
            spark: Whose executors host the members.
            task: What each task does.
            members: Number of tasks.
        """
        self._context = spark.sparkContext
        self._task = task
        self._members = members
        self._ended = threading.Event()
        self._thread = InheritableThread(
            target=self._run, name="shard-cluster", daemon=True, session=spark
        )
        self.group = f"shard-cluster-{uuid4().hex[:8]}"
        """Its job group, as Spark's pages show it."""
        self.failure: Exception | None = None
        """Why Spark gave the job up."""
        self.results: tuple[MemberResult, ...] = ()
        """What the members said at their end."""

    @property
    def ended(self) -> bool:
        """Whether every task ended or the job failed."""
        return self._ended.is_set()

    def start(self) -> None:
        """Submit the job."""
        self._thread.start()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the job ends; return whether it did."""
        return self._ended.wait(timeout_seconds)

    def cancel(self) -> None:
        """Make Spark kill every task: SIGKILL after some seconds, nothing is cleaned up."""
        self._context.cancelJobGroup(self.group)

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self.group, f"{self._members} members of {self.group}")
            rows = self._context.parallelize(range(self._members), self._members)
            self.results = tuple(rows.mapPartitionsWithIndex(self._task).collect())
        except Exception as error:  # Py4J and Spark raise what they like; the cluster reports it
            self.failure = error
        finally:
            self._ended.set()
