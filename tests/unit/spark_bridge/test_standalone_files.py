"""Files of a standalone Spark: in one directory, which goes with it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from broadsheet.spark_bridge import standalone

_DAEMON = """\
#!/bin/sh
env > daemon-$$.env
echo Starting Spark master at spark://127.0.0.1:7 New state: ALIVE
echo Successfully registered with master
exec sleep 60
"""


def test_standalone_spark_and_its_executors_leave_no_file_outside_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed JVM leaves what it unpacked where `java.io.tmpdir` says, which is /tmp unless it is told otherwise."""
    program = tmp_path / "spark" / "bin" / "spark-class"
    program.parent.mkdir(parents=True)
    program.write_text(_DAEMON)
    program.chmod(0o755)
    monkeypatch.setattr(standalone, "spark_home_of_pip", lambda: tmp_path / "spark")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dgiven=yes")

    with standalone.StandaloneCluster(workers=1) as cluster:
        directory = cluster.directory
        told = [path.read_text().splitlines() for path in directory.glob("daemon-*.env")]

    assert len(told) == 2, "a master and a worker"
    for lines in told:
        environ = dict(line.split("=", 1) for line in lines if "=" in line)
        assert environ["SPARK_LOCAL_DIRS"] == str(directory)
        options = shlex.split(environ["JAVA_TOOL_OPTIONS"])
        assert options[0] == "-Dgiven=yes"
        assert options[-1] == f"-Djava.io.tmpdir={directory}"
    assert not directory.exists()
