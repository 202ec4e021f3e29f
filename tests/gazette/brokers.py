"""Real Gazette brokers and consumers for nightly tests: built once, from pinned and hashed Go modules, into the
checkout's cache.

Each broker keeps fragments below its own directory, cannot outlive the tests, and can be killed and started again at
its address.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadsheet.embedded.child_process import ChildProcess
from tests.support.eventually import eventually_sync

BUILD_TIMEOUT_SECONDS: Final = 1800.0
"""For two busy cores without a cache of Go's; four minutes on two that share the time with seven others."""
START_TIMEOUT_SECONDS: Final = 60.0
STOP_TIMEOUT_SECONDS: Final = 5.0
LEASE_SECONDS: Final = 20
"""Gazette's default: for so long a killed broker's replicas count, and new ones show stale heads after that."""

_MODULE = Path(__file__).parent / "gazette_module"
_CACHE = Path(__file__).parents[2] / ".cache" / "gazette"
_SOURCES = ("go.sum", "member/main.go")


def gazette_program() -> Path:
    """Return the `gazette` program, as `_built` does."""
    return _built("gazette", "go.gazette.dev/core/cmd/gazette")


def member_program() -> Path:
    """Return the consumer of `gazette_module/member`, as `_built` does."""
    return _built("member", "./member")


def _built(name: str, package: str) -> Path:
    """Return a program, built if it is not in the cache; needs Go 1.22 or later on PATH.

    Raises:
        RuntimeError: there is no Go, or it failed; the error has its output.
    """
    digest = hashlib.sha256(b"".join((_MODULE / each).read_bytes() for each in _SOURCES))
    program = _CACHE / digest.hexdigest()[:16] / name
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(program, package)
    return program


def _build(program: Path, package: str) -> None:
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("no program `go` on PATH: install Go 1.22 or later to build Gazette")
    built = program.with_suffix(".building")
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-o", str(built), package],
        cwd=_MODULE,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"go build ended with status {done.returncode}: {done.stderr[-2000:]}")
    built.rename(program)


@dataclass(slots=True)
class GazetteBroker:
    """One broker, which runs unless it was killed."""

    name: str
    port: int
    command: list[str]
    directory: Path
    _child: ChildProcess | None = None

    @property
    def address(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """All that it has logged."""
        return (self.directory / "log").read_text()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._child = ChildProcess(
            self.command, directory=self.directory, log_file=self.directory / "log"
        )
        eventually_sync(
            self._listens_or_ended,
            timeout_seconds=START_TIMEOUT_SECONDS,
            message=f"{self.name} serves",
        )
        if self._child.exit_code is not None:
            raise RuntimeError(f"{self.name} ended with status {self._child.exit_code}: {self.log}")

    def kill(self) -> None:
        """Kill -9; its lease lives on for a while, its files stay."""
        assert self._child is not None
        self._child.kill()
        self._child = None

    def stop(self) -> None:
        """End it, by force after a while. Idempotent."""
        if self._child is not None:
            self._child.terminate(timeout_seconds=STOP_TIMEOUT_SECONDS)
            self._child = None

    def _listens_or_ended(self) -> bool:
        assert self._child is not None
        if self._child.exit_code is not None:
            return True
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def running_brokers(
    count: int, *, etcd_endpoint: str, directory: Path
) -> Iterator[list[GazetteBroker]]:
    """Run brokers of one cluster, in one zone.

    Args:
        count: Their number.
        etcd_endpoint: host:port.
        directory: For their files: fragments of `file:///` are below `fragments`, as on a shared file system.
    """
    program = gazette_program()
    fragments = directory / "fragments"
    fragments.mkdir()
    with ExitStack() as stack:
        brokers = []
        for number, port in enumerate(_free_ports(count)):
            home = directory / f"broker-{number}"
            home.mkdir()
            command = [
                *(str(program), "serve", "--broker.host=127.0.0.1", f"--broker.port={port}"),
                *(f"--broker.id=broker-{number}", f"--broker.file-root={fragments}"),
                *(f"--etcd.address=http://{etcd_endpoint}", f"--etcd.lease={LEASE_SECONDS}s"),
                "--etcd.prefix=/gazette/tests",
            ]
            broker = GazetteBroker(f"broker-{number}", port, command, home)
            stack.callback(broker.stop)
            broker.start()
            brokers.append(broker)
        yield brokers


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
