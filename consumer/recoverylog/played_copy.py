"""Copies of what a player has played so far: files that somebody else may open, while the player goes on with its own.

A log that ends anywhere holds a commit, so a copy taken between two steps of playing does. Blocking: for the player's
thread, where no step runs meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from typing import Final

from consumer.errors import RecoveryLogError
from consumer.recoverylog.fsm import FileStateMachine

CHUNK_BYTES: Final = 16 << 20
"""Copied at a time; a standby that is being promoted waits for no more than that."""
_FICLONE: Final = 0x40049409
"""Linux' order to share a file's blocks until one of the two is written."""


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """What a copy must hold."""

    paths: Mapping[int, tuple[str, ...]]
    """Of each live file, by fnode."""
    properties: Mapping[str, str]


def live_files(fsm: FileStateMachine) -> LiveFiles:
    """Return the files and properties as of now."""
    paths = {fnode: tuple(node.links) for fnode, node in fsm.fnodes.items()}
    return LiveFiles(paths, dict(fsm.properties))


def copy_files(
    live: LiveFiles, staging: Path, target: Path, *, log: str, is_wanted: Callable[[], bool]
) -> bool:
    """Copy the files to their paths below `target`; False if that was no longer wanted.

    Args:
        live: What to copy.
        staging: Holds the files by fnode.
        target: A directory that does not exist yet.
        log: Named by errors.
        is_wanted: Asked between two chunks.

    Raises:
        RecoveryLogError: a path is no file below the directory.
        OSError: as of the disk.
    """
    target.mkdir(parents=True)
    for fnode, paths in live.paths.items():
        for path in paths:
            if not _copy(staging / str(fnode), _below(target, path, log), is_wanted):
                return False
    for path, content in live.properties.items():
        _below(target, path, log).write_text(content)
    return True


def _below(directory: Path, path: str, log: str) -> Path:
    target = directory / path.lstrip("/")
    if ".." in target.parts or "\0" in path or target == directory:
        raise RecoveryLogError(log, f"path {path!r} is no file below the store's directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _copy(source: Path, target: Path, is_wanted: Callable[[], bool]) -> bool:
    read = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return _shared(read, write) or _copied(read, write, is_wanted)
        finally:
            os.close(write)
    finally:
        os.close(read)


def _shared(read: int, write: int) -> bool:
    """Have two files share their blocks, which takes no time; False on a file system that cannot."""
    with suppress(OSError):
        ioctl(write, _FICLONE, read)
        return True
    return False


def _copied(read: int, write: int, is_wanted: Callable[[], bool]) -> bool:
    while is_wanted():
        if not _copied_chunk(read, write):
            return True
    return False


def _copied_chunk(read: int, write: int) -> int:
    try:
        return os.copy_file_range(read, write, CHUNK_BYTES)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            raise
    content = memoryview(os.read(read, CHUNK_BYTES))
    written = 0
    while written < len(content):
        written += os.write(write, content[written:])
    return written
