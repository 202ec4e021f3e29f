"""Free disk space, measured only as often as the result can matter.

A measurement costs a commit as much as its write, and each commit asks. So a result stays valid for as long as no
machine could fill the space down to the floor.
"""

from __future__ import annotations

import errno
from pathlib import Path

from broadsheet.broker.disk import Disk
from broadsheet.broker.segment_recycler import SegmentRecycler
from broadsheet.runtime.clock import Clock

FILL_BYTES_PER_SECOND = 16 << 30
"""Upper bound of the rate at which a disk fills, bytes a second."""
LOOK_SECONDS_MAX = 0.1
"""Longest time between measurements."""
SMALL_BYTES_MAX = 1 << 20
"""Largest length that is granted without a measurement."""


class FreeSpace:
    """Free space of the file system of a broker's journals. Blocking; called in any thread."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: Path,
        spares: SegmentRecycler,
        *,
        floor_bytes: int,
    ) -> None:
        """Begin without a measurement.

        Args:
            disk: File operations.
            clock: Tells the age of a measurement.
            directory: On the file system.
            spares: Files to give up before anything is refused.
            floor_bytes: Space that must stay free.
        """
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._spares = spares
        self._floor_bytes = floor_bytes
        self._enough_until = 0.0
        """Time until which any small write fits without a measurement, on the monotonic clock, seconds."""

    def require(self, length: int) -> None:
        """Make sure that there is space for this many bytes above the floor.

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
        """Make sure that this many bytes are free, regardless of the floor, for writes that extend no journal.

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
