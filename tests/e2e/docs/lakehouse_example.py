"""README of examples/lakehouse, command by command. Too slow for CI: `make nightly-examples`."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from bench.vs_structured_streaming.maven import Artifact
from tests.support.dev_cluster import START_SECONDS, running_dev
from tests.support.documents import REPOSITORY, Block, blocks_of, missing_line
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2_000)]
PORT = "8090"


COMPACT = "python -m broadsheet.examples.lakehouse.compact --rounds 5\n"
PUBLISH = "python -m broadsheet.examples.lakehouse.publish --days 31 --pause 0.25"
SPARK = REPOSITORY / ".cache" / "pyspark-4.1"
"""As `make nightly-examples` installs it."""
ALERTS = 612


def test_lakehouse_example_has_each_alert_once_in_both_tables(tmp_path: Path) -> None:
    """Two shards share each table, which is compacted meanwhile; the rows are those of a query over the file."""
    _, _, run, _ = example()

    output = run_example(tmp_path, run.script)

    assert missing_line(run.shown, output) is None, output


def test_lakehouse_example_has_each_alert_once_in_tables_that_spark_compacts(
    tmp_path: Path,
) -> None:
    """Spark joins files of both tables while the shards append to them, and reads as many rows as there are alerts."""
    _, _, run, spark = example()
    job = spark.script.replace("spark-submit", f"env {of_spark()} spark-submit", 1)
    job = re.sub(r"--packages (\S+)", lambda found: f"--jars {jars_of(found[1])}", job)
    assert COMPACT in run.script
    assert PUBLISH in run.script
    # Some days before Spark starts, the others once it has compacted a table, and goes on to do so.
    later = "until grep -qs OPTIMIZE $LAKE/delta/_delta_log/*.json; do sleep 0.2; done"
    first, others = PUBLISH.replace("31", "10"), PUBLISH.replace("31", "31 --skip 10")
    published = f"{first}\n({later}; {others}) &\n"
    script = run.script.replace(f"{PUBLISH} &\n", published).replace(COMPACT, job)
    # Once everything is there, which the comparison waits for.
    script += job.replace("--rounds 5", "--rounds 0")

    output = run_example(tmp_path, script)

    assert missing_line(spark.shown, output) is None, output
    assert missing_line(run.shown[1:], output) is None, output
    assert output.count(f"as Spark reads it: {ALERTS} alerts of {ALERTS} messages") >= 2, output
    rounds = re.findall(r"of Spark: Delta (\d+) files into (\d+), Iceberg (\d+) into (\d+)", output)
    went = [sum(int(each[column]) for each in rounds) for column in range(4)]
    # Many became few, in both.
    assert went[0] > went[1] > 0, output
    assert went[2] > went[3] > 0, output
    history = DeltaTable(str(tmp_path / "lakehouse" / "delta")).history()
    operations = [each["operation"] for each in reversed(history)]
    behind = operations[operations.index("OPTIMIZE") :]
    # Shards and compactions took turns.
    assert "OPTIMIZE" in behind[behind.index("WRITE") :], operations


def example() -> list[Block]:
    """Return the blocks: what is started, what is run, and the job of Spark."""
    return blocks_of(REPOSITORY / "examples" / "lakehouse" / "README.md")


def of_spark() -> str:
    """Return variables by which Spark 4.1 runs, and not that of this environment."""
    assert (SPARK / ".ready").exists(), "make nightly-examples installs it"
    home = SPARK / "pyspark"
    path = os.pathsep.join(
        [str(home / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    return f"PATH={path} SPARK_HOME={home} PYTHONPATH={SPARK} PYSPARK_PYTHON={sys.executable}"


def jars_of(packages: str) -> str:
    """Return the jars of Maven's packages, which are kept from one run to the next."""
    found = [Artifact(*each.split(":")).class_path() for each in packages.split(",")]
    return ",".join(str(jar) for jars in found for jar in jars)


def run_example(tmp_path: Path, script: str) -> str:
    """Run a script beside the example's cluster; return its output."""
    start, serve, *_ = example()
    assert PORT in serve.code
    assert PORT in script
    port = free_port()
    with running_dev(start.code, tmp_path) as dev:
        etcd = re.search(r"^etcd +(\S+)", dev.output, re.MULTILINE)
        assert etcd, dev.output
        sinks = subprocess.Popen(
            ["bash", "-c", "exec " + serve.code.replace(PORT, port)],
            cwd=tmp_path,
            env={**dev.environment, "ETCD_ADDRESS": etcd[1]},
        )
        try:
            eventually_sync(lambda: serves(port), timeout_seconds=START_SECONDS)
            ran = dev.shell(script.replace(PORT, port), timeout_seconds=1_500.0)
        finally:
            sinks.kill()
            sinks.wait()

    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def free_port() -> str:
    """Return a port that nothing listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def serves(port: str) -> bool:
    """Tell whether something listens at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0
