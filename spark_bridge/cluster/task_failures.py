"""Failures of tasks that Spark starts again: shown on the driver, and for some the end of their job.

A session that hosts members lets a task fail 100,000 times, because members are tasks that must be started again. So
Spark tells the driver nothing of a member that fails at each start, and a job of DataFrames stands still for weeks over
an error that no attempt can avoid. Its store of statuses has every failed attempt, with the error's text.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from broadsheet.spark_bridge.cluster.executor_problems import (
    FailedAttempt,
    Unfit,
    cause_of,
    diagnose,
    unfit_executors,
)
from broadsheet.spark_bridge.cluster.interrupts import spared_jobs
from broadsheet.spark_bridge.errors import MemberReleasedError, MembersGoneError
from broadsheet.spark_bridge.jvm import jvm_context_of, jvm_of

TASK_FAILURES_MAX: Final = 4
"""Failures of one task that end its job, if no attempt can avoid them: Spark's default of `spark.task.maxFailures`."""
LOOK_SECONDS: Final = 2.0
"""Time between two looks at the active stages."""
_TASKS_LOOKED_AT: Final = 64
"""Most failed attempts of a stage that are looked at, the newest; each takes a few calls into the JVM."""
_CAUSES_TOLD_MAX: Final = 256
"""Causes that are told once each; those beyond are told again."""
_SESSION_STOPPED: Final = (Py4JError, AttributeError, TypeError, OSError)
"""Errors of calls into a session that was stopped."""

_log = structlog.get_logger()


def reason_to_end(failed: Iterable[FailedAttempt]) -> str:
    """Return the error for which a job that has no members should be ended; empty if it should go on. Pure."""
    causes = [(each.task, each.error) for each in failed if _is_lasting(each.error)]
    task = _failed_too_often(task for task, _ in causes)
    if task is None:
        return ""
    error = next(error for failed_task, error in causes if failed_task == task)
    diagnosis = diagnose(error)
    return cause_of(error) if diagnosis is None else str(diagnosis)


def _is_lasting(error: str) -> bool:
    return MembersGoneError.__name__ in error or diagnose(error) is not None


def _failed_too_often(tasks: Iterable[int]) -> int | None:
    counts = Counter(tasks)
    task, failures = max(counts.items(), key=lambda one: one[1], default=(0, 0))
    return task if failures >= TASK_FAILURES_MAX else None


class TaskStatuses:
    """The attempts of tasks in Spark's store of statuses, by calls over Py4J. Safe to use from several threads."""

    def __init__(self, context: SparkContext) -> None:
        """Read the store of one session.

        Args:
            context: The session's.
        """
        self._context = context

    def failures(self, stage: int) -> int:
        """Return how many attempts of a stage's tasks have failed; 0 if Spark has forgotten the stage."""
        info = self._context.statusTracker().getStageInfo(stage)
        return 0 if info is None else info.numFailedTasks

    def failed(self, stage: int, *, count: int) -> list[FailedAttempt]:
        """Return the newest failed attempts of a stage, oldest first.

        Args:
            stage: Its id.
            count: The number of its failures.
        """
        tasks = self._tasks(stage, "FAILED", skipped=max(0, count - _TASKS_LOOKED_AT))
        return [
            FailedAttempt(
                task.index(),
                # An option of Scala's.
                str(task.errorMessage().get()) if task.errorMessage().isDefined() else "",
                executor_id=str(task.executorId()),
                host=str(task.host()),
            )
            for task in tasks
        ]

    def running_on(self, stage: int) -> set[str]:
        """Return the executors on which tasks of a stage run."""
        return {str(task.executorId()) for task in self._tasks(stage, "RUNNING", skipped=0)}

    def _tasks(self, stage: int, status: str, *, skipped: int) -> list[Any]:
        info = self._context.statusTracker().getStageInfo(stage)
        if info is None:
            return []
        # PySpark has no interface to a stage's tasks. `Any`: what Py4J returns has the JVM's types.
        jvm = jvm_of(self._context)
        api = jvm.org.apache.spark.status.api.v1
        found = self.jvm_context.statusStore().taskList(
            stage,
            info.currentAttemptId,
            skipped,
            _TASKS_LOOKED_AT,
            getattr(api.TaskSorting, "valueOf")("ID"),  # noqa: B009 - a Java name
            jvm.java.util.Collections.singletonList(getattr(api.TaskStatus, status)),
        )
        return [found.apply(index) for index in range(found.size())]

    @property
    def jvm_context(self) -> Any:
        """The JVM's own context."""
        return jvm_context_of(self._context)


