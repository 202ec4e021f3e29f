"""A Spark daemon under way, whose log tells when it is ready."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from consumer.embedded.child_process import ChildProcess
from spark_bridge.errors import ClusterStartError

_LOG_POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 2_000
_STOP_TIMEOUT_SECONDS = 5.0


class Daemon:
    """A child process with its log in a file; it dies with this process."""

    def __init__(
        self, name: str, command: Sequence[str], *, directory: Path, environ: Mapping[str, str]
    ) -> None:
        """Start `command`.

        Args:
            name: What errors call it, and its log file.
            command: Absolute path of a program, and its arguments.
            directory: Takes the log file; the working directory.
            environ: Its whole environment.
        """
        self._name = name
        self._log_path = directory / f"{name}.log"
        self._child = ChildProcess(
            command, directory=directory, log_file=self._log_path, environment=environ
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def wait_for_log(self, pattern: re.Pattern[str], *, timeout_seconds: float) -> re.Match[str]:
        """Wait until its log matches.

        Raises:
            ClusterStartError: it ended or the time passed before; the message has the end of its log.
        """
        waiting = Retrying(
            retry=retry_if_result(lambda found: found is None),
            wait=wait_fixed(_LOG_POLL_SECONDS),
            stop=stop_after_delay(timeout_seconds),
        )
        try:
            match = waiting(self._search_log, pattern)
        except RetryError:
            raise ClusterStartError(
                f"Spark's {self._name} was not ready within {timeout_seconds:g} s; "
                f"its log ends: {self._log_end()}"
            ) from None
        assert match is not None, "retried until found"
        return match

    def kill(self) -> None:
        """Send SIGKILL and reap it. Idempotent."""
        self._child.kill()

    def stop(self) -> None:
        """Ask it to end, and kill it if it lingers. Idempotent."""
        self._child.terminate(timeout_seconds=_STOP_TIMEOUT_SECONDS)

    def _search_log(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        # Asked before reading, so that the last words of a process that ended are seen.
        exit_code = self._child.exit_code
        match = pattern.search(self._log_path.read_text(errors="replace"))
        if match is None and exit_code is not None:
            raise ClusterStartError(
                f"Spark's {self._name} ended with {exit_code}; its log ends: {self._log_end()}"
            )
        return match

    def _log_end(self) -> str:
        return self._log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
