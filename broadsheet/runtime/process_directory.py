"""A directory for as long as a process needs it, and the removal of those that killed processes left.

    {parent}/{prefix}{random}/held      locked for as long as the process lives
    {parent}/{prefix}{random}/...       its files

A process that is killed, or ends by a signal that it does not handle, leaves its directory behind. Its content served
that process alone, so the next process to make one of the same prefix removes every directory that is not locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from broadsheet.runtime.logs import guard_unconfigured_logs
from broadsheet.runtime.private_directory import is_own_directory, make_parent

HELD = "held"
_NOT_YET_HELD = "held.new"

_log = structlog.get_logger()


class ProcessDirectory:
    """A private directory of this process, made on construction. A context manager; everything blocks on the disk."""

    def __init__(self, prefix: str = "", *, parent: Path | None = None) -> None:
        """Make the directory, and remove those of processes that have ended.

        Args:
            prefix: Of its name; directories of other prefixes are left alone.
            parent: Holds it, on the fastest disk of the machine if its files are large; the system's directory for
                temporary files (`TMPDIR`) if None.

        Raises:
            ValidationError: others may replace what is in the given parent.
            OSError: the directory could not be made.
        """
        self._prefix = prefix
        if parent is None:
            self._parent = Path(tempfile.gettempdir())
        else:
            make_parent(parent)
            self._parent = parent.resolve()
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=self._parent)).absolute()
        """Of the directory itself, absolute."""
        try:
            self._descriptor = _hold(self.path)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        self._sweep()

    def close(self) -> None:
        """Remove the directory with all that is in it. Idempotent."""
        if self._descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            if self.path.exists():
                # A process that is just ending wrote something meanwhile: the next of this prefix removes it.
                with contextlib.suppress(OSError):
                    (self.path / HELD).touch(mode=0o600)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _sweep(self) -> None:
        """Remove directories of processes that have ended."""
        for each in self._parent.glob(f"{self._prefix}*"):
            # A shared parent may contain entries of any kind.
            if each.name == self.path.name or not (is_own_directory(each) and _is_abandoned(each)):
                continue
            shutil.rmtree(each, ignore_errors=True)
            guard_unconfigured_logs()
            _log.info("process_directory.swept", path=str(each))


def _hold(directory: Path) -> int:
    """Lock a directory for this process, and return the descriptor that keeps the lock."""
    descriptor = os.open(directory / _NOT_YET_HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Locked before it has its name: a file of that name without a lock is one of a process that has ended.
        (directory / _NOT_YET_HELD).rename(directory / HELD)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_abandoned(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / HELD, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # Not one of our directories, or one that is just being made or removed.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
