"""Ends jobs whose tasks fail again and again because no member answers them.

A session that hosts members lets a task fail 100,000 times, because members are tasks that must be started again. The
other jobs of the session would stand still for weeks over an error that Spark shows nowhere on the driver.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from broadsheet.spark_bridge.errors import MembersGoneError

TASK_FAILURES_MAX: Final = 4
"""Failures of one task, for want of members, that end its job: Spark's own default of `spark.task.maxFailures`."""
LOOK_SECONDS: Final = 2.0
"""Time between two looks at the active stages."""
_TASKS_LOOKED_AT: Final = 200
"""Most failed attempts of a stage that are looked at, newest first."""
_CAUSE_CHARACTERS_MAX: Final = 1_000

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt of a task."""

    task: int
    """Index of the task in its stage."""
    error: str
    """Text of its error, with the traceback."""


def reason_to_end(failed: Iterable[FailedAttempt]) -> str:
    """Return the error for which a stage should be ended; empty if it should go on. Pure."""
    name = MembersGoneError.__name__
    causes = [(each.task, each.error) for each in failed if name in each.error]
    counts = Counter(task for task, _ in causes)
    if not counts or max(counts.values()) < TASK_FAILURES_MAX:
        return ""
    text = causes[0][1]
    # From the error on: the traceback before it is Spark's.
    return text[text.rindex(name) :].split("\n", 1)[0][:_CAUSE_CHARACTERS_MAX]


class TaskFailureWatch:
    """Looks at the session's active stages, from a background thread."""

    def __init__(self, spark: SparkSession) -> None:
        """Watch a session; `start` starts it."""
        self._context = spark.sparkContext
        self._looked: dict[int, int] = {}
        """Number of failed tasks of each active stage at the last look."""
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
        """Look once, and end the stages that fail for want of members."""
        status = self._context.statusTracker()
        looked: dict[int, int] = {}
        for stage in status.getActiveStageIds():
            info = status.getStageInfo(stage)
            if info is None or not info.numFailedTasks:
                continue
            looked[stage] = info.numFailedTasks
            # Its failures were judged before.
            if self._looked.get(stage) == info.numFailedTasks:
                continue
            if reason := reason_to_end(self._failed(stage, info.currentAttemptId)):
                _log.warning("cluster.job_ended", stage=stage, cause=reason)
                self._jvm_context.cancelStage(stage, reason)
        self._looked = looked

    @property
    def _jvm_context(self) -> Any:
        # PySpark has no interface to a stage's failed tasks.
        return self._context._jsc.sc()  # noqa: SLF001 - see above

    def _failed(self, stage: int, attempt: int) -> list[FailedAttempt]:
        jvm: Any = self._context._jvm  # noqa: SLF001 - see above
        api = jvm.org.apache.spark.status.api.v1
        found = self._jvm_context.statusStore().taskList(
            stage,
            attempt,
            0,
            _TASKS_LOOKED_AT,
            getattr(api.TaskSorting, "valueOf")("DECREASING_RUNTIME"),  # noqa: B009 - a Java name
            jvm.java.util.Collections.singletonList(api.TaskStatus.FAILED),
        )
        tasks = (found.apply(index) for index in range(found.size()))
        return [FailedAttempt(task.index(), str(task.errorMessage())) for task in tasks]

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self.look()
            # The session was stopped, or the process ends; there is nothing left to end.
            except (Py4JError, OSError, AttributeError) as error:
                _log.debug("cluster.task_failure_watch_ended", cause=str(error))
                return
