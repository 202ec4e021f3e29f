"""Errors of executors, as Spark gives them to the driver, and what is made of them."""

from __future__ import annotations

import pytest

from broadsheet.spark_bridge.cluster.executor_problems import (
    PAGE,
    UNFIT_FAILURES_MAX,
    ExecutorProblem,
    FailedAttempt,
    cause_of,
    diagnose,
    unfit_executors,
)
from tests.support.documents import REPOSITORY

JAVA = "\n\n\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:561)"
RAISED = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
FROZEN = '  File "<frozen importlib._bootstrap>", line 1204, in _gcd_import\n'


def _raised(last: str, *, path: str = "/spark/jobs/app.py") -> str:
    return f'{RAISED}  File "{path}", line 7, in <module>\n    import x\n{FROZEN}{last}{JAVA}'


STDERR = (
    "org.apache.spark.SparkException: \nError from python worker:\n"
    "  /usr/bin/python3: Error while finding module specification for 'pyspark.daemon' "
    "(ModuleNotFoundError: No module named 'pyspark')\nPYTHONPATH was:\n  /a.zip\n"
    f"org.apache.spark.SparkException: EOFException occurred{JAVA}"
)
NO_PYTHON = f'java.io.IOException: Cannot run program "/venv/python": Exec failed, error: 2 (No such file){JAVA}'
DIFFERENT = _raised(
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
    "version: 3.12 than that in driver: 3.11"
)
CHAINED = (
    f'{RAISED}  File "/usr/lib/python3.11/importlib/__init__.py", line 126, in import_module\n    return x\n'
    '  File "/app/mine.py", line 3, in <module>\n    import helpers\n'
    "ModuleNotFoundError: No module named 'helpers'\n\n"
    "The above exception was the direct cause of the following exception:\n\n"
    'Traceback (most recent call last):\n  File "/s/broadsheet/spark_bridge/member/application.py", line 66, in x\n'
    "    raise ApplicationLoadError(\n"
    "broadsheet.spark_bridge.errors.ApplicationLoadError: application 'mine:create' cannot be imported: "
    f"ModuleNotFoundError: No module named 'helpers'\n SQLSTATE: 38000{JAVA}"
)


@pytest.mark.parametrize(
    ("error", "problem", "cause", "remedy"),
    [
        (
            NO_PYTHON,
            ExecutorProblem.PYTHON_MISSING,
            'Cannot run program "/venv/python"',
            "PYSPARK_PYTHON",
        ),
        (
            DIFFERENT,
            ExecutorProblem.PYTHON_DIFFERS,
            "3.12 than that in driver: 3.11",
            "spark.archives",
        ),
        (STDERR, ExecutorProblem.PYSPARK_MISSING, "No module named 'pyspark'", "PYSPARK_PYTHON"),
        (
            _raised("a.VersionsDifferError: Broadsheet 1 on the driver, 2 on the executor"),
            ExecutorProblem.VERSIONS_DIFFER,
            "2 on the executor",
            "Install the driver's versions",
        ),
        (
            _raised("ModuleNotFoundError: No module named 'broadsheet'\nthe executor has Python 3"),
            ExecutorProblem.BROADSHEET_MISSING,
            "No module named 'broadsheet'; the executor has Python 3",
            "broadsheet[spark]",
        ),
        (
            _raised("ModuleNotFoundError: No module named 'rocksdict'"),
            ExecutorProblem.EXTRA_MISSING,
            "rocksdict",
            "Install rocksdict (the extra `rocksdb`) in the Python",
        ),
        (
            _raised("a.ExtraMissingError: b.C needs boto3 (the extra `aws`): pip install x"),
            ExecutorProblem.EXTRA_MISSING,
            "needs boto3",
            "in the Python of each executor",
        ),
        (
            _raised(
                "ModuleNotFoundError: No module named 'structlog'",
                path="/venv/lib/python3.11/site-packages/broadsheet/runtime/logs.py",
            ),
            ExecutorProblem.DEPENDENCY_MISSING,
            "structlog",
            "Broadsheet is incomplete",
        ),
        (
            CHAINED,
            ExecutorProblem.MODULE_MISSING,
            "(at /app/mine.py, line 3)",
            "Send helpers to executors: spark-submit --py-files",
        ),
        (
            _raised("AttributeError: Can't get attribute 'create' on <module 'app'>"),
            ExecutorProblem.MODULE_BROKEN,
            "Can't get attribute 'create'",
            "another version of it",
        ),
        (
            _raised("ImportError: cannot import name 'a' from 'b'"),
            ExecutorProblem.MODULE_BROKEN,
            "cannot import name 'a' from 'b' (at /spark/jobs/app.py, line 7)",
            "addPyFile",
        ),
        (
            _raised("broadsheet.spark_bridge.errors.ArgumentMissingError: was not given 'x'"),
            ExecutorProblem.ARGUMENT_MISSING,
            "was not given 'x'",
            "arguments=",
        ),
    ],
)
def test_executor_error_known_kind_gives_cause_and_remedy(
    error: str, problem: ExecutorProblem, cause: str, remedy: str
) -> None:
    """Each kind is told in the executor's own words, without frames of Java, with the section that explains it."""
    diagnosis = diagnose(error)

    assert diagnosis is not None
    assert diagnosis.problem is problem
    assert cause in diagnosis.cause
    assert remedy in diagnosis.remedy
    assert "PythonRunner" not in str(diagnosis)
    assert f"docs/executor-errors.md#{problem.value}" in str(diagnosis)


