"""When the machine itself stood still: a virtual one is taken off its processors now and then, for 100 ms or so.

A process that sleeps for some milliseconds, at real-time priority where it may have that, notes each time that it woke
up late. What is measured in such a time tells of the machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from bench.watcher import Span, Watcher, note_long, take_priority

SLEEP_SECONDS = 0.005


def machine_pauses() -> Watcher:
    """Return a watcher of the whole machine."""
    return Watcher("bench.machine_pauses")


def main() -> None:
    """Watch for the process that the argument says."""
    take_priority()
    note_long(_wakings(), parent_pid=int(sys.argv[1]))


def _wakings() -> Iterator[Span]:
    """Sleep again and again; yield the times from one waking to the next."""
    last = time.monotonic()
    while True:
        time.sleep(SLEEP_SECONDS)
        now = time.monotonic()
        yield Span(last, now)
        last = now


if __name__ == "__main__":
    main()
