"""When the disk stood still: a virtual one takes a fraction of a millisecond for a sync, and now and then a second.

A process overwrites a block of a file that was prepared for it, as a broker does with an append, syncs it, and notes
each time that this took long. Whatever waits for that disk then waits as long, and tells of the disk. Who kept it busy
is not known: others on the same hardware, or the benchmark with what it writes. A machine that stands still during a
sync shows here, too (`bench.machine_pauses`).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.watcher import Span, Watcher, note_long, take_priority

REST_SECONDS = 0.04
"""Between two syncs, which then take less than 1 % of a processor. A stall is noted as shorter by so much at most."""
BLOCK_BYTES = 4096
"""What file systems write as a whole."""


def disk_stalls(directory: Path) -> Watcher:
    """Return a watcher of the disk of a directory, in which nothing of it is seen."""
    return Watcher("bench.disk_stalls", str(directory))


def main() -> None:
    """Watch for the process that the first argument says, in the directory that the second says."""
    with tempfile.TemporaryFile(dir=sys.argv[2]) as file:
        fd = file.fileno()
        write_block(fd)
        os.fsync(fd)  # From here on a sync has only the block to write.
        take_priority()
        syncs = syncs_of(partial(write_block, fd), rest=partial(time.sleep, REST_SECONDS))
        note_long(syncs, parent_pid=int(sys.argv[1]))


def write_block(fd: int) -> None:
    """Overwrite the first block of a file, and wait until the disk has it."""
    os.pwrite(fd, bytes(BLOCK_BYTES), 0)
    os.fdatasync(fd)


def syncs_of(
    sync: Callable[[], None],
    *,
    rest: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Span]:
    """Sync and rest, again and again; yield the times of the syncs alone, monotonic seconds."""
    while True:
        began = clock()
        sync()
        yield Span(began, clock())
        rest()


if __name__ == "__main__":
    main()