@pytest.mark.parametrize(
    "error",
    [
        _raised("ValueError: No module named 'x' in the catalogue, ImportError expected"),
        _raised("sqlalchemy.exc.OperationalError: connection refused"),
        _raised("AttributeError: 'NoneType' object has no attribute 'x'"),
        "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Worker lost",
        f"org.apache.spark.SparkException: Python worker exited unexpectedly (crashed){JAVA}",
        "",
    ],
)
def test_executor_error_that_another_attempt_may_avoid_is_no_problem_of_the_executor(
    error: str,
) -> None:
    """A database that is away, a lost executor, an application's own text: Spark goes on with these."""
    assert diagnose(error) is None


def test_cause_of_an_error_of_many_lines_keeps_them_on_one_and_is_bounded() -> None:
    """A log line and an exception take it as it is; a text of megabytes must not get that far."""
    assert cause_of(_raised("ValueError: a\nb")) == "ValueError: a; b"
    assert len(cause_of(_raised("ValueError: " + "x" * 1_000_000))) < 2_000


ABSENT = _raised("ModuleNotFoundError: No module named 'mine'")


def _failed(executor_id: str, error: str = ABSENT) -> FailedAttempt:
    return FailedAttempt(0, error, executor_id=executor_id, host=f"host-{executor_id}")


def test_executors_that_all_lack_a_module_are_given_up_soon() -> None:
    """Three failures are enough if each executor failed; each cause stands once, with the executors that have it."""
    unfit = unfit_executors(
        [_failed("1"), _failed("2"), _failed("1")], running_on=["1"], serving=[], alive=["1", "2"]
    )

    assert str(unfit).startswith("on executor 1 (host-1), executor 2 (host-2): ModuleNotFoundError")
    assert str(unfit).count("No module named") == 1


@pytest.mark.parametrize(
    ("running_on", "serving", "failures"),
    [
        (["2"], [], 100),  # it may become a member at any moment
        ([], ["2"], 100),
        (["1"], [], UNFIT_FAILURES_MAX - 1),  # executor 2 has not been tried
    ],
)
def test_executors_of_which_one_may_be_fit_are_not_given_up(
    running_on: list[str], serving: list[str], failures: int
) -> None:
    """One executor that lacks a module is no reason to give a cluster up: Spark starts its members elsewhere."""
    failed = [_failed("1")] * failures

    assert unfit_executors(failed, running_on=running_on, serving=serving, alive=["1", "2"]) is None


def test_executors_that_spark_never_tries_do_not_keep_others_from_being_given_up() -> None:
    """Slots of the other executors may be taken for weeks."""
    failed = [_failed("1")] * UNFIT_FAILURES_MAX

    assert unfit_executors(failed, running_on=[], serving=[], alive=["1", "2"]) is not None


def test_errors_that_may_pass_never_give_executors_up() -> None:
    """A database that is away for the first minute was reason to wait before, and is so still."""
    failed = [_failed("1", _raised("OSError: away"))] * 50

    assert unfit_executors(failed, running_on=[], serving=[], alive=["1"]) is None


def test_each_problem_has_its_section_of_the_page() -> None:
    """The error leads there, so the anchor must be that of a heading."""
    headings = [
        line.removeprefix("## ").lower().replace(" ", "-")
        for line in (REPOSITORY / PAGE).read_text().splitlines()
        if line.startswith("## ")
    ]

    assert sorted(each.value for each in ExecutorProblem) == sorted(headings[1:])
