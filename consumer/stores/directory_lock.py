"""The lock of a directory that outlives its store: one holder at a time, among all processes of one kernel.

The kernel releases it with the process, so a crash leaves nothing to clean up. It fences by exclusion: a newer holder
waits for the older one to go, and fails if it does not.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from broadsheet.consumer.errors import StoreUnavailableError
from broadsheet.consumer.private_directory import make_private

LOCK_POLL_SECONDS = 0.02
"""`flock` cannot wait with a deadline."""


class DirectoryLock:
    """The lock of one directory, held until `release`."""

    def __init__(self, fqn: str, directory: Path, *, wait_seconds: float) -> None:
        """Take the lock; make the directory if it is absent.

        Args:
            fqn: The shard, for errors.
            directory: What to hold.
            wait_seconds: Longest wait for an older holder.

        Raises:
            StoreUnavailableError: an older holder is still there.
        """
        make_private(directory)
        path = directory / "holder.lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            lock_descriptor(fqn, self._descriptor, path, wait_seconds=wait_seconds)
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Let the next holder in. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lock_descriptor(fqn: str, descriptor: int, path: Path, *, wait_seconds: float) -> None:
    """Lock an open file for its descriptor's life.

    Raises:
        StoreUnavailableError: it stayed locked by another.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StoreUnavailableError(
                    fqn, f"{path} is locked by another process for {wait_seconds} s; is it stopped?"
                ) from None
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return
