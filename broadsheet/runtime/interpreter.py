"""Python interpreter settings for a process that only serves: a member, or a broker.

All settings are process-wide, so they are for programs, not for libraries.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

YOUNG_OBJECTS_MAX = 20_000
"""Objects made between two collections. Python's 700 walks a batch of messages over and over. Cycles are rare here, so
what waits for collection stays small. A collection holds up all threads for as long as it has young objects to walk:
100,000 of them took 70 to 80 ms, which was the tail of the latency of shards."""
_THRESHOLDS = (YOUNG_OBJECTS_MAX, 250, 100)
SWITCH_SECONDS = 0.0005
"""How long another thread, a shard's or one that hashes, keeps the interpreter while the event loop waits for it. Each
append and each commit is several turns of the loop, and with Python's 5 ms each of them may wait that long."""
KEPT_BYTES_MAX = 31 << 20
"""Of one buffer. glibc does not learn from those of 32 MiB and more."""
ARENAS_MAX = 2
"""Heaps of glibc's. It makes up to eight a processor, each for a thread that allocates, and what is free in one serves
no other thread. A broker's dozen threads, gRPC's and those for the disk, held 8 MiB that way after ten minutes, 7 of it
free, and more with each minute. Most threads hold the interpreter while they allocate, so few wait for each other."""
_M_ARENA_MAX = -8
"""glibc's malloc.h."""
ARENAS_VARIABLE = "MALLOC_ARENA_MAX"
"""An operator's choice of their number, which is respected."""


def serve_only() -> None:
    """Configure the interpreter for serving, once all modules that are needed for that are imported."""
    share_heaps()
    gc.freeze()  # Objects made during the start are exempt from collection.
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    keep_freed_buffers()


@cache
def freeze_imports() -> None:
    """Exempt all present objects, mostly modules, from garbage collection. Call once in a process, after imports.

    PySpark's workers look for cycles among all objects after each task, each plan and each commit.
    """
    gc.freeze()


@contextmanager
def few_collections() -> Iterator[None]:
    """Reduce the frequency of garbage collection to that of a server, within the context; one at a time in a
    process.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def keep_freed_buffers() -> None:
    """Make this process keep the memory of freed buffers up to `KEPT_BYTES_MAX`, about 60 MiB in all.

    glibc returns large buffers to the kernel, which then has to clear each page that the next buffer touches. It stops
    doing so for buffers no larger than the largest that it ever returned. Without glibc this has no effect.

    Source: mallopt(3), M_MMAP_THRESHOLD ("dynamic mmap threshold").
    """
    bytearray(KEPT_BYTES_MAX)


def share_heaps() -> bool:
    """Let all threads of this process allocate from `ARENAS_MAX` heaps; return whether that changed anything.

    Call it before there are many threads: heaps that exist stay.

    Source: mallopt(3), M_ARENA_MAX.
    """
    if ARENAS_VARIABLE in os.environ:
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return False
    return bool(set_option(_M_ARENA_MAX, ARENAS_MAX))


def return_freed_memory() -> bool:
    """Give the memory of a burst back to the kernel; return whether there was any. Blocking: tens of milliseconds.

    Calls that fail leave cycles (an exception, its traceback, the frames with their messages), which a process with
    the rare collections of `serve_only` would keep for long. glibc keeps free memory below memory in use.

    Source: malloc_trim(3).
    """
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    return bool(trim(0))


LOOK_SECONDS: Final = 15.0
LOOKS_PER_FULL_COLLECTION: Final = 20
YOUNG: Final = 1
OLD: Final = 2
"""Generations of Python's collector."""
BUSY_SHARE: Final = 0.04
"""Of one processor, from which on a process counts as busy. Beats, keep-alives and probes take less than half of it."""
TRIM_LOOKS: Final = (1, 3, 6, 10, 24)
"""After how many idle looks, one after the other, memory is given back: after 15 s, and last after 6 minutes."""


class IdleTrims:
    """Decides when to return free memory, by the processor time of the process. Pure.

    A process that was busy returns memory a few times: at once, and later, because some objects are released only
    after minutes (pending messages of producers that fell silent, idle connections).
    """

    def __init__(self) -> None:
        self._was_busy = False
        self._idle_looks = 0

    def look(self, cpu_seconds: float, elapsed_seconds: float) -> bool:
        """Return whether to give memory back now.

        Args:
            cpu_seconds: Processor time that the process took since the last look.
            elapsed_seconds: Time since then.
        """
        if cpu_seconds > BUSY_SHARE * elapsed_seconds:
            self._was_busy, self._idle_looks = True, 0
            return False
        if not self._was_busy:
            return False
        self._idle_looks += 1
        self._was_busy = self._idle_looks < TRIM_LOOKS[-1]
        return self._idle_looks in TRIM_LOOKS


async def tend_memory(*, look_seconds: float = LOOK_SECONDS) -> None:
    """Collect cycles by the clock, and return free memory once this process is idle. Runs until cancelled.

    Calls that end in an error or are cancelled leave a few objects that refer to each other, and gRPC's buffers with
    them: some 20 KiB a call. `serve_only` makes the collector run by the number of objects, so rarely that such
    buffers would grow by a MiB a minute; here it runs by the clock.

    Args:
        look_seconds: Time between two looks.
    """
    trims = IdleTrims()
    cpu_seconds, now_seconds = time.process_time(), time.monotonic()
    for look in itertools.count(1):
        await asyncio.sleep(look_seconds)
        cpu_before, before = cpu_seconds, now_seconds
        cpu_seconds, now_seconds = time.process_time(), time.monotonic()
        if trims.look(cpu_seconds - cpu_before, now_seconds - before):
            await asyncio.to_thread(return_freed_memory)
        else:
            # A collection of young objects takes a millisecond or two; one of all objects ten times as long.
            gc.collect(OLD if look % LOOKS_PER_FULL_COLLECTION == 0 else YOUNG)
