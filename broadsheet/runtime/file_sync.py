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
