"""Fragments of one journal: their names and copies, and the lookup of the one that serves an offset.

Source: gazette/core broker/protocol/fragment_extensions.go (names), broker/fragment/index.go (queries),
broker/fragment/cover_set.go (fragments of a store).
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from sortedcontainers import SortedDict

from broadsheet.broker.disk import Disk
from broadsheet.runtime.documents import DocumentError, decode_json
from broadsheet.wire.journal_pb2 import CompressionCodec, Fragment, SHA1Sum

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{40})\.raw")
STORED_SUFFIX: Final = ".stored"
"""Added to a fragment's path: the record of its copy in a store."""
FETCHED_SUFFIX: Final = ".fetched"
"""Of a file that content is fetched into; the name begins with a dot."""
_OBJECT_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{40})(\.[a-z]+)?", re.IGNORECASE)
_EXTENSIONS: Final = {
    CompressionCodec.NONE: ".raw",
    CompressionCodec.GZIP: ".gz",
    CompressionCodec.ZSTANDARD: ".zst",
    CompressionCodec.SNAPPY: ".sz",
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: "",
}
_CODECS: Final = {extension: codec for codec, extension in _EXTENSIONS.items()} | {
    ".gzip": CompressionCodec.GZIP,
    ".zstandard": CompressionCodec.ZSTANDARD,
    ".snappy": CompressionCodec.SNAPPY,
    ".gzod": CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
}


class StoredCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Copy of a sealed fragment in a fragment store."""

    store: str
    """URL of the store, as in the journal's spec."""
    key: str
    """Path of the object below the store: journal, postfix, name."""
    codec: int
    """CompressionCodec of the object."""
    mod_time: int
    """Of the object, Unix seconds."""
    postfix: str = ""
    """Part of the path between journal and name."""


@dataclass(frozen=True, slots=True)
class SealedFragment:
    """A finished, immutable span of a journal in a separate file."""

    begin: int
    """First offset, bytes."""
    end: int
    """Offset after the last byte, bytes."""
    sum: bytes
    """SHA-1 of the content, 20 bytes."""
    mod_time: int
    """Time of sealing, or of the copy in a store, Unix seconds."""
    path: Path
    """Local file, which may be missing if there is a copy in a store."""
    stored: StoredCopy | None = None


def fragment_name(begin: int, end: int, digest: bytes) -> str:
    """Return the content-addressed file name of a sealed fragment."""
    return f"{begin:016x}-{end:016x}-{digest.hex()}.raw"


def parse_fragment(path: Path) -> SealedFragment | None:
    """Return the fragment that a file name describes, or None if the name is not a fragment's.

    Raises:
        FileNotFoundError: there is neither the file nor a record of a copy in a store.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    begin, end, digest = int(match[1], 16), int(match[2], 16), bytes.fromhex(match[3])
    stored = read_record(path)
    mod_time = int(path.stat().st_mtime) if stored is None else stored.mod_time
    return SealedFragment(begin, end, digest, mod_time, path, stored)


def record_path(fragment: Path) -> Path:
    """Return the path of the record of a fragment's copy in a store."""
    return fragment.with_name(fragment.name + STORED_SUFFIX)


def read_record(fragment: Path) -> StoredCopy | None:
    """Return what is recorded of a fragment's copy in a store; None without a record. Blocking."""
    # A damaged record is as none: the fragment is published again, and its copy is found in the store.
    with contextlib.suppress(FileNotFoundError, DocumentError):
        return decode_json(record_path(fragment).read_bytes(), StoredCopy)
    return None


def write_record(disk: Disk, fragment: SealedFragment) -> None:
    """Record durably that a fragment is in a store. Blocking.

    Raises:
        OSError: the disk failed.
    """
    assert fragment.stored is not None, "the fragment is in no store"
    disk.write_file(record_path(fragment.path), msgspec.json.encode(fragment.stored))


class ObjectName(NamedTuple):
    """Content of a fragment's name in a store."""

    begin: int
    end: int
    sum: bytes
    codec: int


