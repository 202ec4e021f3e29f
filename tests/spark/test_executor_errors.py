"""What keeps an executor from running a member is told on the driver, within seconds, in the executor's own words."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import Services
from broadsheet.spark_bridge.errors import ExecutorUnfitError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(300)]

APPLICATION = "broadsheet.examples.flights.app:create"
SECONDS_MAX = 85.0
"""Less than what a start waits at most; alone, each takes about two seconds."""
ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""A `sitecustomize` that makes modules absent, as they are where nobody installed them."""


def _python(directory: Path, *, without: Iterable[str] = (), broadsheet: str = "") -> str:
    """Write a Python of executors that lacks modules, or has another version of Broadsheet; return its path."""
    found_first = directory / "python-path"
    found_first.mkdir()
    (found_first / "sitecustomize.py").write_text(ABSENT.format(modules=set(without)))
    if broadsheet:
        metadata = found_first / f"broadsheet-{broadsheet}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: broadsheet\nVersion: {broadsheet}\n"
        )
    python = directory / "python"
    python.write_text(
        # The daemon of the tests (`-m MODULE`) imports ours in advance; Spark's own does not.
        f'#!/bin/sh\nshift 2\nPYTHONPATH="{found_first}:$PYTHONPATH" exec "{sys.executable}" -m pyspark.daemon "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


def _told(spark: SparkSession, services: Services, application: str = APPLICATION) -> str:
    """Return what the driver is told of a cluster that cannot start, soon."""
    cluster = ShardCluster(
        spark,
        application,
        members=1,
        root=f"/test/{uuid4().hex}",
        etcd=services.etcd,
        broker=services.broker_address,
    )
    began = time.monotonic()
    with pytest.raises(ExecutorUnfitError) as raised:
        cluster.start()
    assert time.monotonic() - began < SECONDS_MAX
    text = str(raised.value)
    # Which executor, and where it is.
    assert "on executor " in text
    assert "(127.0.0.1)" in text
    return text


def test_executor_without_broadsheet_is_told_at_once(
    spark: SparkSession,
    services: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of ours is there to report it: the function that Spark ships must, and the log names it, too."""
    python = _python(tmp_path, without={"broadsheet"})
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)

    with capture_logs() as logs:
        text = _told(spark, services)

    assert "ModuleNotFoundError: No module named 'broadsheet'" in text
    assert f"runs {sys.executable}" in text
    assert (
        "Install the driver's version of broadsheet[spark] in the Python of each executor" in text
    )
    assert "docs/executor-errors.md#broadsheet-missing" in text
    assert any(
        each["event"] == "cluster.member_failed" and "No module named 'broadsheet'" in each["cause"]
        for each in logs
    )


def test_executor_with_another_broadsheet_is_told_both_versions(
    spark: SparkSession,
    services: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver pickles classes of its own version: another one must not even try to read them."""
    python = _python(tmp_path, broadsheet="9.9.9")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)

    text = _told(spark, services)

    assert "on the driver, 9.9.9 on the executor" in text
    assert "Install the driver's versions on each executor" in text
    assert "docs/executor-errors.md#versions-differ" in text


def test_executor_without_an_extra_is_told_which(
    spark: SparkSession,
    services: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`pip install broadsheet` without `[spark]` is the likely mistake; the error names what to install."""
    python = _python(tmp_path, without={"psutil"})
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)

    text = _told(spark, services)

    assert "No module named 'psutil'" in text
    assert "Install psutil (the extra `spark`) in the Python of each executor" in text


def test_executor_with_another_python_is_told_both(
    spark: SparkSession, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own check, in the executor's words, which nobody saw on the driver."""
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.9")

    text = _told(spark, services)

    assert "PYTHON_VERSION_MISMATCH" in text
    assert "3.9" in text
    assert (
        "Set PYSPARK_PYTHON (or spark.pyspark.python) to a Python of the driver's version" in text
    )


def test_executor_without_that_python_is_told_its_path(
    spark: SparkSession,
    services: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A virtual environment of the driver's machine alone: no Python starts, so Java has the error."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", f"{tmp_path}/venv/bin/python")

    text = _told(spark, services)

    assert f'Cannot run program "{tmp_path}/venv/bin/python"' in text
    assert "to a Python that each executor has" in text


def test_application_that_executors_lack_is_told_with_the_way_to_send_it(
    spark: SparkSession, services: Services
) -> None:
    """The first mistake of a new user: the module is there on the driver, and nowhere else."""
    module = f"mine_{uuid4().hex[:8]}"

    text = _told(spark, services, f"{module}.app:create")

    assert f"No module named '{module}'" in text
    assert f"Send {module} to executors: spark-submit --py-files" in text
    assert "spark.sparkContext.addPyFile" in text
    assert "docs/executor-errors.md#module-missing" in text
