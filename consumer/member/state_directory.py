"""Directory of a process's copies of recovered files, and the removal of copies left by killed processes.

    {parent}/{random}/held      locked for as long as the process lives
    {parent}/{random}/...       its shards' files

A killed process leaves its copies behind. They are worthless, because the recovery log has everything, so the next
process to start removes every directory that is not locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from broadsheet.runtime.private_directory import is_own_directory, make_parent

HELD = "held"

_log = structlog.get_logger()


def default_parent() -> Path:
    """Return the default parent of the copies."""
    return Path(tempfile.gettempdir()) / f"broadsheet-{os.getuid()}"


class StateDirectory:
    """A private directory of this process, below `parent`. A context manager; everything blocks on the disk.

    The parent should be on the fastest disk of the machine.
    """

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._descriptor = -1
        self.path = parent
        """Set on entering."""

    def __enter__(self) -> Self:
        make_parent(self._parent)
        self.path = Path(tempfile.mkdtemp(dir=self._parent)).resolve()
        self._descriptor = os.open(self.path / HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self._sweep()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)

    def _sweep(self) -> None:
        """Remove directories of processes that have ended."""
        for each in self._parent.iterdir():
            # A shared parent may contain entries of any kind.
            if each.name == self.path.name or not (is_own_directory(each) and _is_abandoned(each)):
                continue
            shutil.rmtree(each, ignore_errors=True)
            _log.info("state_directory.swept", path=str(each))


def _is_abandoned(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / HELD, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # Not one of our directories, or one that is just being created or removed.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