class MemberFailures:
    """The failed attempts of a cluster's members; each cause is logged once. Safe to use from several threads."""

    def __init__(self, context: SparkContext, *, group: str) -> None:
        """Watch the tasks of one cluster.

        Args:
            context: The session's.
            group: Job group of the cluster's members.
        """
        self._context = context
        self._statuses = TaskStatuses(context)
        self._group = group
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        """Failures of each stage at the last look."""
        self._failed: dict[int, list[FailedAttempt]] = {}
        """The newest failed attempts of each stage."""
        self._told: set[str] = set()

    def look(self) -> None:
        """Look once, and log what has not been logged."""
        try:
            with self._lock:
                for stage in self._stages():
                    count = self._statuses.failures(stage)
                    if count != self._counts.get(stage, 0):
                        self._failed[stage] = self._statuses.failed(stage, count=count)
                        self._counts[stage] = count
                        self._tell(self._failed[stage])
        except _SESSION_STOPPED as error:
            _log.debug("cluster.task_failures_unread", cause=str(error))

    def newest(self) -> str:
        """Return the cause of the newest failure that was seen; empty without one."""
        with self._lock:
            failed = [each for stage in sorted(self._failed) for each in self._failed[stage]]
        if not failed:
            return ""
        diagnosis = diagnose(failed[-1].error)
        return cause_of(failed[-1].error) if diagnosis is None else str(diagnosis)

    def unfit(self, *, serving: Collection[str], alive: Collection[str]) -> Unfit | None:
        """Look once, and return the executors' problems if no executor can run a member.

        Args:
            serving: Executors that have an announced member.
            alive: Executors that are connected.
        """
        self.look()
        with self._lock:
            failed = [each for stage in sorted(self._failed) for each in self._failed[stage]]
            stages = tuple(self._failed)
        if not failed:
            return None
        try:
            running_on = set().union(*(self._statuses.running_on(stage) for stage in stages))
        except _SESSION_STOPPED:
            return None
        return unfit_executors(failed, running_on=running_on, serving=serving, alive=alive)

    def _stages(self) -> list[int]:
        tracker = self._context.statusTracker()
        jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group))
        return [stage for job in jobs if job is not None for stage in job.stageIds]

    def _tell(self, failed: Iterable[FailedAttempt]) -> None:
        for each in failed:
            # What a move, and each lost executor, leave behind is no failure of a member.
            if "Traceback" not in each.error and diagnose(each.error) is None:
                continue
            cause, diagnosis = cause_of(each.error), diagnose(each.error)
            if MemberReleasedError.__name__ in cause or f"{each.executor_id} {cause}" in self._told:
                continue
            if len(self._told) >= _CAUSES_TOLD_MAX:
                self._told.clear()
            self._told.add(f"{each.executor_id} {cause}")
            _log.warning(
                "cluster.member_failed",
                executor=each.executor_id,
                host=each.host,
                cause=cause if diagnosis is None else str(diagnosis),
            )


class TaskFailureWatch:
    """Looks at the session's active stages, from a background thread."""

    def __init__(self, spark: SparkSession, members: MemberFailures) -> None:
        """Watch a session; `start` starts it.

        Args:
            spark: The session.
            members: Failures of the cluster's members, which only it logs; the others' jobs may be ended.
        """
        self._context = spark.sparkContext
        self._members = members
        self._statuses = TaskStatuses(self._context)
        self._looked: dict[int, int] = {}
        """Number of failed tasks of each active stage at the last look."""
        self._told: set[int] = set()
        """Stages of which was told that a task fails again and again."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="task-failure-watch", daemon=True)

    def start(self) -> None:
        """Start to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking. Idempotent, and safe before `start`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Look once: log what fails, and end the jobs that no attempt can bring further."""
        self._members.look()
        tracker = self._context.statusTracker()
        looked: dict[int, int] = {}
        spared: set[int] | None = None
        for stage in tracker.getActiveStageIds():
            count = self._statuses.failures(stage)
            if not count:
                continue
            looked[stage] = count
            # Its failures were judged before.
            if self._looked.get(stage) == count:
                continue
            spared = self._stages_of_members() if spared is None else spared
            if stage not in spared:
                self._judge(stage, self._statuses.failed(stage, count=count))
        self._looked = looked
        self._told.intersection_update(looked)

    def _judge(self, stage: int, failed: list[FailedAttempt]) -> None:
        if reason := reason_to_end(failed):
            _log.warning("cluster.job_ended", stage=stage, cause=reason)
            self._statuses.jvm_context.cancelStage(stage, reason)
            return
        # It may still succeed, so Spark goes on; but only the executor's log has said why it does not.
        task = _failed_too_often(each.task for each in failed)
        if task is not None and stage not in self._told:
            self._told.add(stage)
            newest = [each for each in failed if each.task == task][-1]
            _log.warning(
                "cluster.task_fails_again", stage=stage, task=task, cause=cause_of(newest.error)
            )

    def _stages_of_members(self) -> set[int]:
        tracker = self._context.statusTracker()
        jobs = (tracker.getJobInfo(job) for job in spared_jobs(self._context))
        return {stage for job in jobs if job is not None for stage in job.stageIds}

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self.look()
            # The session was stopped, or the process ends; there is nothing left to end.
            except _SESSION_STOPPED as error:
                _log.debug("cluster.task_failure_watch_ended", cause=str(error))
                return
