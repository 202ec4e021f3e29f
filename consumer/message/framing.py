r"""Framing: the delimiting of messages in a journal's bytes.

An *unframer* takes a journal's content as it arrives, in chunks cut anywhere, and returns whole payloads with their
offsets. It copies each payload once and keeps only an incomplete last frame.

    application/x-ndjson            payload \n
    text/csv                        payload \n, in which a newline between quotes ends nothing
    application/x-protobuf-fixed    66 33 93 36 | payload length, uint32 little-endian | payload
    application/vnd.apache.arrow.stream     the same frame

Source: gazette/core message/{json_framing,csv_framing,fixed_framing}.go (the formats).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Protocol

from broadsheet.consumer.errors import ContentTypeError, FramingError

NDJSON: Final = "application/x-ndjson"
"""The content type of JSON messages, one a line."""
CSV: Final = "text/csv"
PROTOBUF_FIXED: Final = "application/x-protobuf-fixed"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"

FRAME_BYTES_MAX: Final = 64 << 20
"""Maximum frame length: an unframer must not buffer without bound because a length or a newline is lost."""

FIXED_MAGIC: Final = bytes((0x66, 0x33, 0x93, 0x36))
_FIXED_HEADER = struct.Struct("<4sI")
_UUID_FIELD: Final = re.compile(
    rb'"?[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"?(,|$)'
)
"""The beginning of a publisher's CSV record; a line within a quoted string is unlikely to begin so."""


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
    skipped_content: tuple[bytes, ...] = ()
    """The bytes of each range, if damage is read around."""
    error: FramingError | None = None
    """The damage after these frames, if damage is not read around; `feed` must not be called again then."""


class Unframer(Protocol):
    """The search for frames in one journal's content."""

    @property
    def pending_bytes(self) -> int:
        """Number of bytes held of an incomplete frame; a newline after a fixed frame is not one."""
        ...

    def feed(self, content: bytes) -> Frames:
        """Take the bytes that follow those fed before, and return the frames that end in them.

        If a frame is longer than `FRAME_BYTES_MAX`, and damage is not read around, `Frames.error` says so: the frames
        before it can still be used.
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

    def unframer(self, *, journal: str, offset: int, read_around: bool = False) -> Unframer:
        """Return an unframer of the journal's content.

        Args:
            journal: Named by errors.
            offset: Offset at which a frame begins, bytes.
            read_around: Skip damage instead of failing at it. The skipped ranges depend on the journal's bytes and
                `offset` alone, never on how the bytes arrive; the bytes are kept in `Frames.skipped_content`.
        """
        ...


class LineFraming:
    """Framing as lines, one payload each."""

    content_type = NDJSON

    def frame(self, payload: bytes) -> bytes:
        """Return the payload and a newline."""
        if b"\n" in payload:
            raise ValueError("a JSON-lines payload must not hold a newline")
        return payload + b"\n"

    def unframer(self, *, journal: str, offset: int, read_around: bool = False) -> Unframer:
        """Return an unframer of lines from `offset` on."""
        return _LineUnframer(journal, offset, read_around=read_around)


class CsvFraming:
    """Framing as CSV records; strings between quotes may hold newlines."""

    content_type = CSV

    def frame(self, payload: bytes) -> bytes:
        """Return the record and a newline."""
        if payload.count(b'"') % 2:
            raise ValueError("a quote of the CSV record is not closed")
        return payload + b"\n"

    def unframer(self, *, journal: str, offset: int, read_around: bool = False) -> Unframer:
        """Return an unframer of records from `offset` on."""
        return _CsvUnframer(journal, offset, read_around=read_around)


class FixedFraming:
    """Framing by a magic number and a length before each payload."""

    def __init__(self, content_type: str = PROTOBUF_FIXED) -> None:

        self.content_type = content_type

    def frame(self, payload: bytes) -> bytes:
        """Return header and payload."""
        return _FIXED_HEADER.pack(FIXED_MAGIC, len(payload)) + payload

    def unframer(self, *, journal: str, offset: int, read_around: bool = False) -> Unframer:
        """Return an unframer of length-prefixed payloads from `offset` on."""
        return _FixedUnframer(journal, offset, read_around=read_around)


FRAMINGS: Mapping[str, Framing] = MappingProxyType(
    {
        framing.content_type: framing
        for framing in (LineFraming(), CsvFraming(), FixedFraming(), FixedFraming(ARROW_STREAM))
    }
)
"""Framings by content type."""


def framing_for(content_type: str, *, journal: str = "") -> Framing:
    """Return the framing of a content type; the error names `journal`.

    Raises:
        ContentTypeError: no framing of messages has this content type.
    """
    framing = FRAMINGS.get(content_type)
    if framing is None:
        raise ContentTypeError(journal, content_type, f"expected one of {', '.join(FRAMINGS)}")
    return framing


class _Skipped:
    """Ranges of bytes that belong to no frame, reassembled where they arrived in parts."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._begin = 0
        self._ranges: list[tuple[int, int]] = []
        self._contents: list[bytes] = []
        self.open_bytes = 0
        """Bytes of a range that may continue."""

    def add(self, begin: int, content: bytes) -> None:
        """Add the bytes at offset `begin`; they follow those of an open range directly."""
        if not self._parts:
            self._begin = begin
        self._parts.append(content)
        self.open_bytes += len(content)
        if self.open_bytes >= FRAME_BYTES_MAX:
            self._cut()

    def close(self) -> None:
        """End the range: a frame follows."""
        if self._parts:
            content = b"".join(self._parts)
            self._ranges.append((self._begin, self._begin + len(content)))
            self._contents.append(content)
            self._parts, self.open_bytes = [], 0

    def take(self) -> tuple[tuple[tuple[int, int], ...], tuple[bytes, ...]]:
        """Remove and return the ranges that have ended, and their bytes."""
        taken = tuple(self._ranges), tuple(self._contents)
        self._ranges, self._contents = [], []
        return taken

    def _cut(self) -> None:
        """Split the range after each `FRAME_BYTES_MAX` to bound memory, wherever its parts began."""
        content, begin = b"".join(self._parts), self._begin
        whole = len(content) - len(content) % FRAME_BYTES_MAX
        for at in range(0, whole, FRAME_BYTES_MAX):
            self._ranges.append((begin + at, begin + at + FRAME_BYTES_MAX))
            self._contents.append(content[at : at + FRAME_BYTES_MAX])
        rest = content[whole:]
        self._begin, self._parts, self.open_bytes = begin + whole, [rest] if rest else [], len(rest)


