"""What is left of the disk, looked up no more often than that can matter.

A look costs a commit as much as its write, and each commit asks. So what was seen holds for as long as no machine could
fill the rest, down to the floor.
"""

from __future__ import annotations

import errno
from pathlib import Path

from allocator.runtime.clock import Clock
from consumer.journal.broker.disk import Disk
from consumer.journal.broker.spare_files import SpareFiles

FILL_BYTES_PER_SECOND = 16 << 30
"""Nothing fills a disk quicker, bytes a second."""
LOOK_SECONDS_MAX = 0.1
"""Longest time between looks."""
SMALL_BYTES_MAX = 1 << 20
"""More than this is never taken without a look."""


class FreeSpace:
    """Of the file system that all journals of a broker are on. Blocking; called in any thread."""

    def __init__(
        self, disk: Disk, clock: Clock, directory: Path, spares: SpareFiles, *, floor_bytes: int
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
