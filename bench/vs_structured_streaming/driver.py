"""A Spark driver as a process of its own, which says what happens in lines of JSON; it can be killed with its JVM."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from broadsheet.embedded.child_process import ChildProcess

_REPOSITORY = Path(__file__).resolve().parents[2]
_POLL_SECONDS = 0.005
"""Records carry their times, so it may be longer than what is measured."""
START_SECONDS_MAX = 300.0


class Driver:
    """Runs `python -m module plan`. A context manager that kills it."""

    def __init__(
        self,
        module: str,
        plan: msgspec.Struct,
        *,
        log_file: Path,
        on_record: Callable[[dict[str, Any]], None],
    ) -> None:
        """Describe the process.

        Args:
            module: What to run; it prints `{"started": pid, …}` once it is up.
            plan: Its argument, as JSON.
            log_file: Where its output goes; what else it says is in the errors of this class.
            on_record: Called on a thread of its own with every later record.
        """
        self._module = module
        self._plan = msgspec.json.encode(plan).decode()
        self._log_file = log_file
        self._on_record = on_record
        self._started: dict[str, Any] | None = None
        self._up = threading.Event()
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the process; do not wait until it is up."""
        search_path = os.pathsep.join(
            filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")])
        )
        self._log_file.touch()
        self._child = ChildProcess(
            [sys.executable, "-m", self._module, self._plan],
            directory=self._log_file.parent,
            log_file=self._log_file,
            environment=os.environ | {"PYTHONPATH": search_path},
        )
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def wait_until_started(self) -> dict[str, Any]:
        """Return the record that it printed when it was up.

        Raises:
            RuntimeError: it ended or is not up in time.
        """
        self._up.wait(START_SECONDS_MAX)
        if self._started is None:
            raise RuntimeError(
                f"{self._module} did not start: {self._log_file.read_text()[-4000:]}"
            )
        return self._started

    def kill(self) -> None:
        """Kill the process and its JVM with SIGKILL. Idempotent."""
        if self._child.exit_code is None:
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.kill()
        self._ended.set()
        self._follower.join()

    def _follow(self) -> None:
        with self._log_file.open("rb") as log:
            pending = b""
            while True:
                ended = self._ended.is_set() or self._child.exit_code is not None
                pending += log.read()
                *lines, pending = pending.replace(b"\r", b"\n").split(b"\n")
                for line in lines:
                    if line.startswith(b'{"'):
                        self._take(msgspec.json.decode(line))
                if ended:
                    self._up.set()
                    return
                self._ended.wait(_POLL_SECONDS)

    def _take(self, record: dict[str, Any]) -> None:
        if "started" in record:
            self._started = record
            self._up.set()
        else:
            self._on_record(record)

    def __enter__(self) -> Driver:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
