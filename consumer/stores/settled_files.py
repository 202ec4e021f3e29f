"""Files of which only the kernel's memory may have the end: an earlier life was killed before a sync, or a sync failed.

A life that goes on from what it reads must make that durable first: what it sends on the strength of it cannot be taken
back after a power cut. Content is written again before it is synced, because after a failed sync the kernel takes pages
for written that the disk does not have, and no later sync writes them.

Source: "Can Applications Recover from fsync Failures?" (Rebello et al., USENIX ATC 2020).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 1 << 20


def settle(path: Path, begin: int = 0, end: int | None = None) -> None:
    """Write bytes [begin, end) of a file again, to its end if that is None, and force them to the disk. Blocking.

    Raises:
        OSError: the disk failed.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        stop = os.fstat(descriptor).st_size if end is None else end
        for offset in range(begin, stop, _CHUNK_BYTES):
            content = os.pread(descriptor, min(_CHUNK_BYTES, stop - offset), offset)
            write_at(descriptor, content, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of some content at a position, bytes."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync_directory(directory: Path) -> None:
    """Force a directory's entries to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
