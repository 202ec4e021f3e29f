"""Judges errors of members' tasks: which of them no further attempt on the same executor can avoid, and what to do.

Spark shows the error of a failed task on the driver as a text, and of a task that it starts again only in its store of
statuses. The texts that are recognized here are those of Python, of Spark 4 and of `broadsheet.spark_bridge.member`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from textwrap import dedent
from typing import Final

from broadsheet.runtime.libraries import EXTRAS

PAGE: Final = "docs/executor-errors.md"
"""Page that explains each kind."""
UNFIT_FAILURES_MIN: Final = 3
"""Failed attempts before executors are given up, if all of them failed."""
UNFIT_FAILURES_MAX: Final = 8
"""Failed attempts before they are given up, although some have not been tried."""
_CAUSE_CHARACTERS_MAX: Final = 1_500


class ExecutorProblem(Enum):
    """The kinds of problems of an executor; each value is the anchor of its section on `PAGE`."""

    PYTHON_MISSING = "python-missing"
    PYTHON_DIFFERS = "python-differs"
    PYSPARK_MISSING = "pyspark-missing"
    BROADSHEET_MISSING = "broadsheet-missing"
    VERSIONS_DIFFER = "versions-differ"
    EXTRA_MISSING = "extra-missing"
    DEPENDENCY_MISSING = "dependency-missing"
    MODULE_MISSING = "module-missing"
    MODULE_BROKEN = "module-broken"
    ARGUMENT_MISSING = "argument-missing"


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt of a task."""

    task: int
    """Index of the task in its stage."""
    error: str
    """Text of its error, with the traceback."""
    executor_id: str = ""
    """Spark's id of the executor."""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A problem of an executor: the executor's own words, and the remedy."""

    problem: ExecutorProblem
    cause: str
    """The error that ended the task, without the traceback."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause}. {self.remedy} ({PAGE}#{self.problem.value})"


_FRAME = re.compile(r'^\s+File "(?!<)(?P<path>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_JAVA_FRAME = re.compile(r"\n\s+at (?:[\w$]+\.)+[\w$<>]+\(")
_JAVA_CLASS = re.compile(r"^(?:org\.apache\.spark|java)\.[\w.$]+(?:Error|Exception): ?")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
"""What Spark appends to an error of its own classes."""
_WORKER_STDERR = re.compile(
    r"^Error from python worker:\n(?P<stderr>.*?)^PYTHONPATH was:$", re.MULTILINE | re.DOTALL
)
_CHAINED = "\nThe above exception was the direct cause"
_CLASS = re.compile(r"(?P<name>[A-Z]\w*)(?:[:;]|$)")
_ABSENT = re.compile(r"No module named '?(?P<module>[\w.]+)'?")
_PACKAGE = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z])")
_TRACEBACK = "Traceback (most recent call last):"
_OF_IMPORTS = frozenset(
    (
        "ApplicationLoadError",
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "SyntaxError",
    )
)
_IMPORTERS = ("spark_bridge/member/application.py", "spark_bridge/member/task.py")
"""Files of ours that import the application."""
_OTHER_PYTHON = "Set PYSPARK_PYTHON (or spark.pyspark.python) to a Python"
_ENVIRONMENT = "or send the driver's environment with spark.archives"


def cause_of(error: str) -> str:
    """Return the error's own text on one line, without the tracebacks of Python and Java around it, bounded. Pure."""
    text = _JAVA_FRAME.split(error, maxsplit=1)[0].rstrip()
    # A Python that ended before it could tell anything: Java has read its standard error.
    if worker := _WORKER_STDERR.search(text):
        text = dedent(worker["stderr"]).strip()
    lines = text.splitlines()
    # The exception's line is the first after the frames, which are indented; its text may have several lines.
    begins = [
        index
        for index in range(1, len(lines))
        if lines[index - 1].startswith("  ") or lines[index - 1].endswith(_TRACEBACK)
        if lines[index][:1] not in ("", " ")
    ]
    if begins:
        text = "\n".join(lines[begins[-1] :])
    elif worker:
        text = lines[-1]
    text = _PACKAGE.sub("", _JAVA_CLASS.sub("", _SQL_STATE.sub("", text)))
    return "; ".join(filter(None, map(str.strip, text.splitlines())))[:_CAUSE_CHARACTERS_MAX]