class _LineUnframer:
    def __init__(self, journal: str, offset: int, *, read_around: bool) -> None:
        self._journal = journal
        self._offset = offset
        """Offset at which the pending line begins."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._read_around = read_around
        self._skipped = _Skipped()
        self._within_damage = False
        """Whether the current line is too long already."""

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes + self._skipped.open_bytes

    def feed(self, content: bytes) -> Frames:
        lines = content.split(b"\n")
        rest = lines.pop()
        if not lines:
            error = self._keep(rest)
            return Frames([], [], [], *self._skipped.take(), error)
        if self._within_damage:
            self._end_damage(lines.pop(0))
        # Only the first line can have begun in an earlier chunk: joining it alone avoids a copy of this chunk.
        elif self._pending:
            self._pending.append(lines[0])
            lines[0] = b"".join(self._pending)
        bounds = list(accumulate([len(line) + 1 for line in lines], initial=self._offset))
        self._offset = bounds[-1]
        self._pending.clear()
        self._pending_bytes = 0
        begins, ends = bounds[:-1], bounds[1:]
        # A line that arrived whole counts too, so that damage does not depend on how the bytes arrive.
        if self._read_around and max(map(len, lines), default=0) > FRAME_BYTES_MAX:
            begins, ends, lines = self._without_damage(begins, ends, lines)
        error = self._keep(rest)
        return Frames(begins, ends, lines, *self._skipped.take(), error)

    def _keep(self, part: bytes) -> FramingError | None:
        """Keep the beginning of a line; return the error if it is too long."""
        if not part:
            return None
        if self._within_damage:
            self._skip(part)
            return None
        self._pending.append(part)
        self._pending_bytes += len(part)
        if self._pending_bytes <= FRAME_BYTES_MAX:
            return None
        if not self._read_around:
            return _too_long(self._journal, self._offset, self._pending_bytes)
        self._within_damage = True
        self._skip(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0
        return None

    def _skip(self, content: bytes) -> None:
        self._skipped.add(self._offset, content)
        self._offset += len(content)

    def _end_damage(self, last: bytes) -> None:
        self._skip(last + b"\n")
        self._skipped.close()
        self._within_damage = False

    def _without_damage(
        self, begins: list[int], ends: list[int], lines: list[bytes]
    ) -> tuple[list[int], list[int], list[bytes]]:
        fitting = [index for index, line in enumerate(lines) if len(line) <= FRAME_BYTES_MAX]
        for begin, line in zip(begins, lines, strict=True):
            if len(line) > FRAME_BYTES_MAX:
                self._skipped.add(begin, line + b"\n")
                self._skipped.close()
        return (
            [begins[i] for i in fitting],
            [ends[i] for i in fitting],
            [lines[i] for i in fitting],
        )


class _CsvUnframer:
    def __init__(self, journal: str, offset: int, *, read_around: bool) -> None:
        self._journal = journal
        self._lines = _LineUnframer(journal, offset, read_around=read_around)
        self._read_around = read_around
        self._skipped = _Skipped()
        self._begin = offset
        """Offset at which the open record begins, if there is one."""
        self._open: list[bytes] = []
        """Lines of a record whose quote is not closed."""
        self._open_bytes = 0

    @property
    def pending_bytes(self) -> int:
        return self._open_bytes + self._lines.pending_bytes

    def feed(self, content: bytes) -> Frames:
        lines = self._lines.feed(content)
        # The usual case: without quotes every line is a record.
        if not self._open and not any(b'"' in line for line in lines.payloads):
            return lines
        found = Frames([], [], [])
        error = lines.error
        for begin, end, line in zip(lines.begins, lines.ends, lines.payloads, strict=True):
            if self._open and self._read_around and self._is_damaged(begin, line):
                self._skip_open()
            self._take(found, begin, end, line)
            if self._open_bytes > FRAME_BYTES_MAX and not self._read_around:
                error = _too_long(self._journal, self._begin, self._open_bytes)
                break
        ranges, contents = self._skipped.take()
        ordered = sorted(
            zip((*ranges, *lines.skipped), (*contents, *lines.skipped_content), strict=False)
        )
        return Frames(
            found.begins,
            found.ends,
            found.payloads,
            tuple(place for place, _ in ordered),
            tuple(content for _, content in ordered),
            error,
        )

    def _take(self, found: Frames, begin: int, end: int, line: bytes) -> None:
        if not self._open:
            self._begin = begin
        quote_turns = line.count(b'"') % 2 == 1
        # The record ends here: its open quote is closed, or none was opened.
        if quote_turns == bool(self._open):
            self._close(found, end, line)
            return
        self._open.append(line)
        self._open_bytes += end - begin

    def _is_damaged(self, begin: int, line: bytes) -> bool:
        """Tell whether the open record lost its closing quote.

        It did if the next record begins, a skipped line lies within the open one, or the open one is too long.
        """
        return (
            _UUID_FIELD.match(line) is not None
            or begin != self._begin + self._open_bytes
            or self._open_bytes + len(line) > FRAME_BYTES_MAX
        )

    def _skip_open(self) -> None:
        self._skipped.add(self._begin, b"\n".join([*self._open, b""]))
        self._skipped.close()
        self._open.clear()
        self._open_bytes = 0

    def _close(self, found: Frames, end: int, line: bytes) -> None:
        found.begins.append(self._begin)
        found.ends.append(end)
        found.payloads.append(b"\n".join([*self._open, line]))
        self._open.clear()
        self._open_bytes = 0


class _FixedUnframer:
    def __init__(self, journal: str, offset: int, *, read_around: bool) -> None:
        self._journal = journal
        self._offset = offset
        """Offset at which the pending bytes begin."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._wanted_bytes = _FIXED_HEADER.size
        """Fewer pending bytes than this cannot hold a whole frame, so joining their chunks would be a wasted copy."""
        self._read_around = read_around
        self._skipped = _Skipped()

    @property
    def pending_bytes(self) -> int:
        # Text tools add a newline after the last frame: it is not an incomplete frame.
        lone_newline = self._pending_bytes == 1 and b"".join(self._pending) == b"\n"
        return self._skipped.open_bytes + (0 if lone_newline else self._pending_bytes)

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
        """Return the frames of `buffer`, and the number of its bytes that were framed or skipped."""
        begins: list[int] = []
        ends: list[int] = []
        payloads: list[bytes] = []
        base, header, size = self._offset, _FIXED_HEADER.size, len(buffer)
        at = 0
        wanted = header
        error: FramingError | None = None
        while size - at >= header:
            magic, length = _FIXED_HEADER.unpack_from(buffer, at)
            # Damage: the next frame is searched by its magic number.
            if magic != FIXED_MAGIC or (length > FRAME_BYTES_MAX and self._read_around):
                resumed = _next_magic(buffer, at + 1)
                self._skipped.add(base + at, buffer[at:resumed])
                at = resumed
                continue
            if length > FRAME_BYTES_MAX:
                error = _too_long(self._journal, base + at, length)
                break
            end = at + header + length
            if end > size:
                wanted = end - at
                break
            self._skipped.close()
            begins.append(base + at)
            ends.append(base + end)
            payloads.append(buffer[at + header : end])
            at = end
        self._wanted_bytes = wanted
        if not self._read_around:
            self._skipped.close()  # reported at once, although the range may continue
        ranges, contents = self._skipped.take()
        kept = contents if self._read_around else ()
        return Frames(begins, ends, payloads, ranges, kept, error), at


def _next_magic(buffer: bytes, start: int) -> int:
    """Return the index at which the magic number next begins, or may begin if more bytes complete it."""
    found = buffer.find(FIXED_MAGIC, start)
    if found >= 0:
        return found
    for kept in range(len(FIXED_MAGIC) - 1, 0, -1):
        if buffer.endswith(FIXED_MAGIC[:kept]):
            return max(start, len(buffer) - kept)
    return len(buffer)


def _too_long(journal: str, offset: int, size: int) -> FramingError:
    return FramingError(
        journal,
        offset=offset,
        detail=f"a frame of {size} bytes or more; the longest allowed is {FRAME_BYTES_MAX}",
    )
