"""Spark jobs whose tasks are members: submitted, watched, and as a last resort cancelled.

A job cannot grow, so each growth of the cluster is another job. All jobs are in one job group.

`SparkContext.cancelAllJobs` cancels members, too, because it spares no job. Unlike `cancel`, or the kill on Spark's
page, that was not meant for them, so `on_swept_away` is told, which submits others in their place.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from functools import partial
from uuid import uuid4

from pyspark import InheritableThread, cloudpickle
from pyspark.resource import ResourceProfile
from pyspark.sql import SparkSession

from broadsheet.spark_bridge.member import bootstrap
from broadsheet.spark_bridge.member.task import MemberResult, MemberTask

# By value: an executor without Broadsheet, or with another version, must run it.
cloudpickle.register_pickle_by_value(bootstrap)  # type: ignore[no-untyped-call] # PySpark's copy
_POOL_PROPERTY = "spark.scheduler.pool"
_SWEPT_AWAY = "as part of cancellation of all jobs"
"""Spark's reason of a job that `cancelAllJobs` ended (DAGScheduler.doCancelAllJobs)."""


class MemberJobs:
    """The jobs of a cluster, each on its own thread, so that the session's other jobs run beside them."""

    def __init__(
        self,
        spark: SparkSession,
        task: MemberTask,
        *,
        pool: str | None,
        resources: ResourceProfile | None,
    ) -> None:
        """Describe the jobs; `add` submits one.

        Args:
            spark: The session whose executors host the members.
            task: What each task does.
            pool: Pool of the fair scheduler; None: that of the calling thread.
            resources: Resources of each task; None: one slot.
        """
        self._spark = spark
        self._root = task.root
        self._task = partial(
            bootstrap.start_member, driver=bootstrap.versions(), task=pickle.dumps(task)
        )
        self._pool = pool
        self._resources = resources
        self._jobs: list[_Job] = []
        self._next_partition = 0
        self._cancelled = False
        self.on_swept_away: Callable[[range], None] = lambda _: None
        """Told, on any thread, which tasks `cancelAllJobs` ended; until it returns they count as running."""
        self.group = f"shard-cluster-{uuid4().hex[:8]}"
        """Their job group, as Spark's pages show it."""

    def add(self, count: int) -> range:
        """Submit a job of so many members; return their numbers, which were never used before."""
        partitions = range(self._next_partition, self._next_partition + count)
        self._next_partition = partitions.stop
        job = _Job(self._spark, partitions, self._run)
        self._jobs.append(job)
        job.start()
        return partitions

    @property
    def failure(self) -> Exception | None:
        """The reason why Spark gave a job up."""
        return next((job.failure for job in self._jobs if job.failure is not None), None)

    @property
    def running(self) -> frozenset[int]:
        """Numbers of the tasks whose jobs have not ended."""
        return frozenset(one for job in self._jobs if not job.ended.is_set() for one in job.members)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until every job has ended; return False if that takes longer."""
        deadline = time.monotonic() + timeout_seconds
        return all(
            job.ended.wait(max(0.0, deadline - time.monotonic())) for job in tuple(self._jobs)
        )

    def cancel(self) -> None:
        """Make Spark kill every task, with SIGKILL after some seconds: nothing is cleaned up."""
        self._cancelled = True
        self._spark.sparkContext.cancelJobGroup(self.group)

    def _run(self, partitions: range) -> None:
        try:
            self._submit(partitions)
        except Exception as error:
            # A session that stops cancels its jobs, too, and then `on_swept_away` finds nothing to submit them to.
            if self._cancelled or _SWEPT_AWAY not in str(error):
                raise
            self.on_swept_away(partitions)

    def _submit(self, partitions: range) -> tuple[MemberResult, ...]:
        context = self._spark.sparkContext
        members = ", ".join(str(one) for one in partitions[:8])
        context.setJobGroup(self.group, f"members {members} of {self._root}")
        if self._pool is not None:
            context.setLocalProperty(_POOL_PROPERTY, self._pool)
        # A row a partition carries the member's number, which differs from the partition's in later
        # jobs.
        rows = context.parallelize(partitions, len(partitions))
        tasks = rows.mapPartitions(self._task)
        if self._resources is not None:
            tasks = tasks.withResources(self._resources)
        return tuple(tasks.collect())


class _Job:
    """One job, on its thread."""

    def __init__(
        self,
        spark: SparkSession,
        members: range,
        work: Callable[[range], None],
    ) -> None:
        self.members = members
        self.ended = threading.Event()
        self.failure: Exception | None = None
        self._work = work
        self._thread = InheritableThread(
            target=self._run, name=f"shard-cluster-{members.start}", daemon=True, session=spark
        )

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self.members)
        except Exception as error:  # Py4J and Spark raise anything; the cluster reports it
            self.failure = error
        finally:
            # Also after a failure, because `stop` waits for it.
            self.ended.set()