def diagnose(error: str) -> Diagnosis | None:
    """Return the executor's problem that an error shows; None if the error may be gone at the next attempt. Pure."""
    cause = cause_of(error)
    found = _CLASS.match(cause)
    name = found["name"] if found else ""
    if cause.startswith("Cannot run program"):
        problem, remedy = ExecutorProblem.PYTHON_MISSING, f"{_OTHER_PYTHON} that each executor has"
    elif "PYTHON_VERSION_MISMATCH" in cause:
        problem = ExecutorProblem.PYTHON_DIFFERS
        remedy = f"{_OTHER_PYTHON} of the driver's version on each executor, {_ENVIRONMENT}"
    elif name == "VersionsDifferError":
        problem = ExecutorProblem.VERSIONS_DIFFER
        remedy = f"Install the driver's versions on each executor, {_ENVIRONMENT}"
    elif name == "ArgumentMissingError":
        problem, remedy = (
            ExecutorProblem.ARGUMENT_MISSING,
            "Or pass it as ShardCluster(…, arguments={…})",
        )
    elif name == "ExtraMissingError":
        problem, remedy = ExecutorProblem.EXTRA_MISSING, "Install it in the Python of each executor"
    elif absent := _absent_module(name, cause, error):
        problem, remedy = _of_absent(absent, error)
    elif name in _OF_IMPORTS or (name == "AttributeError" and "Can't get attribute" in cause):
        problem = ExecutorProblem.MODULE_BROKEN
        remedy = (
            "The executor has the module but cannot import it, or has another version of it: send the driver's with "
            "--py-files or spark.sparkContext.addPyFile(…)"
        )
    else:
        return None
    if problem in (ExecutorProblem.MODULE_BROKEN, ExecutorProblem.MODULE_MISSING):
        cause = _with_place(cause, error)
    return Diagnosis(problem=problem, cause=cause, remedy=remedy)


def _absent_module(name: str, cause: str, error: str) -> str:
    """Return the name of the module that an import did not find; empty if that is not the error."""
    absent = _ABSENT.search(cause)
    # Texts of applications may have the words, too.
    is_of_import = name in _OF_IMPORTS or "Error from python worker" in error
    return absent["module"] if absent and is_of_import else ""


def _of_absent(module: str, error: str) -> tuple[ExecutorProblem, str]:
    top = module.partition(".")[0]
    if top in ("pyspark", "py4j"):
        return (
            ExecutorProblem.PYSPARK_MISSING,
            f"{_OTHER_PYTHON} that has PySpark on each executor, {_ENVIRONMENT}",
        )
    ours = "the driver's version of broadsheet[spark] in the Python of each executor"
    if module == "broadsheet":
        return ExecutorProblem.BROADSHEET_MISSING, f"Install {ours}, {_ENVIRONMENT}"
    if extra := EXTRAS.get(top):
        what = f"{extra[1]} (the extra `{extra[0]}`) in the Python of each executor"
        return ExecutorProblem.EXTRA_MISSING, f"Install {what}, {_ENVIRONMENT}"
    place = _place(error)
    is_missed_by_ours = (
        place is not None and "/broadsheet/" in place[0] and not place[0].endswith(_IMPORTERS)
    )
    if top == "broadsheet" or is_missed_by_ours:
        return (
            ExecutorProblem.DEPENDENCY_MISSING,
            f"Broadsheet is incomplete on the executor: install {ours}, {_ENVIRONMENT}",
        )
    return (
        ExecutorProblem.MODULE_MISSING,
        (
            f"Send {top} to executors: spark-submit --py-files, or spark.sparkContext.addPyFile(…) before the cluster "
            "is started; a package with its dependencies as an environment with spark.archives"
        ),
    )


def _place(error: str) -> tuple[str, str] | None:
    """Return path and line of the innermost frame that raised the first error; None if only imports themselves did."""
    frames = _FRAME.findall(error.partition(_CHAINED)[0])
    return next((one for one in reversed(frames) if "/importlib/" not in one[0]), None)


def _with_place(cause: str, error: str) -> str:
    place = _place(error)
    # Where the bridge itself imports the application, the place says nothing about it.
    if place is None or any(part in place[0] for part in ("spark_bridge/", "/pyspark", "/pickle")):
        return cause
    return f"{cause} (at {place[0]}, line {place[1]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """Executors that cannot run members, with their problems."""

    by_executor: Mapping[str, Diagnosis]
    """The newest problem of each executor, by its name and host."""

    def __str__(self) -> str:
        by_cause: dict[str, list[str]] = {}
        for executor, diagnosis in self.by_executor.items():
            by_cause.setdefault(str(diagnosis), []).append(executor)
        return "\n".join(f"on {_few(names)}: {text}" for text, names in by_cause.items())


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def unfit_executors(
    failed: Iterable[FailedAttempt],
    *,
    running_on: Collection[str],
    serving: Collection[str],
    alive: Collection[str],
) -> Unfit | None:
    """Return the executors' problems if no executor can run a member; None while one may. Pure.

    A single executor that cannot is no reason to give up, because Spark starts its members elsewhere.

    Args:
        failed: Failed attempts of members' tasks, oldest first.
        running_on: Executors on which members' tasks run now.
        serving: Executors that have an announced member.
        alive: Executors that are connected.
    """
    problems: dict[str, Diagnosis] = {}
    names: dict[str, str] = {}
    attempts = 0
    for each in failed:
        if (diagnosis := diagnose(each.error)) is not None:
            attempts += 1
            problems[each.executor_id] = diagnosis
            names[each.executor_id] = f"executor {each.executor_id} ({each.host})"
    # A task that runs where none has failed may become a member at any moment.
    if serving or any(executor not in problems for executor in running_on):
        return None
    untried = any(executor not in problems for executor in alive)
    if attempts < (UNFIT_FAILURES_MAX if untried else UNFIT_FAILURES_MIN):
        return None
    return Unfit(by_executor={names[one]: problem for one, problem in problems.items()})
