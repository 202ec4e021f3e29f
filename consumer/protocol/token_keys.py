"""Keys of tokens in files, which are read again when they change: rotation needs no restart.

a use ──a look, at most once a second──► unchanged: the content in use
                                    └──► changed ──► readable and well-formed: in use from now on
                                                └──► not so: the former stays in use, and the log says why
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from broadsheet.allocator.errors import ValidationError

LOOK_SECONDS = 1.0
"""Least time between two looks at a file; a look takes some microseconds."""
FILE_BYTES_MAX = 1 << 20
"""Longest file that is read: a wrong path must not fill the memory."""
FILE_PREFIX = "file:"
"""Begins a text that names a file with keys, in place of the keys."""

log = structlog.get_logger()
T = TypeVar("T")
_Stamp = tuple[int, int, int, int] | None


class WatchedFile(Generic[T]):
    """The parsed content of a file. Threads may share it: at worst two of them read a change."""

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], T],
        *,
        name: str,
        monotonic_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file.

        Args:
            path: Of the file; may be a link, as those of Kubernetes' secrets are.
            parse: Raises ValidationError for a content that is malformed.
            name: Of the setting, for errors and logs.
            monotonic_seconds: Time.

        Raises:
            ValidationError: the file cannot be read, or its content is malformed.
        """
        self._path = path
        self._parse = parse
        self._name = name
        self._monotonic_seconds = monotonic_seconds
        self._looked_monotonic_seconds = monotonic_seconds()
        # Taken before the content, so that a change during the read is noticed at the next look.
        self._stamp = self._refused = _stamp_of(path)
        self._present = self._read()

    def present(self) -> T:
        """Return the content in use: the file's, unless it changed within `LOOK_SECONDS`, or is wrong."""
        now = self._monotonic_seconds()
        if now - self._looked_monotonic_seconds >= LOOK_SECONDS:
            self._looked_monotonic_seconds = now
            stamp = _stamp_of(self._path)
            # A content that was refused is not parsed again before it changes.
            if stamp not in (self._stamp, self._refused):
                self._reload(stamp)
        return self._present

    def _reload(self, stamp: _Stamp) -> None:
        try:
            self._present = self._read()
        except ValidationError as error:
            self._refused = stamp
            log.warning("auth.reload_refused", setting=self._name, cause=str(error))
            return
        self._stamp = self._refused = stamp
        log.info("auth.reloaded", setting=self._name, file=str(self._path))

    def _read(self) -> T:
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ValidationError(
                self._name, f"cannot read {self._path}: {error.strerror}"
            ) from error
        if len(content) > FILE_BYTES_MAX:
            raise ValidationError(
                self._name, f"expected {FILE_BYTES_MAX} bytes at most in {self._path}"
            )
        try:
            return self._parse(content)
        except ValidationError as error:
            raise ValidationError(error.field_path, f"{self._path}: {error.problem}") from error


def _stamp_of(path: Path) -> _Stamp:
    """Return what changes when a file is replaced, written to, or linked to another one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
