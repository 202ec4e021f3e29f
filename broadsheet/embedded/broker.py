"""An embedded journal broker: on the caller's event loop, or as one process on this machine.

Both keep one copy of the data, in one directory, with the chosen durability; they run the same code.
"""

from __future__ import annotations

import os
import re
import site
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import broadsheet
from broadsheet.broker.config import BrokerConfig, Durability
from broadsheet.broker.server import Broker
from broadsheet.embedded.child_process import ChildProcess, reason_of_end
from broadsheet.runtime.errors import EmbeddedServerError
from broadsheet.runtime.process_directory import ProcessDirectory
from broadsheet.security.tls import TlsConfig
from broadsheet.security.tls_options import TLS_VARIABLES, tls_arguments

START_TIMEOUT_SECONDS = 30.0
"""A start takes about half a second; a busy machine with two cores takes a few."""
STOP_TIMEOUT_SECONDS = 20.0
"""More than the broker's own bound of a graceful stop."""
READY_POLL_SECONDS = 0.02
LOG_TAIL_BYTES = 2_000
_ADMIN = re.compile(rb"^admin (https?://\S+)$", re.MULTILINE)
_LISTENING = re.compile(rb"^listening (https?://\S+)$", re.MULTILINE)


class EmbeddedBroker:
    """A broker on this event loop. An async context manager."""

    def __init__(
        self,
        data_dir: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        durability: str = "always",
        config: BrokerConfig | None = None,
    ) -> None:
        """Configure the broker; it starts when the block is entered.

        Args:
            data_dir: Where it keeps its data; made if missing.
            host: Address to listen on.
            port: Port to listen on; zero is any.
            durability: `always`, `interval=<ms>` or `off`.
            config: All settings; the other arguments are ignored then.
        """
        self._config = config or BrokerConfig(
            data_dir=data_dir, host=host, port=port, durability=Durability.parse(durability)
        )
        self._broker: Broker | None = None

    @property
    def address(self) -> str:
        """URL of the broker: `http://HOST:PORT`, or `https://`."""
        return self.broker.address

    @property
    def broker(self) -> Broker:
        """The running broker."""
        if self._broker is None:
            raise EmbeddedServerError("broker", "it is not running: enter its block first")
        return self._broker

    async def __aenter__(self) -> Self:
        broker = Broker(self._config)
        await broker.__aenter__()
        self._broker = broker
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop gracefully. Idempotent."""
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()


class EmbeddedBrokerProcess:
    """Starts, stops, kills and restarts a broker process, without an event loop. A context manager."""

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        durability: str = "always",
        port: int = 0,
        tls: TlsConfig | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        """Configure the broker; it starts with `start`.

        Args:
            data_dir: Where it keeps its data; a temporary directory, removed by `stop`, if None.
            durability: `always`, `interval=<ms>` or `off`.
            port: Of 127.0.0.1; zero is any at the first start, and the same at each restart.
            tls: Files for TLS, which the environment of this process does not set.
            arguments: Further arguments of `python -m broadsheet.broker`.
        """
        self._durability = str(Durability.parse(durability))
        self._port = port
        self._tls = tls
        self._arguments = tuple(arguments)
        self._temporary: ProcessDirectory | None = None
        self._data_dir = data_dir
        self._child: ChildProcess | None = None
        self._log_begin = 0
        """Bytes of the log that former lives wrote."""
        self._address = ""
        self.admin_address = ""
        """URL of its admin port, if it has one."""

    @property
    def address(self) -> str:
        """URL of the broker: `http://127.0.0.1:PORT`, or `https://`; the same after a restart."""
        if not self._address:
            raise EmbeddedServerError("broker", "it has no address before it is started")
        return self._address

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        if self._child is None:
            raise EmbeddedServerError("broker", "it is not running")
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Report whether the process runs."""
        return self._child is not None and self._child.exit_code is None

    def start(self) -> None:
        """Start the broker and wait until it serves.

        Raises:
            EmbeddedServerError: it ended, or does not serve in time; the text has the end of its log.
        """
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process; `wait_until_ready` says when it serves.

        Raises:
            EmbeddedServerError: it runs already.
        """
        if self.is_running:
            raise EmbeddedServerError("broker", "it is already running")
        directory = self._directory()
        log_file = directory.with_name(f"{directory.name}.log")
        self._log_begin = log_file.stat().st_size if log_file.exists() else 0
        command = [sys.executable, "-P", "-m", "broadsheet.broker"]
        command += ["--data-dir", str(directory), "--listen", f"127.0.0.1:{self._port}"]
        command += ["--durability", self._durability, *tls_arguments(self._tls)]
        command += self._arguments
        self._child = ChildProcess(
            command,
            directory=directory.parent,
            log_file=log_file,
            # Clients of this broker are told its address alone, so that only the caller may ask for TLS. Settings of
            # another broker, such as its admin port or its keys, are not for this one.
            environment={
                name: value
                for name, value in package_environment().items()
                if name not in TLS_VARIABLES and not name.startswith("BROKER_")
            },
        )

    def wait_until_ready(self) -> None:
        """Block until the launched broker serves.

        Raises:
            EmbeddedServerError: it ended, or does not serve in time; the text has the end of its log.
        """
        assert self._child is not None, "it is launched"
        directory = self._directory()
        log_file = directory.with_name(f"{directory.name}.log")
        self._address = self._address_of(self._child, log_file, self._log_begin)
        self._port = int(self._address.rpartition(":")[2])

    def stop(self) -> None:
        """Stop gracefully, and remove the data if the directory is temporary. Idempotent."""
        if self._child is not None:
            self._child.terminate(timeout_seconds=STOP_TIMEOUT_SECONDS)
            self._child = None
        if self._temporary is not None:
            self._temporary.close()
            self._temporary = self._data_dir = None

    def kill(self) -> None:
        """Kill -9, keep the data. Idempotent."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def restart(self) -> None:
        """Kill if running, then start on the same data at the same address."""
        self.kill()
        self.start()

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
        if self._data_dir is None:
            self._temporary = ProcessDirectory("broadsheet-broker-")
            self._data_dir = self._temporary.path / "data"
        self._data_dir.parent.mkdir(parents=True, exist_ok=True)
        return self._data_dir.absolute()

    def _address_of(self, child: ChildProcess, log_file: Path, log_begin: int) -> str:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            log = log_file.read_bytes()[log_begin:] if log_file.exists() else b""
            match = _LISTENING.search(log)
            if match is not None:
                self._note_admin(log)
                return match[1].decode()
            if child.exit_code is not None:
                break
            time.sleep(READY_POLL_SECONDS)
        child.kill()
        self._child = None
        log = log_file.read_bytes()[log_begin:]
        tail = log[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        told = reason_of_end(tail) or tail
        raise EmbeddedServerError("broker", f"it did not start on {self._directory()}: {told}")

    def _note_admin(self, log: bytes) -> None:
        match = _ADMIN.search(log)
        if match is not None:
            self.admin_address = match[1].decode()


def package_environment() -> dict[str, str]:
    """Return this process's environment, changed so that a child imports the same copy of this package."""
    here = str(Path(broadsheet.__file__).resolve().parents[1])
    environment = dict(os.environ)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Installed packages are found anyway; in PYTHONPATH they would come before the standard library.
    if here not in {*site.getsitepackages(), site.getusersitepackages()}:
        paths.insert(0, here)
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
