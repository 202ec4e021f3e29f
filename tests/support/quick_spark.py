"""How the tests' JVMs and Python workers start sooner: many live for seconds, on few processors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.spark_classes import archived_classes, conf_dir

_JAVA_OPTIONS = (
    # What runs for seconds is not worth the compiler that takes its time, nor threads that collect garbage.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # Figures for tools that are not attached, in a file of /tmp that a killed JVM leaves.
    "-XX:-UsePerfData",
)
_SPARK_DEFAULTS = {
    # Pages without readers cost each driver a second.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Each task of a session that hosts members is a process of its own; it begins with its modules imported.
    "spark.python.daemon.module": "tests.support.warm_daemon",
    # A busy machine schedules a worker, or the driver, later than the 15 seconds that are the default.
    "spark.python.authenticate.socketTimeout": "240s",
}
"""What every Spark of the tests is told, unless it says otherwise itself.

As properties of its JVMs, because an archive of classes wants a directory of settings that is empty.
"""
_VARIABLE = "JAVA_TOOL_OPTIONS"


@contextmanager
def quick_spark() -> Iterator[None]:
    """Let every Spark that is started within the block, by whatever program, start quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(conf_dir()))
        given = os.environ.get(_VARIABLE, "")
        # A JVM does not know TMPDIR. What a killed one leaves is removed with the session's directory.
        temporary = tempfile.gettempdir()
        patch.setenv("SPARK_LOCAL_DIRS", temporary)
        options = " ".join([given, *_JAVA_OPTIONS, f"-Djava.io.tmpdir={temporary}"]).strip()
        patch.setenv(_VARIABLE, options)
        # Every JVM of the archive's Java reads Spark's classes checked and laid out; others pass it over.
        options = " ".join([options, *archived_classes()])
        patch.setenv(_VARIABLE, " ".join([options, *_defaults()]))
        yield


def with_defaults_of_spark(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a program whose Spark is told nothing by the tests, and starts as quickly."""
    told = set(_defaults())
    options = environment.get(_VARIABLE, "").split()
    return {**environment, _VARIABLE: " ".join(each for each in options if each not in told)}


def _defaults() -> list[str]:
    return [f"-D{name}={value}" for name, value in _SPARK_DEFAULTS.items()]
