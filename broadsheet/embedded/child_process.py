"""A child process that cannot outlive its parent.

Linux sends the child a signal when the *thread* that started it ends (prctl(2), PR_SET_PDEATHSIG). So each child has a
keeper thread that starts it, waits for it and reaps it. That thread lives exactly as long as the child, unless the
whole process ends, in which case the child must end too.

The child asks for the signal itself, in a small launcher that then becomes the program. A `preexec_fn` would run
Python between fork and exec of a process that has threads, and gRPC forbids that.

On macOS no system call asks for such a signal. There a process beside the program looks whether the parent is there.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_LAUNCHER = """
import ctypes, os, sys
parent, program = int(sys.argv[1]), sys.argv[2:]
ctypes.CDLL(None, use_errno=True).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != parent:
    sys.exit("the parent ended during the start")
os.execv(program[0], program)
"""
_WATCHED_LAUNCHER = """
import os, sys, time
parent, program = int(sys.argv[1]), sys.argv[2:]
launcher = os.getpid()
if os.fork() == 0:
    # What the program has open is its own: a reader of its output waits until all who have it open have ended.
    os.closerange(0, 256)
    while os.getppid() == launcher:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os.kill(launcher, 9)
        time.sleep(0.5)
    os._exit(0)
if os.getppid() != parent:
    sys.exit("the parent ended during the start")
os.execv(program[0], program)
"""
"""The same where no system call asks for a signal, as on macOS: a process beside the program looks twice a second."""
KILL_TIMEOUT_SECONDS = 10.0
"""A killed process is gone at once, unless the kernel is busy writing its memory away."""


class ChildProcess:
    """A running program; it starts on construction."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        log_file: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the program.

        Args:
            command: An absolute path and its arguments.
            directory: Its working directory.
            log_file: Where its standard output and error go, appended.
            environment: Its environment; this process' own if None.
        """
        launcher = _LAUNCHER if sys.platform == "linux" else _WATCHED_LAUNCHER
        self._command = [sys.executable, "-I", "-S", "-c", launcher, str(os.getpid()), *command]
        self._directory = directory
        self._log_file = log_file
        self._environment = environment
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        self._keeper = threading.Thread(
            target=self._keep, args=(started,), name=f"keep-{Path(command[0]).name}", daemon=True
        )
        self._keeper.start()
        process = started.get()
        if isinstance(process, OSError):
            raise process
        self._process = process

    @property
    def pid(self) -> int:
        """The program's own process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a negative number is the signal that ended it."""
        return self._process.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the program has ended."""
        self._process.send_signal(number)

    def terminate(self, *, timeout_seconds: float) -> None:
        """Terminate the program, and kill it if it does not end in time. Idempotent."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)  # a stopped process cannot handle SIGTERM
        self._keeper.join(timeout_seconds)
        self.kill()

    def kill(self) -> None:
        """Kill -9 and wait until the program has ended. Idempotent."""
        self.send_signal(signal.SIGKILL)
        self._keeper.join(KILL_TIMEOUT_SECONDS)

    def _keep(self, started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError]) -> None:
        try:
            with self._log_file.open("ab") as log:
                process = subprocess.Popen(  # noqa: S603 - the program is the caller's choice
                    self._command,
                    cwd=self._directory,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C in a terminal is for the parent, which then ends the child in its own order.
                    start_new_session=True,
                )
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        process.wait()


# The reason of an end, from the log of the program.

_ERROR_LINE = re.compile(r"^Error: (?P<problem>.+)$", re.MULTILINE)
_PANIC_LINE = re.compile(r"^panic: (?P<problem>.+)$", re.MULTILINE)
_LEVELS = frozenset({"fatal", "panic", "dpanic"})


def reason_of_end(log: str) -> str:
    """Return why a program ended, on one line, as far as its log says it; empty if it does not.

    Known are commands of this project (`Error: …`), and etcd, which logs JSON objects and may panic.
    """
    said = _said_in_json(log)
    if said:
        return said
    found = [*_ERROR_LINE.finditer(log)] or [*_PANIC_LINE.finditer(log)]
    return found[-1]["problem"].strip() if found else ""


def _said_in_json(log: str) -> str:
    for line in log.splitlines():
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off, at the beginning of the log's end
        if isinstance(event, dict) and event.get("level") in _LEVELS:
            parts = [str(event[name]) for name in ("msg", "error") if event.get(name)]
            return " ".join(": ".join(parts).split())
    return ""
