r"""Framing: the delimiting of messages in a journal's bytes.

An *unframer* takes a journal's content as it arrives, in chunks cut anywhere, and returns whole payloads with their
offsets. Payloads stay where they arrived: `Payloads` names their bounds in the chunk, and only an incomplete last frame
is copied in front of the next chunk.

    lines                   payload \n
    length-prefixed         66 33 93 36 | payload length, uint32 little-endian | payload

The record of a content type (`broadsheet.journals.content`) names its framing, which is one of these or its own.

Source: gazette/core message/{json_framing,fixed_framing}.go (the formats).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from broadsheet.journals.errors import FramingError

FRAME_BYTES_MAX: Final = 64 << 20
"""Maximum length of a message within its frame, for writers and for readers of any mode: an unframer must not buffer
without bound because a length or a newline is lost."""

FIXED_MAGIC: Final = bytes((0x66, 0x33, 0x93, 0x36))
_FIXED_HEADER = struct.Struct("<4sI")
FIXED_HEADER_BYTES: Final = _FIXED_HEADER.size


Offsets: TypeAlias = NDArray[np.int64]
_FREE_BYTES: Final = 1024
"""Bytes of a buffer that may be kept for nothing."""
_NEWLINE: Final = ord("\n")


class Payloads(Sequence[bytes]):
    """N payloads that lie in one buffer; an element becomes bytes when it is asked for. Immutable."""

    __slots__ = ("begins", "buffer", "ends")

    def __init__(self, buffer: bytes, begins: Offsets, ends: Offsets) -> None:
        """Name the payloads.

        Args:
            buffer: Holds all payloads, and any bytes between them.
            begins: Positions of first bytes in `buffer`, ascending, shape (N,).
            ends: Positions after last bytes, shape (N,).
        """
        self.buffer = buffer
        self.begins = begins
        self.ends = ends

    @classmethod
    def of(cls, payloads: Sequence[bytes]) -> Payloads:
        """Return payloads as lines of one new buffer; these same if they are in one already."""
        if isinstance(payloads, Payloads):
            return payloads
        bounds = list(accumulate((len(each) + 1 for each in payloads), initial=0))
        edges = np.array(bounds, dtype=np.int64)
        return cls(b"\n".join(payloads), edges[:-1], edges[1:] - 1)

    def __len__(self) -> int:
        return len(self.begins)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Payloads: ...

    def __getitem__(self, index: int | slice) -> bytes | Payloads:
        if isinstance(index, slice):
            return Payloads(self.buffer, self.begins[index], self.ends[index])
        return self.buffer[self.begins[index] : self.ends[index]]

    def __iter__(self) -> Iterator[bytes]:
        buffer = self.buffer
        for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            yield buffer[begin:end]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(bytes.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"Payloads({list(self)!r})"

    @property
    def size_bytes(self) -> int:
        """Bytes of all payloads, without what lies between them."""
        return int(self.ends.sum()) - int(self.begins.sum())

    @property
    def is_sparse(self) -> bool:
        """True if most of the buffer belongs to none of these payloads."""
        return len(self.buffer) > 2 * (self.size_bytes + _FREE_BYTES)

    def take(self, indices: NDArray[np.intp]) -> Payloads:
        """Return the payloads at `indices`."""
        return Payloads(self.buffer, self.begins[indices], self.ends[indices])

    def lines(self) -> memoryview | None:
        """Return the payloads as lines, as they lie in the buffer; None if something else lies between them.

        Payloads that hold a newline are not lines, but nothing here looks for one.
        """
        if not len(self.begins):
            return memoryview(b"")
        between = self.ends[:-1]
        if not (self.begins[1:] - between == 1).all():
            return None
        codes = np.frombuffer(self.buffer, dtype=np.uint8)
        if not (codes[between] == _NEWLINE).all():
            return None
        return memoryview(self.buffer)[int(self.begins[0]) : int(self.ends[-1])]

    def heads(self, size: int) -> NDArray[np.uint8] | None:
        """Return the first `size` bytes of each payload, shape (N, size); None if one is shorter."""
        return self._windows(self.begins, size)

    def edges(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]] | None:
        """Return the first and the last byte of each payload, shape (N,) each; None if one is empty."""
        if len(self.begins) and not int((self.ends - self.begins).min()):
            return None
        codes = np.frombuffer(self.buffer, dtype=np.uint8)
        return codes[self.begins], codes[self.ends - 1]

    def compact(self) -> Payloads:
        """Return the payloads in a new buffer, which holds little else."""
        stretch, begins, ends = self.dense()
        return Payloads(bytes(stretch), begins, ends)

    def dense(self) -> tuple[memoryview, Offsets, Offsets]:
        """Return a stretch of bytes that holds the payloads and little else, and their bounds in it."""
        if not len(self.begins):
            return memoryview(b""), self.begins, self.ends
        first, last = int(self.begins[0]), int(self.ends[-1])
        if last - first > 2 * (self.size_bytes + _FREE_BYTES):
            apart = Payloads.of(list(self))
            return memoryview(apart.buffer), apart.begins, apart.ends
        return memoryview(self.buffer)[first:last], self.begins - first, self.ends - first

    @staticmethod
    def joined(parts: Sequence[Payloads]) -> Payloads:
        """Return the payloads of some parts, one part after the other."""
        buffer = parts[0].buffer
        moved = [part for part in parts if len(part)] or [NO_PAYLOADS]
        if any(part.buffer is not buffer for part in moved):
            stretches = [part.dense() for part in moved]
            buffer = b"\n".join([content for content, _, _ in stretches])  # Lines stay lines.
            starts = accumulate((len(content) + 1 for content, _, _ in stretches), initial=0)
            moved = [
                Payloads(buffer, begins + start, ends + start)
                for (_, begins, ends), start in zip(stretches, starts, strict=False)
            ]
        return Payloads(
            buffer,
            np.concatenate([part.begins for part in moved]),
            np.concatenate([part.ends for part in moved]),
        )

    def _windows(self, begins: Offsets, size: int) -> NDArray[np.uint8] | None:
        if not len(begins):
            return np.zeros((0, size), dtype=np.uint8)
        if int((self.ends - begins).min()) < size:
            return None
        # Elements of `size` bytes at every position: taking some of them copies whole elements.
        positions = len(self.buffer) - size + 1
        every: NDArray[np.void] = np.ndarray(
            (positions,), dtype=f"V{size}", buffer=self.buffer, strides=(1,)
        )
        return every[begins].view(np.uint8).reshape(-1, size)


NO_PAYLOADS: Final = Payloads(b"", np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
_NO_OFFSETS: Final[Offsets] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """The whole frames found so far, in offset order. Every column has shape (N,)."""

    begins: Offsets
    """Offsets of first bytes, frame included."""
    ends: Offsets
    payloads: Sequence[bytes]
    """Without their frame; of an unframer, `Payloads`."""
    skipped: tuple[tuple[int, int], ...] = ()
    """Ranges [begin, end) of bytes that belong to no frame."""
    skipped_content: tuple[bytes, ...] = ()
    """The bytes of each range, if damage is read around."""
    error: FramingError | None = None
    """The damage after these frames, if damage is not read around; `feed` must not be called again then."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frames):
            return NotImplemented
        return (
            np.array_equal(self.begins, other.begins)
            and np.array_equal(self.ends, other.ends)
            and list(self.payloads) == list(other.payloads)
            and (self.skipped, self.skipped_content) == (other.skipped, other.skipped_content)
            and self.error == other.error
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have none


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


def check_frame_bytes(size: int) -> None:
    """Refuse a message that readers would refuse.

    Args:
        size: Bytes of the message, without its frame.

    Raises:
        ValueError: it is too long.
    """
    if size > FRAME_BYTES_MAX:
        raise ValueError(
            f"a message of {size} bytes; readers take {FRAME_BYTES_MAX} at most, so split it, or store "
            "the large value elsewhere and publish where it is"
        )


class LineFraming:
    """Framing as lines, one payload each."""

    def frame(self, payload: bytes) -> bytes:
        """Return the payload and a newline."""
        if b"\n" in payload:
            raise ValueError("a payload of one line must not hold a newline")
        check_frame_bytes(len(payload))
        return payload + b"\n"

    def unframer(self, *, journal: str, offset: int, read_around: bool = False) -> Unframer:
        """Return an unframer of lines from `offset` on."""
        return LineUnframer(journal, offset, read_around=read_around)


class FixedFraming:
    """Framing by a magic number and a length before each payload."""

    def frame(self, payload: bytes) -> bytes:
        """Return header and payload."""
        check_frame_bytes(len(payload))
        return _FIXED_HEADER.pack(FIXED_MAGIC, len(payload)) + payload

    @staticmethod
    def write_header(frame: memoryview) -> None:
        """Write the header of a whole frame whose payload is in its place already.

        Raises:
            ValueError: the payload is too long.
        """
        check_frame_bytes(len(frame) - FIXED_HEADER_BYTES)
        _FIXED_HEADER.pack_into(frame, 0, FIXED_MAGIC, len(frame) - FIXED_HEADER_BYTES)

    def unframer(self, *, journal: str, offset: int, read_around: bool = False) -> Unframer:
        """Return an unframer of length-prefixed payloads from `offset` on."""
        return _FixedUnframer(journal, offset, read_around=read_around)


class SkippedRanges:
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


class LineUnframer:
    """The search for lines, also for framings whose payloads are of one line or more."""

    def __init__(self, journal: str, offset: int, *, read_around: bool) -> None:
        """See `Framing.unframer`."""
        self._journal = journal
        self._offset = offset
        """Offset at which the pending line begins."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._read_around = read_around
        self._skipped = SkippedRanges()
        self._within_damage = False
        """Whether the current line is too long already."""

    @property
    def pending_bytes(self) -> int:
        """See `Unframer.pending_bytes`."""
        return self._pending_bytes + self._skipped.open_bytes

    def feed(self, content: bytes) -> Frames:
        """See `Unframer.feed`."""
        if self._within_damage:
            content = self._after_damage(content)
        # A long line must not be copied once for each chunk, so chunks are joined where a line ends.
        if b"\n" not in content:
            error = self._keep(content)
            return Frames(_NO_OFFSETS, _NO_OFFSETS, NO_PAYLOADS, *self._skipped.take(), error)
        if self._pending:
            content = b"".join([*self._pending, content])
            self._pending.clear()
            self._pending_bytes = 0
        stops = (np.frombuffer(content, dtype=np.uint8) == _NEWLINE).nonzero()[0]
        starts = np.empty_like(stops)
        starts[0] = 0
        np.add(stops[:-1], 1, out=starts[1:])
        used = int(stops[-1]) + 1
        lines = Payloads(content, starts, stops)
        begins, ends = starts + self._offset, stops + (self._offset + 1)
        # A line that arrived whole counts too, so that damage does not depend on how the bytes arrive.
        if used > FRAME_BYTES_MAX:
            if not self._read_around and (found := self._until_too_long(begins, ends, lines)):
                return found
            begins, ends, lines = self._without_damage(begins, ends, lines)
        self._offset += used
        error = self._keep(content[used:])
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
            return frame_too_long(self._journal, self._offset, self._pending_bytes)
        self._within_damage = True
        self._skip(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0
        return None

    def _skip(self, content: bytes) -> None:
        self._skipped.add(self._offset, content)
        self._offset += len(content)

    def _after_damage(self, content: bytes) -> bytes:
        """Skip the rest of a line that is too long; return what follows it."""
        cut = content.find(b"\n") + 1
        if not cut:
            return content  # `_keep` skips it.
        self._skip(content[:cut])
        self._skipped.close()
        self._within_damage = False
        return content[cut:]

    def _until_too_long(self, begins: Offsets, ends: Offsets, lines: Payloads) -> Frames | None:
        """Return the lines before the first one that is too long, and the error; None if there is none."""
        sizes = lines.ends - lines.begins
        too_long = np.flatnonzero(sizes > FRAME_BYTES_MAX)
        if not len(too_long):
            return None
        first = int(too_long[0])
        error = frame_too_long(self._journal, int(begins[first]), int(sizes[first]))
        return Frames(begins[:first], ends[:first], lines[:first], error=error)

    def _without_damage(
        self, begins: Offsets, ends: Offsets, lines: Payloads
    ) -> tuple[Offsets, Offsets, Payloads]:
        too_long = lines.ends - lines.begins > FRAME_BYTES_MAX
        for index in np.flatnonzero(too_long).tolist():
            self._skipped.add(int(begins[index]), lines[index] + b"\n")
            self._skipped.close()
        fitting = np.flatnonzero(~too_long)
        return begins[fitting], ends[fitting], lines.take(fitting)


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
        self._skipped = SkippedRanges()

    @property
    def pending_bytes(self) -> int:
        # Text tools add a newline after the last frame: it is not an incomplete frame.
        lone_newline = self._pending_bytes == 1 and b"".join(self._pending) == b"\n"
        return self._skipped.open_bytes + (0 if lone_newline else self._pending_bytes)

    def feed(self, content: bytes) -> Frames:
        self._pending.append(content)
        self._pending_bytes += len(content)
        if self._pending_bytes < self._wanted_bytes:
            return Frames(_NO_OFFSETS, _NO_OFFSETS, NO_PAYLOADS)
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
                error = frame_too_long(self._journal, base + at, length)
                break
            end = at + header + length
            if end > size:
                wanted = end - at
                break
            self._skipped.close()
            begins.append(at)
            ends.append(end)
            at = end
        self._wanted_bytes = wanted
        if not self._read_around:
            self._skipped.close()  # reported at once, although the range may continue
        ranges, contents = self._skipped.take()
        kept = contents if self._read_around else ()
        starts, stops = np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)
        payloads = Payloads(buffer, starts + header, stops)
        return Frames(starts + base, stops + base, payloads, ranges, kept, error), at


def _next_magic(buffer: bytes, start: int) -> int:
    """Return the index at which the magic number next begins, or may begin if more bytes complete it."""
    found = buffer.find(FIXED_MAGIC, start)
    if found >= 0:
        return found
    for kept in range(len(FIXED_MAGIC) - 1, 0, -1):
        if buffer.endswith(FIXED_MAGIC[:kept]):
            return max(start, len(buffer) - kept)
    return len(buffer)


def frame_too_long(journal: str, offset: int, size: int) -> FramingError:
    """Return the error of a frame at `offset` of which `size` bytes, more than allowed, arrived."""
    return FramingError(
        journal,
        offset=offset,
        detail=f"a frame of {size} bytes or more; the longest allowed is {FRAME_BYTES_MAX}",
    )
