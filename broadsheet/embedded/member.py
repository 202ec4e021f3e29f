"""Members as separate processes on this machine, for development, benchmarks and fault tests."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from broadsheet.embedded.broker import package_environment
from broadsheet.embedded.child_process import ChildProcess, reason_of_end
from broadsheet.runtime.errors import EmbeddedServerError

START_TIMEOUT_SECONDS = 30.0
"""A start takes about a second; a busy machine with two cores takes a few."""
STOP_TIMEOUT_SECONDS = 20.0
READY_POLL_SECONDS = 0.02
LOG_TAIL_BYTES = 2_000
_ADMIN = re.compile(rb"^admin (https?://\S+)$", re.MULTILINE)
_SERVING = re.compile(rb"^serving (https?://\S+)$", re.MULTILINE)


class EmbeddedMemberProcess:
    """`shardctl serve` as a child that cannot outlive its parent."""

    def __init__(
        self,
        application: str,
        arguments: Sequence[str],
        *,
        log_file: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start the member; `wait_until_ready` says when it serves.

        Args:
            application: `package.module:attribute`.
            arguments: Further arguments of `shardctl serve`.
            log_file: Where its output goes, appended.
            variables: Environment variables beside those of this process.
        """
        self._log_file = log_file
        self._log_begin = log_file.stat().st_size if log_file.exists() else 0
        self._child = ChildProcess(
            [
                sys.executable,
                "-P",
                "-m",
                "broadsheet.cli.main",
                "serve",
                application,
                *arguments,
            ],
            directory=Path.cwd(),
            log_file=log_file,
            environment={**package_environment(), **(variables or {})},
        )

    @property
    def pid(self) -> int:
        """Process id of the member."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a negative number is the signal that ended it."""
        return self._child.exit_code

    def address_or_none(self) -> str | None:
        """Return the member's address, `http://host:port` or `https://host:port`, if it is ready."""
        match = _SERVING.search(self._log())
        return None if match is None else match[1].decode()

    def admin_address_or_none(self) -> str | None:
        """Return the address of the member's admin port, if it is ready and has one."""
        match = _ADMIN.search(self._log())
        return None if match is None else match[1].decode()

    def wait_until_ready(self) -> str:
        """Block until the member serves, and return its address.

        Raises:
            EmbeddedServerError: it ended, or does not serve in time; the text has the end of its log.
        """
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            address = self.address_or_none()
            if address is not None:
                return address
            if self.exit_code is not None:
                break
            time.sleep(READY_POLL_SECONDS)
        tail = self._log()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        raise EmbeddedServerError("member", f"it does not serve: {reason_of_end(tail) or tail}")

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the member has ended."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """Kill -9 and wait until the member has ended. Idempotent."""
        self._child.kill()

    def stop(self) -> None:
        """Stop the member gracefully, and kill it if it does not end in time. Idempotent."""
        self._child.terminate(timeout_seconds=STOP_TIMEOUT_SECONDS)

    def _log(self) -> bytes:
        return self._log_file.read_bytes()[self._log_begin :] if self._log_file.exists() else b""
