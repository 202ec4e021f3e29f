"""Files of removed fragments, kept to be written over, as databases recycle the segments of their logs.

A new file gets its blocks from the file system and its pages from the kernel while it grows, and each sync notes its
length. One that is there already has them all.

What is kept must be nobody else's: a reader may still hold it open, a backup may share it by a hard link. Either makes
it go instead. The kernel knows: it grants a write lease on a file only while nobody else has it open.

Source: fcntl(2), "Leases".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from broadsheet.allocator.runtime.clock import Clock
from broadsheet.consumer.broker.disk import Disk, close_quietly

KEPT_BYTES_MIN = 4 << 20
"""A smaller file saves less than it costs."""
_LEASES = hasattr(fcntl, "F_SETLEASE")
"""Linux has them."""


class SegmentRecycler:
    """The spare files of one broker. Blocking; called in any thread."""

    def __init__(
        self, disk: Disk, directory: Path, *, bytes_max: int, file_bytes_min: int = KEPT_BYTES_MIN
    ) -> None:
        """Begin with none.

        Args:
            disk: File operations.
            directory: Where they are; on the file system of the journals.
            bytes_max: Of all together.
            file_bytes_min: Of each.
        """
        self._disk = disk
        self._directory = directory
        self._bytes_max = bytes_max
        self._file_bytes_min = file_bytes_min
        self._lock = threading.Lock()
        self._bytes = 0
        """Of those kept, and of those that may be."""
        self._sizes: dict[Path, int] = {}

    def retire(self, paths: Sequence[Path]) -> None:
        """Keep files that nobody needs under their names any more, or remove them. Those missing do not matter.

        Raises:
            OSError: one could be neither kept nor removed.
        """
        for path in paths:
            if not self._keep(path):
                path.unlink(missing_ok=True)

    def _keep(self, path: Path) -> bool:
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return True
        if not self._reserve(size):
            return False
        kept = self._directory / secrets.token_hex(8)
        try:
            # Whoever opens it from now on does not find it.
            path.rename(kept)
            # The name must not come back after a power loss, with another's content.
            self._disk.sync_directory(path.parent)
            if _is_free(kept):
                with self._lock:
                    self._sizes[kept] = size
                return True
            kept.unlink()
        except OSError:
            with contextlib.suppress(OSError):
                kept.unlink(missing_ok=True)
        with self._lock:
            self._bytes -= size
        return False

    def _reserve(self, size: int) -> bool:
        with self._lock:
            fits = size >= self._file_bytes_min and self._bytes + size <= self._bytes_max
            if fits:
                self._bytes += size
            return fits

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._sizes)

    def take(self) -> Path | None:
        """Return the largest file, which is the caller's from now on; None if there is none."""
        with self._lock:
            if not self._sizes:
                return None
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._bytes -= self._sizes.pop(largest)
            return largest

    def give_up(self) -> bool:
        """Remove them all: the space is needed. Return whether there were any."""
        found = False
        while (path := self.take()) is not None:
            found = True
            with contextlib.suppress(OSError):
                path.unlink()
        return found


def _is_free(path: Path) -> bool:
    """Tell whether a file has no other name, and nobody else has it open."""
    if not _LEASES:
        return False
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_nlink != 1:
            return False
        # Who opens it this very moment makes the kernel send a signal: one that nobody minds, not SIGIO, which kills.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:  # somebody has it, or the file system cannot tell
        return False
    finally:
        close_quietly(fd)
    return True


# What is left of the disk, looked up no more often than that can matter.
#
# A look costs a commit as much as its write, and each commit asks. So what was seen holds for as
# long as no machine could fill the rest, down to the floor.

FILL_BYTES_PER_SECOND = 16 << 30
"""Nothing fills a disk quicker, bytes a second."""
LOOK_SECONDS_MAX = 0.1
"""Longest time between looks."""
SMALL_BYTES_MAX = 1 << 20
"""More than this is never taken without a look."""


class FreeSpace:
    """Of the file system that all journals of a broker are on. Blocking; called in any thread."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: Path,
        spares: SegmentRecycler,
        *,
        floor_bytes: int,
    ) -> None:
        """Know nothing yet.

        Args:
            disk: File operations.
            clock: Tells how old a look is.
            directory: On the file system.
            spares: Files to give up before anything is refused.
            floor_bytes: Must be left.
        """
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._spares = spares
        self._floor_bytes = floor_bytes
        self._enough_until = 0.0
        """Until then there is room for anything small, on the monotonic clock, seconds."""

    def require(self, length: int) -> None:
        """Make sure that there is room for so many bytes.

        Raises:
            OSError: fewer than the floor would be left, or the file system does not tell.
        """
        now = self._clock.monotonic_seconds()
        if length <= SMALL_BYTES_MAX and now < self._enough_until:
            return
        wanted = self._floor_bytes + length
        free = self._disk.free_bytes(self._directory)
        if free < wanted and self._spares.give_up():
            free = self._disk.free_bytes(self._directory)
        if free < wanted:
            raise OSError(errno.ENOSPC, f"fewer than {self._floor_bytes} bytes would be left free")
        left = free - wanted - SMALL_BYTES_MAX
        self._enough_until = now + min(LOOK_SECONDS_MAX, left / FILL_BYTES_PER_SECOND)

    def require_some(self, length: int) -> None:
        """Make sure that so many bytes are free, whatever the floor: for what makes no journal longer.

        Raises:
            OSError: fewer are free, and the file system tells.
        """
        try:
            free = self._disk.free_bytes(self._directory)
            if free < length and self._spares.give_up():
                free = self._disk.free_bytes(self._directory)
        except OSError:
            return
        if free < length:
            raise OSError(
                errno.ENOSPC, f"the disk is full, {free} bytes are free: it can be read only"
            )
