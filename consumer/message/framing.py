r"""How messages stand one after the other in a journal's bytes.

An *unframer* takes a journal's content as it arrives, in chunks cut anywhere, and returns whole payloads with their
offsets. It copies each payload once and keeps only an incomplete last frame.

    application/x-ndjson            payload \n
    text/csv                        payload \n, in which a newline between quotes ends nothing
    application/x-protobuf-fixed    66 33 93 36 | payload length, uint32 little-endian | payload
    application/vnd.apache.arrow.stream     the same frame

Source: gazette/core message/{json_framing,csv_framing,fixed_framing}.go (the formats).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Protocol

from consumer.errors import ContentTypeError, FramingError

NDJSON: Final = "application/x-ndjson"
CSV: Final = "text/csv"
PROTOBUF_FIXED: Final = "application/x-protobuf-fixed"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"

FRAME_BYTES_MAX: Final = 64 << 20
"""A longer frame is refused: an unframer must not buffer without end because a length or a newline is lost."""

FIXED_MAGIC: Final = bytes((0x66, 0x33, 0x93, 0x36))
_FIXED_HEADER = struct.Struct("<4sI")


@dataclass(frozen=True, slots=True)
class Frames:
    """The whole frames found so far, in offset order. Every column has shape (N,)."""

    begins: list[int]
    """Offsets of first bytes, frame included."""
    ends: list[int]
    payloads: list[bytes]
    """Without their frame."""
    skipped: tuple[tuple[int, int], ...] = ()
    """Ranges [begin, end) of bytes that belong to no frame."""


class Unframer(Protocol):
    """Finds frames in one journal's content."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame that wait for more; a newline after a fixed frame is none."""
        ...

    def feed(self, content: bytes) -> Frames:
        """Take the bytes that follow those fed before, and return the frames that end in them.

        Raises:
            FramingError: a frame is longer than `FRAME_BYTES_MAX`.
        """
        ...


class Framing(Protocol):
    """One way to delimit payloads."""

    content_type: str

    def frame(self, payload: bytes) -> bytes:
        """Return the bytes to append for a payload.

        Raises:
            ValueError: the payload cannot be delimited in this framing.
        """
        ...

    def unframer(self, *, journal: str, offset: int) -> Unframer:
        """Return an unframer of the journal's content from `offset` on, bytes."""
        ...


class LineFraming:
    """A payload a line."""

    content_type = NDJSON

    def frame(self, payload: bytes) -> bytes:
        """Return the payload and a newline."""
        if b"\n" in payload:
            raise ValueError("a JSON-lines payload must not hold a newline")
        return payload + b"\n"

    def unframer(self, *, journal: str, offset: int) -> Unframer:
        """Return an unframer of lines from `offset` on."""
        return _LineUnframer(journal, offset)


class CsvFraming:
    """A CSV record after the other; strings between quotes may hold newlines."""

    content_type = CSV

    def frame(self, payload: bytes) -> bytes:
        """Return the record and a newline."""
        if payload.count(b'"') % 2:
            raise ValueError("a quote of the CSV record is not closed")
        return payload + b"\n"

    def unframer(self, *, journal: str, offset: int) -> Unframer:
        """Return an unframer of records from `offset` on."""
        return _CsvUnframer(journal, offset)


class FixedFraming:
    """A magic number and a length before each payload."""

    def __init__(self, content_type: str = PROTOBUF_FIXED) -> None:
        """Name the content type of the payloads."""
        self.content_type = content_type

    def frame(self, payload: bytes) -> bytes:
        """Return header and payload."""
        return _FIXED_HEADER.pack(FIXED_MAGIC, len(payload)) + payload

    def unframer(self, *, journal: str, offset: int) -> Unframer:
        """Return an unframer of length-prefixed payloads from `offset` on."""
        return _FixedUnframer(journal, offset)


FRAMINGS: Mapping[str, Framing] = MappingProxyType(
    {
        framing.content_type: framing
        for framing in (LineFraming(), CsvFraming(), FixedFraming(), FixedFraming(ARROW_STREAM))
    }
)
"""Framings by content type."""


def framing_for(content_type: str, *, journal: str = "") -> Framing:
    """Return the framing of a content type; `journal` is named by the error.

    Raises:
        ContentTypeError: no framing of messages has this content type.
    """
    framing = FRAMINGS.get(content_type)
    if framing is None:
        raise ContentTypeError(journal, content_type, f"expected one of {', '.join(FRAMINGS)}")
    return framing


