"""When the machine itself stood still: a virtual one is taken off its processors now and then, for 100 ms or so.

A process that sleeps for a millisecond, at real-time priority where it may have that, notes each time that it woke up
late. What is measured in such a time tells of the machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

SLEEP_SECONDS = 0.001
PAUSE_SECONDS_MIN = 0.02
"""Shorter ones are how processors are shared."""
_PRIORITY = 50
_NOTED_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Pause:
    """Of the whole machine, monotonic seconds."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.ended - self.began


class MachinePauses:
    """Watches the machine while the block runs. A context manager."""

    def __enter__(self) -> Self:
        self._noted = tempfile.TemporaryFile("w+")
        self._watcher = subprocess.Popen(
            [sys.executable, "-m", "bench.machine_pauses"], stdout=self._noted
        )
        while not self._pauses():
            if self._watcher.poll() is not None:
                raise RuntimeError(f"it ended with {self._watcher.returncode}")
            time.sleep(SLEEP_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watcher.kill()
        self._watcher.wait()
        self._noted.close()

    def signal(self, number: signal.Signals) -> None:
        """Send the watcher a signal: to stop it is to pretend a pause."""
        self._watcher.send_signal(number)

    def longest_seconds(self, *, since: float, until: float) -> float:
        """Return the longest pause that touches a time, monotonic seconds; 0: there was none."""
        touching = (each for each in self._pauses() if each.ended > since and each.began < until)
        return max((each.seconds for each in touching), default=0.0)

    def _pauses(self) -> list[Pause]:
        """Return what was noted; the first one, of no length, is the watcher's beginning."""
        noted = os.pread(self._noted.fileno(), _NOTED_BYTES_MAX, 0).decode().splitlines()
        return [Pause(*map(float, line.split())) for line in noted]


def main() -> None:
    """Watch until killed."""
    with suppress(PermissionError):  # Without it a busy machine shows, too.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    last = time.monotonic()
    print(last, last, flush=True)
    while True:
        time.sleep(SLEEP_SECONDS)
        now = time.monotonic()
        if now - last > PAUSE_SECONDS_MIN:
            print(last, now, flush=True)
        last = now


if __name__ == "__main__":
    main()
