"""A disk that fails at a chosen operation, and what a process holds open."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from pathlib import Path

from broadsheet.broker.disk import Buffer, Disk


def descriptors_under(directory: Path) -> list[str]:
    """Return what this process holds open below a directory, deleted or not."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone by now
            target = str(descriptor.readlink())
            if target.startswith(str(directory)):
                found.append(target)
    return found


class FailingDisk(Disk):
    """Fails one operation, once, with ENOSPC."""

    def __init__(self) -> None:
        super().__init__(writes_durably=False)
        self._operation = ""
        self._left = 0

    @property
    def has_failed(self) -> bool:
        """Whether the chosen operation was reached."""
        return self._left <= 0

    def fail_at(self, operation: str, step: int) -> None:
        """Fail the n-th such operation from now."""
        self._operation, self._left = operation, step

    def _maybe_fail(self, operation: str) -> None:
        if operation == self._operation:
            self._left -= 1
            if self._left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")

    def write_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write, or fail."""
        self._maybe_fail("write_at")
        return super().write_at(fd, buffers, position)

    def sync_data(self, fd: int) -> None:
        """Sync, or fail."""
        self._maybe_fail("sync_data")
        super().sync_data(fd)

    def sync_directory(self, directory: Path) -> None:
        """Sync, or fail."""
        self._maybe_fail("sync_directory")
        super().sync_directory(directory)

    def free_bytes(self, directory: Path) -> int:
        """Return the free space, or fail."""
        self._maybe_fail("free_bytes")
        return super().free_bytes(directory)


class FullDisk(Disk):
    """Takes no byte while it is full."""

    def __init__(self) -> None:
        super().__init__(writes_durably=False)
        self.is_full = False

    def write_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write, or fail."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_at(fd, buffers, position)

    def free_bytes(self, directory: Path) -> int:
        """Return the free space: none while it is full."""
        return 0 if self.is_full else super().free_bytes(directory)
