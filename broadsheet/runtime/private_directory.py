"""Private directories for state: accessible to this user only.

Their contents are trusted when they are read, and are as secret as the journals and shards that they come from. In a
parent that others may write to, such as /tmp, another user may have created the directory, or a link in its place,
before us.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import structlog

from broadsheet.runtime.errors import ValidationError

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
PRIVATE_UMASK = 0o077
_SUPERUSER = 0

_log = structlog.get_logger()


def make_private(directory: Path) -> None:
    """Create a directory for this user only, with its parents; an existing one loses the access rights of others.

    Raises:
        ValidationError: it, or a link in its place, belongs to another user, or others may write to it.
        OSError: it could not be made.
    """
    _make(directory)
    _require_own(directory)
    _tighten(directory.resolve())


def make_lasting(directory: Path) -> None:
    """Make a directory private, as `make_private`, and durable: its name survives a power cut from now on.

    An existing one is made durable as well, because the process that made it may have been killed before it was.

    Raises:
        ValidationError, OSError: as `make_private`; or the name could not be synced.
    """
    make_private(directory)
    _sync_name(directory.resolve())


def keep_new_files_private() -> None:
    """Make this process create files for its user only, including those of libraries such as RocksDB. For programs."""
    os.umask(PRIVATE_UMASK)


def make_parent(directory: Path) -> None:
    """Create a parent of private directories; a directory that all users share, such as /tmp, may be used.

    Raises:
        ValidationError: as `make_private`, unless its sticky bit keeps users from each other's entries.
        OSError: it could not be made.
    """
    _make(directory)
    found = directory.stat()
    if not (found.st_mode & stat.S_ISVTX and found.st_uid in (os.geteuid(), _SUPERUSER)):
        _require_own(directory)


def is_own_directory(path: Path) -> bool:
    """Report whether the path is a directory of this user, and not a link."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _make(directory: Path) -> None:
    missing = [directory, *directory.parents]
    missing = missing[: next(n for n, each in enumerate(missing) if each.exists())]
    if not missing:
        directory.mkdir(exist_ok=True)  # Refuses a file in its place, by its name.
    for each in reversed(missing):
        # A directory is durable before anything is in it, so that of those that exist only the last may be in doubt.
        _sync_name(each.parent.resolve())
        # Other users may need its parents.
        each.mkdir(mode=DIRECTORY_MODE if each == directory else 0o777, exist_ok=True)


def _sync_name(directory: Path) -> None:
    """Force a directory's entry in its parent to the disk, unless the parent is not this user's to read."""
    with contextlib.suppress(PermissionError):
        parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def _require_own(directory: Path) -> None:
    user = os.geteuid()
    link = directory.lstat()
    if link.st_uid not in (user, _SUPERUSER):
        raise ValidationError(
            str(directory), f"expected a directory of user {user}, but user {link.st_uid} made it"
        )
    found = directory.stat()
    if found.st_uid != user:
        raise ValidationError(
            str(directory), f"expected a directory of user {user}, got one of user {found.st_uid}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValidationError(
            str(directory),
            "other users may write to it, so nothing in it can be trusted: look at what is there, then "
            "`chmod 700` it, or choose another directory",
        )


def _tighten(directory: Path) -> None:
    """Remove the read access that earlier versions gave to others."""
    tightened = sum(_tighten_one(path) for path in (directory, *directory.iterdir()))
    if tightened:
        _log.info("private_directory.tightened", path=str(directory), entries=tightened)


def _tighten_one(path: Path) -> bool:
    """Tighten the directory itself, or one of our files in it; follow no link. Return whether that was needed."""
    try:
        found = path.stat(follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        is_ours = not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid()
        if not is_ours or not mode & 0o077:
            return False
        path.chmod(mode & DIRECTORY_MODE)
    except FileNotFoundError:
        return False  # An earlier holder of the directory is still working in it.
    return True
