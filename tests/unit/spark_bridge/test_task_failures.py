"""The decision to end a job whose tasks find no member."""

from __future__ import annotations

from broadsheet.spark_bridge.cluster.executor_problems import FailedAttempt
from broadsheet.spark_bridge.cluster.task_failures import (
    TASK_FAILURES_MAX,
    reason_to_end,
)

GONE = (
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    "broadsheet.spark_bridge.errors.MembersGoneError: /a.B/Get of shard s-0 was not answered within 30 s\n"
    "\n\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:561)"
)
ABSENT = GONE.replace("broadsheet.spark_bridge.errors.MembersGoneError: /a.B/Get", "%s") % (
    "ModuleNotFoundError: No module named 'mine'"
)


def test_job_ends_once_one_task_found_no_member_often_enough() -> None:
    """As many failures of one task end it, with the error's own line; of several tasks, or other errors, do not.

    Why: the stage goes on while a cluster restarts, and must not go on for weeks.
    """
    enough = [FailedAttempt(3, GONE)] * TASK_FAILURES_MAX

    assert reason_to_end([FailedAttempt(3, ABSENT)] * TASK_FAILURES_MAX).startswith(
        "ModuleNotFoundError: No module named 'mine'"
    )
    assert reason_to_end(enough) == (
        "MembersGoneError: /a.B/Get of shard s-0 was not answered within 30 s"
    )
    assert reason_to_end(enough[1:]) == ""
    assert reason_to_end([FailedAttempt(task, GONE) for task in range(9)]) == ""
    assert reason_to_end([FailedAttempt(0, "java.io.IOException: gone")] * 100) == ""
    assert reason_to_end([*enough[1:], FailedAttempt(3, "ValueError: x")]) == ""
    assert reason_to_end([]) == ""
