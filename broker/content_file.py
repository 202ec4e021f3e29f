"""An open file that several readers share, verified as it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from broadsheet.broker.disk import close_quietly
from broadsheet.journals.block_sums import BLOCK_BYTES, DamagedContentError, Sums

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Flag of preadv2 that never waits for the disk; only Linux has it."""


class ContentFile:
    """A reference-counted file descriptor, closed by its last holder. Counted on the event loop; read in any thread."""

    def __init__(self, fd: int, *, sums: Sums | None = None) -> None:
        self.fd = fd
        self.sums = sums
        """Checksums that verify the content; None reads it without verification. Replaced as the file grows."""
        self._holders = 1

    @staticmethod
    def open_sealed(path: Path, *, sums: Sums | None = None) -> ContentFile:
        """Open a sealed fragment for reading."""
        return ContentFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), sums=sums)

    @staticmethod
    def open_growing(path: Path) -> ContentFile:
        """Open or create the file of an open fragment."""
        return ContentFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def acquire(self) -> Self:
        """Add a holder."""
        assert self._holders > 0, "the file is closed"
        self._holders += 1
        return self

    def release(self) -> None:
        """Remove a holder; the last one closes the file."""
        self._holders -= 1
        if self._holders == 0:
            close_quietly(self.fd)

    def holds(self, length: int) -> bool:
        """Tell whether the file has this many bytes of its fragment; one replaced by a recycled file may have fewer."""
        return self.sums is None or self.sums.length >= length

    def read_cached_or_none(self, length: int, position: int) -> memoryview | None:
        """Return exactly `length` bytes if they are in the kernel's cache and verify, else None. Never blocks."""
        if _NOWAIT is None:
            return None
        sums = self.sums
        try:
            begin, end = _blocks(sums, position, position + length)
            content = bytearray(end - begin)
            count = os.preadv(self.fd, [content], begin, _NOWAIT)
        except OSError:  # not in memory, or the file system cannot tell
            return None
        if count != end - begin or (sums is not None and sums.first_bad(begin, content)):
            return None
        return memoryview(content)[position - begin : position - begin + length]

    def read(self, length: int, position: int) -> memoryview:
        """Return exactly `length` bytes from a position in the file. Blocking.

        Raises:
            OSError: the disk failed, or the file is shorter and has no checksums.
            DamagedContentError: they fail their checksum, or the file lacks some of them.
        """
        sums = self.sums
        begin, end = _blocks(sums, position, position + length)
        content = self.read_present(end - begin, begin)
        if len(content) < end - begin:
            if sums is None:
                raise OSError(f"the file ends at {begin + len(content)}, before {end}")
            # Its last block is incomplete, so what is left of it cannot be verified.
            raise DamagedContentError(begin + _whole(len(content)), sums.length)
        bad = None if sums is None else sums.first_bad(begin, content)
        if bad is not None:
            raise DamagedContentError(*bad)
        return memoryview(content)[position - begin : position - begin + length]

    def read_present(self, length: int, position: int) -> bytes:
        """Return up to `length` bytes from a position in the file, fewer if it ends before; unverified. Blocking.

        Raises:
            OSError: the disk failed.
        """
        content = os.pread(self.fd, length, position)
        if len(content) == length:
            return content
        parts, read = [content], len(content)
        while read < length and (part := os.pread(self.fd, length - read, position + read)):
            parts.append(part)
            read += len(part)
        return b"".join(parts)


def _whole(length: int) -> int:
    return length - length % BLOCK_BYTES


def _blocks(sums: Sums | None, begin: int, end: int) -> tuple[int, int]:
    """Return the whole blocks that contain a range, within the verified content."""
    if sums is None:
        return begin, end
    if end > sums.length:
        raise OSError(f"the file ends at {sums.length}, before {end}")
    return begin - begin % BLOCK_BYTES, min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, sums.length)
