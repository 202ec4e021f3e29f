"""README of examples/lakehouse, command by command. Too slow for CI: `make nightly-examples`."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.dev_cluster import START_SECONDS, running_dev
from tests.support.documents import REPOSITORY, blocks_of, missing_line
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PORT = "8090"


def test_lakehouse_example_has_each_alert_once_in_both_tables(tmp_path: Path) -> None:
    """Two shards share each table, which is compacted meanwhile; the rows are those of a query over the file."""
    start, serve, run = blocks_of(REPOSITORY / "examples" / "lakehouse" / "README.md")
    assert PORT in serve.code
    assert PORT in run.script
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
            ran = dev.shell(run.script.replace(PORT, port), timeout_seconds=600.0)
        finally:
            sinks.kill()
            sinks.wait()

    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert missing_line(run.shown, ran.stdout) is None, ran.stdout


def free_port() -> str:
    """Return a port that nothing listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def serves(port: str) -> bool:
    """Tell whether something listens at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0