def object_name(fragment: SealedFragment, codec: int) -> str:
    """Return the name of a fragment's copy that is compressed by a codec."""
    name = fragment_name(fragment.begin, fragment.end, fragment.sum)
    return name.removesuffix(".raw") + _EXTENSIONS[CompressionCodec.ValueType(codec)]


def parse_object_name(name: str) -> ObjectName | None:
    """Return the content of a name in a store, or None if it is no fragment's."""
    match = _OBJECT_NAME.fullmatch(name)
    codec = None if match is None else _CODECS.get((match[4] or "").lower())
    if match is None or codec is None:
        return None
    found = ObjectName(int(match[1], 16), int(match[2], 16), bytes.fromhex(match[3]), codec)
    return found if found.begin < found.end else None


def cover_set(fragments: Iterable[SealedFragment]) -> list[SealedFragment]:
    """Return the fragments in order of their offsets, without those that another one contains. They may overlap."""
    covering: list[SealedFragment] = []
    # Of those that begin at the same offset, the longest comes first.
    for fragment in sorted(fragments, key=lambda each: (each.begin, -each.end)):
        if not covering or fragment.end > covering[-1].end:
            covering.append(fragment)
    return covering


def joined_spans(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return spans [begin, end) in order, merged if they touch or overlap."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return tuple(joined)


class FragmentIndex:
    """Sealed fragments in order of their offsets; none contains another, and local ones do not overlap."""

    def __init__(self, fragments: Iterable[SealedFragment] = ()) -> None:
        self._by_begin: SortedDict[int, SealedFragment] = SortedDict(
            (fragment.begin, fragment) for fragment in fragments
        )

    def __len__(self) -> int:
        return len(self._by_begin)

    def __iter__(self) -> Iterator[SealedFragment]:
        return iter(self._by_begin.values())

    def add(self, fragment: SealedFragment) -> None:
        """Add a fragment that was sealed at the end."""
        self._by_begin[fragment.begin] = fragment

    def remove(self, fragment: SealedFragment) -> None:
        """Remove a fragment whose file is about to be deleted."""
        self._by_begin.pop(fragment.begin, None)

    def at(self, begin: int) -> SealedFragment | None:
        """Return the fragment that begins at an offset."""
        found: SealedFragment | None = self._by_begin.get(begin)
        return found

    @property
    def newest(self) -> SealedFragment | None:
        """The last fragment, which must stay because it tells where the journal ends."""
        if not self._by_begin:
            return None
        last: SealedFragment = self._by_begin.peekitem(-1)[1]
        return last

    @property
    def newest_stored(self) -> SealedFragment | None:
        """The last fragment that has a copy in a store."""
        backwards = (self._by_begin[begin] for begin in reversed(self._by_begin))
        return next((each for each in backwards if each.stored is not None), None)

    def at_or_after(self, offset: int) -> SealedFragment | None:
        """Return the fragment that covers an offset, else the next one, else None."""
        position = self._by_begin.bisect_right(offset)
        if position:
            before: SealedFragment = self._by_begin.peekitem(position - 1)[1]
            if offset < before.end:
                return before
        if position < len(self._by_begin):
            after: SealedFragment = self._by_begin.peekitem(position)[1]
            return after
        return None

    def from_begin(self, begin: int) -> Iterator[SealedFragment]:
        """Yield the fragments that begin at or after an offset."""
        for key in self._by_begin.irange(minimum=begin):
            yield self._by_begin[key]


_PARTS = struct.Struct(">QQI")


def sha1_sum(digest: bytes) -> SHA1Sum:
    """Return the wire form of a 20-byte digest: three integers, read big-endian from it.

    Source: gazette/core broker/protocol/fragment_extensions.go (SHA1SumFromDigest).
    """
    part1, part2, part3 = _PARTS.unpack(digest)
    return SHA1Sum(part1=part1, part2=part2, part3=part3)


def as_described(index: FragmentIndex, described: Fragment) -> SealedFragment | None:
    """Return the sealed fragment that a client describes; None if there is none of that begin, end and sum."""
    found = index.at(described.begin)
    if found is None or found.end != described.end or sha1_sum(found.sum) != described.sum:
        return None
    return found
