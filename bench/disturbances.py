"""Disturbances of a measurement from outside, which are told beside it: pauses of the machine, and stalls of its disk.

A virtual machine is taken off its processors now and then, for 100 ms or so. A process that sleeps for some
milliseconds, at real-time priority where it may have that, notes each time that it woke up late.

A virtual disk takes a fraction of a millisecond for a sync, and now and then a second. A process overwrites a block of
a file that was prepared for it, as a broker does with an append, syncs it, and notes each time that this took long.
Who kept the disk busy is not known: others on the same hardware, or the benchmark with what it writes. A machine that
stands still during a sync shows there, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.report import Params

DISTURBANCE_SECONDS_MIN = 0.02
"""Shorter ones are how processors and disks are shared."""
_PRIORITY = 50
_POLL_SECONDS = 0.005
SLEEP_SECONDS = 0.005
REST_SECONDS = 0.04
"""Between two syncs, which then take less than 1 % of a processor. A stall is noted as shorter by so much at most."""
BLOCK_BYTES = 4096
"""What file systems write as a whole."""


# A process that watches beside the benchmark, and what it noted: times that began and ended, monotonic seconds.


@dataclass(frozen=True, slots=True)
class Interval:
    """From one time to another, monotonic seconds."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """The longest disturbances."""
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

    def _spans(self) -> list[Interval]:
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


def note_long(spans: Iterable[Interval], *, parent_pid: int) -> None:
    """Print the time of the beginning, then each time that is long, while the parent lives."""
    now = time.monotonic()
    print(now, now, flush=True)
    for span in spans:
        if span.seconds > DISTURBANCE_SECONDS_MIN:
            print(span.began, span.ended, flush=True)
        if os.getppid() != parent_pid:
            return


def spans_in(notes: bytes) -> list[Interval]:
    """Return the times that `note_long` printed; a line that is still being written counts later."""
    complete = notes[: notes.rfind(b"\n") + 1]
    return [Interval(*map(float, line.split())) for line in complete.splitlines()]


def machine_pauses() -> Watcher:
    """Return a watcher of the whole machine."""
    return Watcher("bench.disturbances", "machine")


def disk_stalls(directory: Path) -> Watcher:
    """Return a watcher of the disk of a directory, in which nothing of it is seen."""
    return Watcher("bench.disturbances", "disk", str(directory))


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest of each kind that touched a time, seconds; 0: there was none."""

    machine_pause_seconds: float = 0.0
    disk_stall_seconds: float = 0.0

    @staticmethod
    def of(several: Iterable[Longest]) -> Longest:
        """Return the longest of those of several times."""
        found = list(several)
        return Longest(
            max((each.machine_pause_seconds for each in found), default=0.0),
            max((each.disk_stall_seconds for each in found), default=0.0),
        )

    def params(self) -> Params:
        """Return what a figure is printed with."""
        return {
            "machine_pause_max_s": round(self.machine_pause_seconds, 4),
            "disk_stall_max_s": round(self.disk_stall_seconds, 4),
        }


class Disturbances:
    """Watches the machine and a directory's disk while the block runs. A context manager."""

    def __init__(self, directory: Path) -> None:
        """Choose the disk by a directory that is there, e.g. that of the broker's data."""
        self._pauses = machine_pauses()
        self._stalls = disk_stalls(directory)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._pauses)
            stack.enter_context(self._stalls)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def longest(self, *, since: float, until: float) -> Longest:
        """Return what touched a time, monotonic seconds; ask later, because what has not ended is not known."""
        return Longest(
            self._pauses.longest_seconds(since=since, until=until),
            self._stalls.longest_seconds(since=since, until=until),
        )


def main() -> None:
    """Watch what the second argument says, for the process that the first one says."""
    parent_pid = int(sys.argv[1])
    if sys.argv[2] == "machine":
        take_priority()
        note_long(_wakings(), parent_pid=parent_pid)
        return
    with tempfile.TemporaryFile(dir=sys.argv[3]) as file:
        fd = file.fileno()
        write_block(fd)
        os.fsync(fd)  # From here on a sync has only the block to write.
        take_priority()
        syncs = syncs_of(partial(write_block, fd), rest=partial(time.sleep, REST_SECONDS))
        note_long(syncs, parent_pid=parent_pid)


def _wakings() -> Iterator[Interval]:
    """Sleep again and again; yield the times from one waking to the next."""
    last = time.monotonic()
    while True:
        time.sleep(SLEEP_SECONDS)
        now = time.monotonic()
        yield Interval(last, now)
        last = now


def write_block(fd: int) -> None:
    """Overwrite the first block of a file, and wait until the disk has it."""
    os.pwrite(fd, bytes(BLOCK_BYTES), 0)
    os.fdatasync(fd)


def syncs_of(
    sync: Callable[[], None],
    *,
    rest: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Interval]:
    """Sync and rest, again and again; yield the times of the syncs alone, monotonic seconds."""
    while True:
        began = clock()
        sync()
        yield Interval(began, clock())
        rest()


if __name__ == "__main__":
    main()
