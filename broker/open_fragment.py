"""The growing end of a journal: one file, written at its head. Blocking: called in the disk pool.

A recycled file may still have its old content after the head. Nothing reads that, because recovery goes by the log, and
a fragment is cut to its length before it is sealed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_128

from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.disk import Disk
from broadsheet.broker.fragment_sums import write_sums
from broadsheet.broker.fragments import SealedFragment, fragment_name
from broadsheet.broker.segment_recycler import SegmentRecycler
from broadsheet.broker.staging import StagedAppend
from broadsheet.journals.block_sums import BlockSums, DamagedContentError

if TYPE_CHECKING:
    from hashlib import _Hash as Hash  # the stubs' name for what hashlib returns

COPY_BYTES_MAX = 1 << 20
"""Longest fragment that moves to a recycled file, because its content has to be copied there."""
_PAGE_BYTES = 4096


class Written(NamedTuple):
    """Content written to the file."""

    position: int
    """Position after the content, bytes."""
    checksum: bytes | None
    """XXH3, 16 bytes, if the content was summed."""


def open_path(directory: Path, begin: int) -> Path:
    """Return the path of the open fragment that begins at an offset."""
    return directory / f"{begin:016x}.open"


class OpenFragment:
    """Write side of an open fragment."""

    def __init__(self, disk: Disk, directory: Path, begin: int) -> None:
        self._disk = disk
        self._directory = directory
        self.begin = begin
        """First offset, bytes."""
        self.sums = BlockSums()
        """Checksums of the committed content."""
        self.file = ContentFile.open_growing(self.path)
        self.file.sums = self.sums
        self.sha1 = hashlib.sha1(usedforsecurity=False)
        """SHA-1 of the committed content."""
        self._used_bytes = 0
        """Length of the recycled file before its reuse."""
        self._has_looked = False
        """True once a recycled file was looked for."""

    @property
    def path(self) -> Path:
        """Path of the file."""
        return open_path(self._directory, self.begin)

    def note_committed(self, sha1: Hash, sums: BlockSums) -> None:
        """Take over the checksums of everything committed by now."""
        sums.settle()
        self.sha1 = sha1
        self.sums = self.file.sums = sums

    def write(self, contents: Sequence[StagedAppend], position: int, *, summed: bool) -> Written:
        """Write contents at a position of the file, bytes, and sum them if their record needs a checksum.

        Raises:
            OSError: the disk failed.
        """
        checksum = xxh3_128() if summed else None
        for content in contents:
            for group in content.blocks():
                if checksum is not None:
                    for buffer in group:
                        checksum.update(buffer)
                position = self._disk.write_at(self.file.fd, group, position)
        self._fill_page(position)
        return Written(position, None if checksum is None else checksum.digest())

    def _fill_page(self, position: int) -> None:
        """Write zeros to the end of a position's page, because otherwise the disk must be read for the old bytes."""
        rest = -position % _PAGE_BYTES
        if rest and position < self._used_bytes:
            self._disk.write_at(self.file.fd, [bytes(rest)], position)

    def sync(self) -> None:
        """Force the content to the disk."""
        self._disk.sync_data(self.file.fd)

    def truncate(self, length: int) -> None:
        """Remove everything after a length, bytes."""
        os.ftruncate(self.file.fd, length)
        self._used_bytes = 0

    def looks_for_spare(self, length: int) -> bool:
        """Tell whether to look for a recycled file for a fragment of this length, bytes; once only."""
        return not self._has_looked and length <= COPY_BYTES_MAX

    def move_to_spare(self, spares: SegmentRecycler, length: int) -> ContentFile | None:
        """Continue in a recycled file, if there is one.

        Args:
            spares: Where to look.
            length: Of the content so far, bytes.

        Returns:
            The file so far; its holder releases it on the event loop. None if it stays.

        Raises:
            OSError: the disk failed; it is not known which file has the name.
        """
        self._has_looked = True
        spare = spares.take()
        if spare is None:
            return None
        file = ContentFile.open_growing(spare)
        try:
            used_bytes = os.fstat(file.fd).st_size
            if length:
                self._disk.write_at(file.fd, [self._content(length)], 0)
                self._disk.sync_data(file.fd)
            spare.replace(self.path)
            # The move precedes any commit to the new file.
            self._disk.sync_directory(self._directory)
        except BaseException:
            file.release()
            with contextlib.suppress(OSError):
                spare.unlink(missing_ok=True)
            raise
        before, self.file, self._used_bytes = self.file, file, used_bytes
        file.sums = self.sums
        return before

    def _content(self, length: int) -> memoryview:
        try:
            return self.file.read(length, 0)
        except DamagedContentError as error:
            raise OSError(errno.EIO, f"{self.path}: {error}") from error

    def seal(self, length: int) -> SealedFragment:
        """Give the file its sealed name. Requires that it is cut to its length, bytes, and synced."""
        digest = self.sha1.digest()
        end = self.begin + length
        target = self._directory / fragment_name(self.begin, end, digest)
        os.utime(self.file.fd)
        self.path.rename(target)
        mod_time = int(target.stat().st_mtime)
        write_sums(target, length, self.sums.encoded())
        return SealedFragment(self.begin, end, digest, mod_time, target)
