"""Format of the write-ahead log of SQLite.

    header (32 bytes): magic, version, page size, sequence, salt 1, salt 2, checksum (8)
    frame:             page number, database size in pages if the frame ends a transaction (else 0), salts (8),
                       checksum (8), then the page

Frames with other salts than those of the header remain from before the log was restarted.

The index (`-shm`) is in memory that processes share; its header has the number of valid and committed frames, at byte
16 and in the byte order of the machine.

Source: sqlite.org/fileformat2.html, section 4 (the format); sqlite.org/walformat.html, section 2.1 (the header of the
index).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import Final

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
INDEX_HEADER_BYTES: Final = 48
_MAGICS: Final = (0x377F0682, 0x377F0683)
_HEADER: Final = struct.Struct(">4xII4x8s8x")
_WAL_INDEX: Final = struct.Struct("=I8xB3xI28x")
_INDEX_VERSION: Final = 3_007_000
_FRAME: Final = struct.Struct(">II8s")


@dataclass(frozen=True, slots=True)
class WalHeader:
    """The header of a write-ahead log, which tells how to read its frames."""

    page_bytes: int
    salts: bytes

    @property
    def frame_bytes(self) -> int:
        """Length of a frame with its header."""
        return FRAME_HEADER_BYTES + self.page_bytes


@dataclass(frozen=True, slots=True)
class CommittedFrames:
    """The frames up to and with the last that ends a transaction."""

    length_bytes: int
    pages: frozenset[int]
    """Numbers of the pages they hold, from 1."""


def parse_header(content: bytes) -> WalHeader | None:
    """Return the header at the beginning of a log; None if the log is empty or not begun."""
    if len(content) < HEADER_BYTES:
        return None
    if struct.unpack_from(">I", content)[0] not in _MAGICS:
        return None
    _, page_bytes, salts = _HEADER.unpack_from(content)
    return WalHeader(65536 if page_bytes == 1 else page_bytes, salts)


def committed_frames(header: WalHeader, frames: bytes) -> CommittedFrames | None:
    """Return what of `frames` (whole frames, from some frame's beginning) is committed; None if nothing is."""
    pages: set[int] = set()
    committed: CommittedFrames | None = None
    for end, page, database_pages in _frames(header, frames):
        pages.add(page)
        if database_pages:
            committed = CommittedFrames(end, frozenset(pages))
    return committed


def pages_in(content: bytes | mmap) -> frozenset[int]:
    """Return the numbers of all pages that a whole log, header and frames, may hold; committed or not."""
    header = parse_header(content[:HEADER_BYTES])
    if header is None:
        return frozenset()
    return frozenset(page for _, page, _ in _frames(header, content, first=HEADER_BYTES))


def committed_in_index(content: bytes) -> int:
    """Return how many frames are valid and committed, by the header of an index; 0 if it is not set up."""
    if len(content) < INDEX_HEADER_BYTES:
        return 0
    version, is_set_up, frames = _WAL_INDEX.unpack_from(content)
    return int(frames) if version == _INDEX_VERSION and is_set_up else 0


def _frames(
    header: WalHeader, frames: bytes | mmap, *, first: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Yield (end in bytes, page, database pages or 0) of frames with the header's salts, from byte `first` on."""
    size = header.frame_bytes
    for begin in range(first, len(frames) - size + 1, size):
        page, database_pages, salts = _FRAME.unpack_from(frames, begin)
        if salts != header.salts:
            return
        yield begin + size, page, database_pages
