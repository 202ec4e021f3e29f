"""Files of sums beside sealed fragments: written when a fragment is sealed, made again where they are missing.

A fragment without sums, as earlier versions and adopted appends leave them, is read whole before its first byte is
served, and compared with the SHA-1 in its name. Then its sums are written, and the next reader does not wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from consumer.journal.broker.block_sums import (
    BLOCK_BYTES,
    BlockSums,
    Span,
    StoredSums,
    decode_sums,
    encode_sums,
    sums_path,
)
from consumer.journal.broker.content_file import ContentFile
from consumer.journal.broker.fragments import SealedFragment, joined_spans

SLICE_BYTES = 64 * BLOCK_BYTES
"""Read at once while a whole fragment is verified."""


def write_sums(fragment: Path, length: int, sums: bytes) -> None:
    """Write the sums of a fragment's blocks beside it, unsynced: they can be made again. Blocking."""
    path = sums_path(fragment)
    temporary = path.with_name(f".{path.name}.new")
    with contextlib.suppress(OSError):
        temporary.write_bytes(encode_sums(length, sums))
        temporary.replace(path)


def load_sums(fragment: SealedFragment) -> StoredSums | None:
    """Return the sums beside a fragment; None if there are none, or damaged ones. Blocking."""
    with contextlib.suppress(OSError):
        encoded = sums_path(fragment.path).read_bytes()
        return decode_sums(encoded, fragment.end - fragment.begin)
    return None


def files_of(fragments: Iterable[SealedFragment]) -> list[Path]:
    """Return all files of fragments."""
    return [path for each in fragments for path in (each.path, sums_path(each.path))]


class Verification:
    """Verification of one sealed fragment, by slices, so that it can be paced. Blocking."""

    def __init__(self, fragment: SealedFragment) -> None:
        self._fragment = fragment
        self._length = fragment.end - fragment.begin
        self._stored = load_sums(fragment)
        self._sha1 = hashlib.sha1(usedforsecurity=False)
        self._fresh = BlockSums()
        self._suspects: list[Span] = []
        self._file = ContentFile.open_sealed(fragment.path)

    def slices(self) -> Iterator[int]:
        """Verify slice by slice; yield the length of each, bytes.

        Raises:
            OSError: the disk failed, or the file is shorter than it should be.
        """
        for position in range(0, self._length, SLICE_BYTES):
            length = min(SLICE_BYTES, self._length - position)
            content = self._file.read_as_is(length, position)
            self._sha1.update(content)
            self._fresh.update(content)
            if self._stored is not None:
                self._suspects += self._stored.all_bad(position, content)
            yield length

    @property
    def damaged(self) -> tuple[Span, ...]:
        """What does not verify, as offsets in the file; once all slices are read."""
        if self._sha1.digest() == self._fragment.sum:
            return ()
        if self._stored is None or not self._suspects:
            # Nothing tells where.
            return ((0, self._length),)
        return joined_spans(self._suspects)

    def sums(self) -> StoredSums:
        """Return the sums of what is damaged nowhere, having written them if they were missing or wrong."""
        self._fresh.settle()
        encoded = self._fresh.encoded()
        if self._stored is None or self._suspects:
            write_sums(self._fragment.path, self._length, encoded)
        return StoredSums(self._length, encoded)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file.fd)
