"""A watcher notes what is long, says when it has ended, and does not outlive its benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from bench.disturbances import (
    DISTURBANCE_SECONDS_MIN,
    Interval,
    Watcher,
    machine_pauses,
    note_long,
    spans_in,
)
from tests.support.eventually import eventually_sync

LONG = Interval(2.0, 2.0 + 2 * DISTURBANCE_SECONDS_MIN)
SHORT = Interval(1.0, 1.0 + DISTURBANCE_SECONDS_MIN / 2)
_ABANDON = """
import os
from bench.disturbances import machine_pauses
machine_pauses().__enter__()
os._exit(0)
"""


def test_long_times_are_noted_after_the_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    """The beginning, of no length, tells that somebody watches; short times are how a machine is shared."""
    earliest = time.monotonic()

    note_long([SHORT, LONG, SHORT], parent_pid=os.getppid())

    beginning, *noted = spans_in(capsys.readouterr().out.encode())
    assert beginning.began == beginning.ended >= earliest
    assert noted == [LONG]


def test_notes_that_are_still_being_written_are_read_later() -> None:
    """Half a number would be another number."""
    assert spans_in(b"1.0 1.0\n2.0 2.5\n3.0 12") == [Interval(1.0, 1.0), Interval(2.0, 2.5)]


def test_watcher_that_has_ended_is_told() -> None:
    """Otherwise nothing would be noted, and every figure called undisturbed."""

    def is_told(watcher: Watcher) -> bool:
        try:
            watcher.longest_seconds(since=0.0, until=1.0)
        except RuntimeError as error:
            return str(error) == "bench.disturbances ended with -9"
        return False

    with machine_pauses() as pauses:
        pauses.signal(signal.SIGKILL)

        eventually_sync(lambda: is_told(pauses))


def test_watcher_ends_with_who_started_it() -> None:
    """A benchmark that is killed leaves nobody who syncs a disk for ever: its error output, which both have, ends."""
    command = [sys.executable, "-c", _ABANDON]

    ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=30, check=True)

    assert ended.stderr == b""
