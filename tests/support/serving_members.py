"""Processes of `shardctl serve` without a journal broker, which a test can kill and start again."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from broadsheet.embedded.child_process import ChildProcess
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually

SHARDCTL = (sys.executable, "-P", "-m", "broadsheet.cli.main")
_NO_BROKER = "http://127.0.0.1:1"
"""Nothing listens there, so a call of a broker would fail."""


class ServingMembers:
    """Members of one application and one root."""

    def __init__(
        self, application: str, etcd: str, directory: Path, environment: Mapping[str, str]
    ) -> None:
        """Describe them; none runs yet.

        Args:
            application: As `shardctl serve` takes it.
            etcd: Its endpoint.
            directory: Of logs and state.
            environment: More of it, for each process.
        """
        self._application, self._directory = application, directory
        self._environment = {**os.environ, **environment}
        self._where = (
            *("--etcd", etcd, "--broker", _NO_BROKER, "--root", f"/served/{uuid4().hex}"),
            *("--port", "0", "--state-dir", str(directory), "--lease-ttl", "60"),
        )
        self._children: dict[str, ChildProcess] = {}

    def start(self, name: str) -> None:
        """Start a member, also the next life of a killed one."""
        serve = ("serve", self._application, "--suffix", name, "--replaces", name)
        self._children[name] = ChildProcess(
            [*SHARDCTL, *serve, *self._where],
            directory=REPOSITORY,
            log_file=self._directory / f"{name}.log",
            environment=self._environment,
        )

    async def ready(self) -> str:
        """Return the address of a member, once all have started."""
        await eventually(lambda: len(self.addresses()) >= len(self._children), timeout_seconds=60)
        return self.addresses()[0]

    def kill(self, name: str) -> None:
        """Kill -9."""
        self._children[name].kill()

    def close(self) -> None:
        """Kill all."""
        for name in self._children:
            self.kill(name)

    def addresses(self) -> list[str]:
        """Return where members serve, as their logs tell, the last life of each last."""
        logs = [self._directory / f"{name}.log" for name in self._children]
        texts = [log.read_text(errors="replace") for log in logs if log.exists()]
        lines = [line for text in texts for line in text.splitlines()]
        return [line.removeprefix("serving ") for line in lines if line.startswith("serving ")]


async def run_shardctl(*words: str, given: bytes = b"") -> bytes:
    """Run a command that succeeds, and return its output."""
    process = await asyncio.create_subprocess_exec(
        *SHARDCTL, *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(given)
    assert process.returncode == 0, words
    return output
