"""Over Spark Connect, data sources work, and what cannot work says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.documents import REPOSITORY

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]

ROWS = 1_000


def test_connect_session_reads_and_writes_journals_and_is_refused_a_cluster() -> None:
    """A client of a Connect server publishes a DataFrame, and reads it at once and as a stream: each row is there. A
    ShardCluster needs threads and a JVM beside the driver's, so it is refused, with what to do instead.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.connect_session"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=850,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout[-4000:]
    saw = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))
    total = ROWS * (ROWS - 1) // 2
    assert saw["session"] == "pyspark.sql.connect.session"
    assert "ShardCluster needs a SparkContext" in saw["refused"]
    assert "broadsheet.spark_bridge.start_session" in saw["refused"]
    assert (saw["batch"], saw["stream"]) == (total, total)
