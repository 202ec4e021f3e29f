"""A process that watches beside a benchmark, and what it noted: times that began and ended, monotonic seconds.

`Watcher` is the benchmark's side. The process is a module that hands its own times to `note_long`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

DISTURBANCE_SECONDS_MIN = 0.02
"""Shorter ones are how processors and disks are shared."""
_PRIORITY = 50
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Span:
    """From one time to another, monotonic seconds."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.ended - self.began


class Watcher:
    """Runs `python -m module parent arguments…` while the block runs. A context manager."""

    def __init__(self, module: str, *arguments: str) -> None:
        """Name a module that calls `note_long`, and its arguments after the process id of who started it."""
        self._module = module
        self._arguments = arguments

    def __enter__(self) -> Self:
        # In memory: a note must not wait for the disk.
        self._notes = os.fdopen(os.memfd_create("notes"), "rb")
        self._process = subprocess.Popen(  # noqa: S603 - a module of this package
            [sys.executable, "-m", self._module, str(os.getpid()), *self._arguments],
            stdout=self._notes,
        )
        try:
            while not self._spans():
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal: to stop it is to pretend that the machine stands still."""
        self._process.send_signal(number)

    def longest_seconds(self, *, since: float, until: float) -> float:
        """Return the longest that touches a time, monotonic seconds; 0: there was none.

        What has not ended is not noted yet.

        Raises:
            RuntimeError: nobody watches any more.
        """
        touching = (each for each in self._spans() if each.ended > since and each.began < until)
        return max((each.seconds for each in touching), default=0.0)

    def _spans(self) -> list[Span]:
        """Return what was noted; the first one, of no length, is the watcher's beginning."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._module} ended with {self._process.returncode}")
        notes = self._notes.fileno()
        return spans_in(os.pread(notes, os.fstat(notes).st_size, 0))

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._notes.close()


def take_priority() -> None:
    """Run this process before all others, where it may: otherwise a busy machine shows, too."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))


def note_long(spans: Iterable[Span], *, parent_pid: int) -> None:
    """Print the time of the beginning, then each time that is long, while the parent lives."""
    now = time.monotonic()
    print(now, now, flush=True)
    for span in spans:
        if span.seconds > DISTURBANCE_SECONDS_MIN:
            print(span.began, span.ended, flush=True)
        if os.getppid() != parent_pid:
            return


def spans_in(notes: bytes) -> list[Span]:
    """Return the times that `note_long` printed; a line that is still being written counts later."""
    complete = notes[: notes.rfind(b"\n") + 1]
    return [Span(*map(float, line.split())) for line in complete.splitlines()]
