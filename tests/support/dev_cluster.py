"""`shardctl dev` as a process, on ports of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually_sync

START_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class DevProcess:
    """A running cluster, and how a shell in the same directory uses it."""

    directory: Path
    environment: Mapping[str, str]
    output: str
    """What it printed when it was ready."""
    cluster: Mapping[str, str]
    """The part of the environment that leads to it."""
    pid: int

    def shell(
        self, script: str, *, timeout_seconds: float = START_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a script that may call `shardctl`."""
        return subprocess.run(
            ["bash", "-euc", script],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )


@contextmanager
def running_dev(
    command: str, directory: Path, *, links: Sequence[str] = ("examples", "LICENSE")
) -> Iterator[DevProcess]:
    """Run a `shardctl dev` command line in a directory that has links to the repository; it must end well."""
    for name in links:
        (directory / name).symlink_to(REPOSITORY / name)
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": search_path, "CONSUMER_PORT": "0", "BROKER_PORT": "0"}
    log = directory / "output"
    with log.open("w") as stream:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=directory,
            # What is set for other clusters must not reach this one, which speaks clear text.
            env=environment | {"BROADSHEET_TLS_CA": "/nowhere/ca.pem"},
            stdout=stream,
            stderr=stream,
        )
    try:
        eventually_sync(
            lambda: "\ntry " in log.read_text() or process.poll() is not None,
            timeout_seconds=START_SECONDS,
        )
        text = log.read_text()
        addresses = re.search(r"--address (\S+) --broker (\S+)", text)
        assert addresses, text
        cluster = {"CONSUMER_ADDRESS": addresses[1], "BROKER_ADDRESS": addresses[2]}
        yield DevProcess(directory, environment | cluster, text, cluster, process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=START_SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
