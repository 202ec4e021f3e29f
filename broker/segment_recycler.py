"""Files of removed fragments, kept to be overwritten, as databases recycle log segments.

A new file gets blocks from the file system and pages from the kernel while it grows, and each sync records its length.
A recycled file already has all of them.

A file is recycled only if it is not in use elsewhere: a reader may still have it open, or a backup may share it by a
hard link. Such a file is removed instead. The kernel knows, because it grants a write lease on a file only while no
other process has it open.

Source: fcntl(2), "Leases".
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from broadsheet.broker.disk import Disk, close_quietly

KEPT_BYTES_MIN = 4 << 20
"""Smallest file kept: for a smaller one, recycling costs more than it saves."""
_LEASES = hasattr(fcntl, "F_SETLEASE")
"""True on Linux, which has leases."""


class SegmentRecycler:
    """Recyclable files of one broker. Blocking; called in any thread."""

    def __init__(
        self, disk: Disk, directory: Path, *, bytes_max: int, file_bytes_min: int = KEPT_BYTES_MIN
    ) -> None:
        """Begin without files.

        Args:
            disk: File operations.
            directory: Where they are; on the file system of the journals.
            bytes_max: Bound of all files together.
            file_bytes_min: Least size of a file.
        """
        self._disk = disk
        self._directory = directory
        self._bytes_max = bytes_max
        self._file_bytes_min = file_bytes_min
        self._lock = threading.Lock()
        self._bytes = 0
        """Bytes of the files kept, and of those being considered."""
        self._sizes: dict[Path, int] = {}

    def retire(self, paths: Sequence[Path]) -> None:
        """Recycle or remove files that are no longer needed under their names; ignores missing ones.

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
            # Readers that look for the name from now on do not find it.
            path.rename(kept)
            # The name must not come back after a power loss, with other content.
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
        """Return whether there are any files."""
        return bool(self._sizes)

    def take(self) -> Path | None:
        """Return the largest file, which belongs to the caller from now on; None if there is none."""
        with self._lock:
            if not self._sizes:
                return None
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._bytes -= self._sizes.pop(largest)
            return largest

    def give_up(self) -> bool:
        """Remove all files, because the space is needed; return whether there were any."""
        found = False
        while (path := self.take()) is not None:
            found = True
            with contextlib.suppress(OSError):
                path.unlink()
        return found


def _is_free(path: Path) -> bool:
    """Tell whether a file has no other name and is not open elsewhere."""
    if not _LEASES:
        return False
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_nlink != 1:
            return False
        # If a process opens the file at this moment, the kernel sends us a signal. SIGIO, the
        # default, would kill the process; this one is harmless.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:  # somebody has it, or the file system cannot tell
        return False
    finally:
        close_quietly(fd)
    return True
