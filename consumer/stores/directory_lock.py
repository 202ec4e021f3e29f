"""The lock of a directory that outlives its store: one holder at a time, among all processes of one kernel.

The kernel releases it with the process, so a crash leaves nothing to clean up. It fences by exclusion: a newer holder
waits for the older one to go, and fails if it does not.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from broadsheet.consumer.errors import StoreUnavailableError
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.runtime.private_directory import make_lasting, make_private

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
        make_lasting(directory)
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


class StoreDirectory:
    """The directory of one store's files while the store is open.

    With a recovery log the files are removed at the end, because the log has them. Without one they stay, and a lock
    keeps other holders away.
    """

    def __init__(self, fqn: str, local_state: LocalState, *, lock_wait_seconds: float) -> None:
        """Describe it; nothing is touched before `claim`.

        Args:
            fqn: The shard, for errors.
            local_state: The directory, and whether there is a recovery log.
            lock_wait_seconds: Longest wait for another holder of a directory that stays.
        """
        self._fqn = fqn
        self._local_state = local_state
        self._lock_wait_seconds = lock_wait_seconds
        self._lock: DirectoryLock | None = None

    def claim(self) -> None:
        """Make the directory if it is absent, and lock it if it stays. Idempotent.

        Raises:
            StoreUnavailableError: an older holder is still there.
        """
        directory = self._local_state.directory
        if self._local_state.temporary:
            make_private(directory)
        elif self._lock is None:
            self._lock = DirectoryLock(self._fqn, directory, wait_seconds=self._lock_wait_seconds)

    def leave(self) -> None:
        """Remove the files if the recovery log has them, else let the next holder in. Idempotent."""
        if self._local_state.temporary:
            shutil.rmtree(self._local_state.directory, ignore_errors=True)
        elif self._lock is not None:
            self._lock.release()


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
