"""A real moto server for tests: AWS' DynamoDB and Kinesis in one process of this machine, all in memory.

It answers over HTTP as AWS does, cannot outlive the tests, and never throttles or loses answers: tests that need that
put a fault between.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadsheet.embedded.child_process import ChildProcess
from tests.support.eventually import eventually_sync

if TYPE_CHECKING:
    from botocore.config import Config

_LISTENS = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 5.0
REGION = "us-east-1"


@contextmanager
def running_moto(*program: str) -> Iterator[str]:
    """Run a server on a free port, and yield its URL; `program` is what Python runs in place of moto's own."""
    with tempfile.TemporaryDirectory(prefix="broadsheet-moto-") as directory:
        log_file = Path(directory, "log")
        server = ChildProcess(
            [sys.executable, *(program or ("-m", "moto.server")), "-H", "127.0.0.1", "-p", "0"],
            directory=Path(directory),
            log_file=log_file,
        )
        try:
            yield _url_of(server, log_file)
        finally:
            server.terminate(timeout_seconds=STOP_TIMEOUT_SECONDS)


def aws_settings(endpoint: str) -> dict[str, Any]:  # Any: arguments of different types.
    """Return what any client of boto3 is opened with, e.g. `boto3.client("kinesis", **aws_settings(url))`."""
    return {
        "endpoint_url": endpoint,
        "region_name": REGION,
        # Not secrets: moto takes any.
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "config": quick_config(),
    }


def quick_config() -> Config:
    """Return settings of a client that fails soon, and does not try again by itself."""
    from botocore.config import Config

    return Config(
        connect_timeout=2,
        read_timeout=20,
        retries={"total_max_attempts": 1},
        max_pool_connections=16,
    )


def _url_of(server: ChildProcess, log_file: Path) -> str:
    """Wait until the server says where it listens."""

    def listens_or_ended() -> bool:
        return server.exit_code is not None or _LISTENS.search(log_file.read_text()) is not None

    eventually_sync(listens_or_ended, timeout_seconds=START_TIMEOUT_SECONDS, message="moto serves")
    log = log_file.read_text()
    listens = _LISTENS.search(log)
    if listens is None:
        raise RuntimeError(f"moto ended with status {server.exit_code}: {log.strip()}")
    return listens[1]
