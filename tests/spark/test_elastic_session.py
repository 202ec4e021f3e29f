"""Dynamic allocation, a worker whose machine is about to go, and executors of members' own, in one session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]


def test_members_make_spark_ask_for_executors_and_survive_its_taking_them(tmp_path: Path) -> None:
    """Waiting members make dynamic allocation start executors, leaving ones let it end them; it never takes one with a
    member. SIGPWR to a standalone worker, which is how a cluster manager announces the end of a machine, moves its
    shard to another worker long before any lease ends. A profile with executor resources keeps DataFrames away.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.elastic_session", str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout[-4000:]
    steps = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"step"')]
    assert steps == [
        {"step": "size", "executors": [1, 3, 1], "stays": True, "pools": ["default", "members"]},
        {"step": "apart", "shared": False, "dataframe_tasks": 4},
        {"step": "worker", "serves": True, "moved": True},
    ]
