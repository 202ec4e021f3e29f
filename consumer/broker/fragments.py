"""Fragments of one journal: their names, and the lookup of the one that serves an offset.

Source: gazette/core broker/protocol/fragment_extensions.go (names), broker/fragment/index.go (queries).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sortedcontainers import SortedDict

from broadsheet.consumer.protocol.journal_pb2 import SHA1Sum

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{40})\.raw")


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
    """Time of sealing, Unix seconds."""
    path: Path


def fragment_name(begin: int, end: int, digest: bytes) -> str:
    """Return the content-addressed file name of a sealed fragment."""
    return f"{begin:016x}-{end:016x}-{digest.hex()}.raw"


def parse_fragment(path: Path) -> SealedFragment | None:
    """Return the fragment that a file name describes, or None if the name is not a fragment's."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    begin, end, digest = int(match[1], 16), int(match[2], 16), bytes.fromhex(match[3])
    return SealedFragment(begin, end, digest, int(path.stat().st_mtime), path)


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
    """Sealed fragments in order of their offsets; they never overlap."""

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


# Wire form of SHA-1 digests: three integers, read big-endian from the digest.
#
# Source: gazette/core broker/protocol/fragment_extensions.go (SHA1SumFromDigest).

_PARTS = struct.Struct(">QQI")


def sha1_sum(digest: bytes) -> SHA1Sum:
    """Return the wire form of a 20-byte digest."""
    part1, part2, part3 = _PARTS.unpack(digest)
    return SHA1Sum(part1=part1, part2=part2, part3=part3)
