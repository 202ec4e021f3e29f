"""Forcing the content of a file to the disk, where systems differ."""

from __future__ import annotations

import os


def sync_content(fd: int) -> None:
    """Force a file's content, and what finds it again, to the disk.

    macOS has no `fdatasync`, and its `fsync` leaves the content in the cache of the drive: enough when a process dies,
    and not when the power fails.

    Raises:
        OSError: the system cannot.
    """
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def begin_write_back(fd: int, offset: int, size: int) -> None:
    """Have the system begin to write a range of a file to the disk, and wait for nothing.

    Megabytes that are left to it come at once, in front of whatever another process syncs on the same disk meanwhile:
    on ext4 even in front of a small append, whose journal waits for them.

    Source: posix_fadvise(2), POSIX_FADV_DONTNEED, which writes changed pages and keeps them.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)
