"""The Python interpreter of a process that serves and does nothing else: a member, or a broker.

All of it is process-wide: for programs, not for libraries.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

YOUNG_OBJECTS_MAX = 100_000
"""Objects made between two collections. Python's 700 walks a batch of messages over and over. Cycles are rare here, so
what waits for collection stays small."""
_THRESHOLDS = (YOUNG_OBJECTS_MAX, 50, 100)
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
"""An operator's own choice of their number, which stands."""


def serve_only() -> None:
    """Set the interpreter up for serving, once what is needed for that is imported."""
    share_heaps()
    gc.freeze()  # What was made during the start is never looked at again.
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    keep_freed_buffers()


@cache
def freeze_imports() -> None:
    """Have the collector never look again at what there is, mostly modules. Once in a process; call it after imports.

    PySpark's workers look for cycles among all objects after each task, each plan and each commit.
    """
    gc.freeze()


@contextmanager
def few_collections() -> Iterator[None]:
    """Look for cycles as rarely as a server does, while the context lasts; one at a time in a process."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def keep_freed_buffers() -> None:
    """Make this process keep the memory of freed buffers up to `KEPT_BYTES_MAX`, some 60 MiB of it in all.

    glibc gives large buffers back to the kernel, which then has to clear each page that the next one touches. It
    stops to do so for buffers no larger than the largest that it ever gave back. Elsewhere this has no effect.

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
    """Give the kernel back what a burst took; return whether there was any. Blocking: tens of milliseconds.

    Calls that fail leave cycles (an exception, its traceback, the frames with their messages), which a process that
    looks for them as rarely as `serve_only` says would keep for long. glibc keeps what is free below what is in use.

    Source: malloc_trim(3).
    """
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    return bool(trim(0))
