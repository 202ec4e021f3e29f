"""The encoding of operations in a recovery log: frames, chained checksums, and an incremental decoder.

    66 33 93 36 | payload length, uint32 little-endian | RecordedOp | raw bytes, if it is a write

Source: gazette/core consumer/recoverylog/recorded_op_codec.go (the format).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import google_crc32c
from google.protobuf.message import DecodeError

from broadsheet.journals.message.framing import FIXED_MAGIC, FRAME_BYTES_MAX
from broadsheet.wire.recorded_op_pb2 import RecordedOp

WRITE_BYTES_MAX: Final = 1 << 30
"""Raw bytes of one write above which it is none: an append takes less."""
_HEADER = struct.Struct("<4sI")
_HEADER_BYTES = _HEADER.size
_unpack_header = _HEADER.unpack_from


def next_checksum(checksum: int, payload: bytes) -> int:
    """Return the checksum of the operation after one that has this `checksum` and is encoded as `payload`.

    It is the CRC-32C (Castagnoli) of all payloads so far; raw bytes of writes are left out.
    """
    chained: int = google_crc32c.extend(checksum, payload)
    return chained


def framed(payload: bytes) -> bytes:
    """Return the frame of an encoded operation."""
    return _HEADER.pack(FIXED_MAGIC, len(payload)) + payload


# The decoder's results are not frozen, because that would double the cost of creating them, and there are many.


@dataclass(slots=True)
class DecodedOp:
    """An operation found in a log."""

    op: RecordedOp
    payload: bytes
    """As encoded."""
    begin: int
    """Offset of the frame, bytes."""
    end: int
    """Offset after the frame and after the raw bytes that follow a write."""
    raw_bytes: int
    """Number of these raw bytes; 0 if it is not a write."""
    content: memoryview
    """Raw bytes of a write that arrived with it: all of them, or the first ones. There is no other copy of them."""


@dataclass(slots=True)
class WrittenBytes:
    """More raw bytes of the write that was decoded last; there is no other copy of them."""

    content: memoryview


@dataclass(frozen=True, slots=True)
class Desync:
    """Bytes [begin, end) that belong to no operation."""

    begin: int
    end: int


class OperationDecoder:
    """The incremental decoder of one log, fed in order from any offset on, in chunks cut anywhere."""

    def __init__(self, offset: int) -> None:
        """Start at `offset`, bytes, where a frame should begin.

        Args:
            offset: Offset of the first byte that will be fed.
        """
        self._offset = offset
        """Offset of the first byte of `_pending`, or of the next byte to be fed if that is empty."""
        self._pending = b""
        self._raw_bytes = 0
        """Number of raw bytes of the current write that have not arrived."""
        self._write_begin = 0
        """Offset of the frame of the current write."""

    @property
    def offset(self) -> int:
        """Offset up to which the content is decoded, bytes: after it there is no complete operation yet."""
        return self._offset

    @property
    def raw_bytes(self) -> int:
        """Number of raw bytes of a write that have not been fed."""
        return self._raw_bytes

    @property
    def whole_to(self) -> int:
        """Offset up to which everything fed is complete, bytes: an incomplete operation may begin here."""
        return self._write_begin if self._raw_bytes else self._offset

    @property
    def wanted_bytes(self) -> int:
        """Number of bytes that an operation which has begun takes at least, before another one can begin.

        After them more may be wanted: a length was incomplete. 0: the next operation is found wherever it begins.
        """
        if self._raw_bytes or not self._pending:
            return self._raw_bytes
        held = len(self._pending)
        if held < _HEADER_BYTES:
            # Bytes that begin no frame are passed over.
            begins = FIXED_MAGIC.startswith(self._pending[: len(FIXED_MAGIC)])
            return _HEADER_BYTES - held if begins else 0
        length: int = _unpack_header(self._pending)[1]
        return _HEADER_BYTES + length - held

    def feed(self, content: bytes) -> Iterator[DecodedOp | WrittenBytes | Desync]:
        """Take the next bytes and yield what ends in them; exhaust the iterator before the next call."""
        content = self._pending + content if self._pending else content
        view = memoryview(content)
        self._pending = b""
        at, size = 0, len(content)
        if self._raw_bytes:
            at = min(self._raw_bytes, size)
            self._raw_bytes -= at
            self._offset += at
            yield WrittenBytes(view[:at])
        while size - at >= _HEADER_BYTES:
            magic, length = _unpack_header(content, at)
            # No recorder writes a frame so long: the magic number is there by chance, or foreign bytes end in it.
            if magic != FIXED_MAGIC or length > FRAME_BYTES_MAX:
                skipped, desync = self._skip(content, at)
                at += skipped
                self._offset += skipped
                yield desync
                continue
            payload_at = at + _HEADER_BYTES
            content_at = payload_at + length
            if content_at > size:
                break
            payload = content[payload_at:content_at]
            op = _decoded_or_none(payload)
            begin = self._offset
            end = begin + content_at - at
            raw_bytes = -1 if op is None else op.write.length
            # The frame holds something else than an operation, or a length that no recorder writes.
            if op is None or not 0 <= raw_bytes <= WRITE_BYTES_MAX:
                at, self._offset = content_at, end
                yield Desync(begin, end)
                continue
            # Raw bytes that have not arrived are yielded later, as `WrittenBytes`.
            at = content_at + raw_bytes
            if at > size:
                at = size
            here_bytes = at - content_at
            self._offset = end + here_bytes
            self._raw_bytes, self._write_begin = raw_bytes - here_bytes, begin
            yield DecodedOp(op, payload, begin, end + raw_bytes, raw_bytes, view[content_at:at])
        if at < size:
            self._pending = content[at:]

    def _skip(self, content: bytes, at: int) -> tuple[int, Desync]:
        """Skip bytes up to the next possible frame."""
        found = content.find(FIXED_MAGIC, at + 1)
        # The last three bytes may be the beginning of a magic number.
        skipped = found - at if found > 0 else max(1, len(content) - at - len(FIXED_MAGIC) + 1)
        return skipped, Desync(self._offset, self._offset + skipped)


def _decoded_or_none(payload: bytes) -> RecordedOp | None:
    """Return the operation in a frame, or None if the frame holds something else."""
    try:
        return RecordedOp.FromString(payload)
    except DecodeError:
        return None
