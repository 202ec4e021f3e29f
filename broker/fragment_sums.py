"""Checksum files beside sealed fragments: written at sealing, rebuilt when missing.

Earlier versions and adopted appends leave fragments without checksums. Such a fragment is read whole before its first
byte is served, and compared with the SHA-1 in its name. Then its checksums are written, and the next reader does not
wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.disk import Disk
from broadsheet.broker.fragments import SealedFragment, fragment_name, joined_spans, record_path
from broadsheet.journals.block_sums import (
    BLOCK_BYTES,
    BlockSpan,
    BlockSums,
    StoredSums,
    decode_sums,
    encode_sums,
    sums_path,
)

SLICE_BYTES = 64 * BLOCK_BYTES
"""Bytes read at once while a whole fragment is verified."""


def write_sums(fragment: Path, length: int, sums: bytes) -> None:
    """Write the checksums of a fragment's blocks beside it, without a sync because they can be rebuilt. Blocking."""
    path = sums_path(fragment)
    temporary = path.with_name(f".{path.name}.new")
    with contextlib.suppress(OSError):
        temporary.write_bytes(encode_sums(length, sums))
        temporary.replace(path)


def load_sums(fragment: SealedFragment) -> StoredSums | None:
    """Return the checksums beside a fragment; None if they are missing or damaged. Blocking."""
    with contextlib.suppress(OSError):
        encoded = sums_path(fragment.path).read_bytes()
        return decode_sums(encoded, fragment.end - fragment.begin)
    return None


def files_of(fragments: Iterable[SealedFragment]) -> list[Path]:
    """Return all files of the fragments: first the records of copies, because content without one is published."""
    return [
        path
        for each in fragments
        for path in (record_path(each.path), each.path, sums_path(each.path))
    ]


class Verification:
    """Verification of one sealed fragment in slices, so that it can be paced. Blocking."""

    def __init__(self, fragment: SealedFragment, *, from_disk: bool = False) -> None:
        """Open the file.

        Args:
            fragment: What to verify.
            from_disk: Whether to have the kernel forget what it has in memory, before and after.

        Raises:
            OSError: it could not be opened.
        """
        self._fragment = fragment
        self._from_disk = from_disk
        self._working = threading.Lock()
        """Held while a slice is read, so that the file is not closed under it."""
        self._length = fragment.end - fragment.begin
        self._stored = load_sums(fragment)
        self._sha1 = hashlib.sha1(usedforsecurity=False)
        self._fresh = BlockSums()
        self._suspects: list[BlockSpan] = []
        self._file = ContentFile.open_sealed(fragment.path)

    def slices(self) -> Iterator[int]:
        """Verify slice by slice; yield the length of each, bytes.

        Raises:
            OSError: the disk failed.
        """
        for position in range(0, self._length, SLICE_BYTES):
            length = min(SLICE_BYTES, self._length - position)
            with self._working:
                self._verify(position, length)
            yield length

    def _verify(self, position: int, length: int) -> None:
        self._drop_cached(position, length)
        content = self._file.read_present(length, position)
        self._drop_cached(position, length)
        self._sha1.update(content)
        self._fresh.update(content)
        if len(content) < length:
            # The file is too short. A block that is not complete fails its checksum.
            content = content[: len(content) // BLOCK_BYTES * BLOCK_BYTES]
            self._suspects.append((position + len(content), position + length))
        if self._stored is not None:
            self._suspects += self._stored.all_bad(position, content)

    def _drop_cached(self, position: int, length: int) -> None:
        if self._from_disk and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fd, position, length, os.POSIX_FADV_DONTNEED)

    @property
    def damaged(self) -> tuple[BlockSpan, ...]:
        """Damaged spans, as offsets in the file; complete once all slices are read."""
        if self._sha1.digest() == self._fragment.sum:
            return ()
        if self._stored is None or not self._suspects:
            # The SHA-1 does not tell where the damage is.
            return ((0, self._length),)
        return joined_spans(self._suspects)

    def sums(self) -> StoredSums:
        """Return the checksums of an intact fragment; writes them if they were missing or wrong."""
        self._fresh.settle()
        encoded = self._fresh.encoded()
        if self._stored is None or self._suspects:
            write_sums(self._fragment.path, self._length, encoded)
        return StoredSums(self._length, encoded)

    def close(self) -> None:
        """Close the file."""
        with self._working:
            self._file.release()


class SummedPiece(NamedTuple):
    """An intact part of a damaged fragment, in a file that does not yet have its final name."""

    copy: Path
    sealed: SealedFragment


def copy_sound_pieces(
    disk: Disk, fragment: SealedFragment, damaged: Sequence[BlockSpan]
) -> list[SummedPiece]:
    """Copy the content between damaged spans, given as offsets in the file, to separate files. Blocking.

    Raises:
        OSError: the disk failed.
    """
    bounds = [0, *(bound for span in damaged for bound in span), fragment.end - fragment.begin]
    pieces: list[SummedPiece] = []
    with fragment.path.open("rb") as source:
        for begin, end in zip(bounds[::2], bounds[1::2], strict=True):
            if begin == end:
                continue
            source.seek(begin)
            sha1, left = hashlib.sha1(usedforsecurity=False), end - begin
            copy = fragment.path.with_name(f"{fragment.begin + begin:016x}.copy")
            with copy.open("wb") as target:
                while left and (block := source.read(min(SLICE_BYTES, left))):
                    sha1.update(block)
                    target.write(block)
                    left -= len(block)
                target.flush()
                disk.sync_data(target.fileno())
            span = fragment.begin + begin, fragment.begin + end
            path = copy.with_name(fragment_name(*span, sha1.digest()))
            os.utime(copy, (fragment.mod_time, fragment.mod_time))
            pieces.append(
                SummedPiece(copy, SealedFragment(*span, sha1.digest(), fragment.mod_time, path))
            )
    return pieces


def place_pieces(disk: Disk, pieces: Sequence[SummedPiece]) -> None:
    """Give copied pieces their sealed names, durably. Blocking.

    Raises:
        OSError: the disk failed.
    """
    for piece in pieces:
        piece.copy.rename(piece.sealed.path)
    if pieces:
        disk.sync_directory(pieces[0].copy.parent)
