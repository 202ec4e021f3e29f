"""A benchmark that blames the machine must be right: pauses are noted, and the times between them are not."""

from __future__ import annotations

import signal
import time

from bench.disturbances import machine_pauses
from tests.support.eventually import eventually

PAUSE_SECONDS = 0.3


async def test_time_in_which_the_watcher_did_not_run_is_a_pause() -> None:
    """Stopped, it is like a process on a machine that stands still; who asks of a later time is told of none."""
    with machine_pauses() as pauses:
        began = time.monotonic()
        pauses.signal(signal.SIGSTOP)
        await eventually(lambda: time.monotonic() > began + PAUSE_SECONDS)
        pauses.signal(signal.SIGCONT)
        ended = time.monotonic()

        longest = await eventually(lambda: pauses.longest_seconds(since=began, until=ended))

        assert longest > PAUSE_SECONDS * 0.5
        assert not pauses.longest_seconds(since=ended + 60, until=ended + 61)