class _LineUnframer:
    def __init__(self, journal: str, offset: int) -> None:
        self._journal = journal
        self._offset = offset
        """Where the pending line begins."""
        self._pending: list[bytes] = []
        self.pending_bytes = 0

    def feed(self, content: bytes) -> Frames:
        lines = content.split(b"\n")
        rest = lines.pop()
        if not lines:
            self._keep(rest)
            return Frames([], [], [])
        # Only the first line can have a beginning that came earlier: joining it alone spares a copy of the chunk.
        self._pending.append(lines[0])
        lines[0] = b"".join(self._pending)
        bounds = list(accumulate([len(line) + 1 for line in lines], initial=self._offset))
        self._offset = bounds[-1]
        self._pending.clear()
        self.pending_bytes = 0
        self._keep(rest)
        return Frames(bounds[:-1], bounds[1:], lines)

    def _keep(self, part: bytes) -> None:
        if part:
            self._pending.append(part)
            self.pending_bytes += len(part)
            _check_size(self._journal, self._offset, self.pending_bytes)


class _CsvUnframer:
    def __init__(self, journal: str, offset: int) -> None:
        self._journal = journal
        self._lines = _LineUnframer(journal, offset)
        self._begin = offset
        """Where the open record begins, if there is one."""
        self._open: list[bytes] = []
        """Lines of a record whose quote is not closed."""
        self._open_bytes = 0

    @property
    def pending_bytes(self) -> int:
        return self._open_bytes + self._lines.pending_bytes

    def feed(self, content: bytes) -> Frames:
        lines = self._lines.feed(content)
        if not self._open and not any(b'"' in line for line in lines.payloads):
            return lines
        found = Frames([], [], [])
        for begin, end, line in zip(lines.begins, lines.ends, lines.payloads, strict=True):
            if not self._open:
                self._begin = begin
            quote_turns = line.count(b'"') % 2 == 1
            if quote_turns == bool(self._open):
                self._close(found, end, line)
            else:
                self._open.append(line)
                self._open_bytes += end - begin
                _check_size(self._journal, self._begin, self._open_bytes)
        return found

    def _close(self, found: Frames, end: int, line: bytes) -> None:
        found.begins.append(self._begin)
        found.ends.append(end)
        found.payloads.append(b"\n".join([*self._open, line]))
        self._open.clear()
        self._open_bytes = 0


class _FixedUnframer:
    def __init__(self, journal: str, offset: int) -> None:
        self._journal = journal
        self._offset = offset
        """Where the pending bytes begin."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._wanted_bytes = _FIXED_HEADER.size
        """Fewer pending bytes than these hold no whole frame: joining chunks before would copy in vain."""

    @property
    def pending_bytes(self) -> int:
        lone_newline = self._pending_bytes == 1 and b"".join(self._pending) == b"\n"
        return 0 if lone_newline else self._pending_bytes

    def feed(self, content: bytes) -> Frames:
        self._pending.append(content)
        self._pending_bytes += len(content)
        if self._pending_bytes < self._wanted_bytes:
            return Frames([], [], [])
        buffer = b"".join(self._pending)
        frames, used = self._parse(buffer)
        self._pending = [buffer[used:]]
        self._pending_bytes = len(buffer) - used
        self._offset += used
        return frames

    def _parse(self, buffer: bytes) -> tuple[Frames, int]:
        """Return the frames of `buffer` and how many of its bytes they, and what was skipped, take."""
        begins: list[int] = []
        ends: list[int] = []
        payloads: list[bytes] = []
        skipped: list[tuple[int, int]] = []
        base, header, size = self._offset, _FIXED_HEADER.size, len(buffer)
        at = 0
        wanted = header
        while size - at >= header:
            magic, length = _FIXED_HEADER.unpack_from(buffer, at)
            if magic != FIXED_MAGIC:
                resumed = _next_magic(buffer, at + 1)
                skipped.append((base + at, base + resumed))
                at = resumed
                continue
            _check_size(self._journal, base + at, length)
            end = at + header + length
            if end > size:
                wanted = end - at
                break
            begins.append(base + at)
            ends.append(base + end)
            payloads.append(buffer[at + header : end])
            at = end
        self._wanted_bytes = wanted
        return Frames(begins, ends, payloads, tuple(skipped)), at


def _next_magic(buffer: bytes, start: int) -> int:
    """Return where the magic number next begins, or may begin with bytes still to come."""
    found = buffer.find(FIXED_MAGIC, start)
    if found >= 0:
        return found
    for kept in range(len(FIXED_MAGIC) - 1, 0, -1):
        if buffer.endswith(FIXED_MAGIC[:kept]):
            return max(start, len(buffer) - kept)
    return len(buffer)


def _check_size(journal: str, offset: int, size: int) -> None:
    if size > FRAME_BYTES_MAX:
        raise FramingError(
            journal,
            offset=offset,
            detail=f"a frame of {size} bytes or more; the longest allowed is {FRAME_BYTES_MAX}",
        )
