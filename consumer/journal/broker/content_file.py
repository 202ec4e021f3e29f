"""An open file that several readers share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from consumer.journal.broker.disk import close_quietly

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Linux has it."""


class ContentFile:
    """A descriptor closed when the last holder lets go. Counted on the event loop; read in any thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._holders = 1

    @staticmethod
    def open_sealed(path: Path) -> ContentFile:
        """Open a sealed fragment for reading."""
        return ContentFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    @staticmethod
    def open_growing(path: Path) -> ContentFile:
        """Open or create the file of an open fragment."""
        return ContentFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))

    def acquire(self) -> Self:
        """Count one more holder."""
        assert self._holders > 0, "the file is closed"
        self._holders += 1
        return self

    def release(self) -> None:
        """Count one holder less; the last one closes the file."""
        self._holders -= 1
        if self._holders == 0:
            close_quietly(self.fd)

    def read_cached_or_none(self, length: int, position: int) -> bytes | None:
        """Return exactly `length` bytes if the kernel has them in memory, else None. Never blocks."""
        if _NOWAIT is None:
            return None
        content = bytearray(length)
        try:
            count = os.preadv(self.fd, [content], position, _NOWAIT)
        except OSError:  # they would have to be read from the disk, or the filesystem cannot tell
            return None
        return bytes(content) if count == length else None

    def read(self, length: int, position: int) -> bytes:
        """Return exactly `length` bytes from a position in the file. Blocking.

        Raises:
            OSError: the disk failed, or the file is shorter.
        """
        content = os.pread(self.fd, length, position)
        if len(content) == length:
            return content
        parts, read = [content], len(content)
        while read < length:
            part = os.pread(self.fd, length - read, position + read)
            if not part:
                raise OSError(f"the file ends at {position + read}, before {position + length}")
            parts.append(part)
            read += len(part)
        return b"".join(parts)
