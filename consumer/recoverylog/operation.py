"""How operations stand in a log: frames, the checksum that chains them, and a decoder of content cut anywhere.

    66 33 93 36 | payload length, uint32 little-endian | RecordedOp | raw bytes, if it is a write

Source: gazette/core consumer/recoverylog/recorded_op_codec.go (the format).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
from google.protobuf.message import DecodeError

from broadsheet.consumer.errors import FramingError
from broadsheet.consumer.message.framing import FIXED_MAGIC, FRAME_BYTES_MAX
from broadsheet.consumer.protocol.recorded_op_pb2 import RecordedOp

_HEADER = struct.Struct("<4sI")
_HEADER_BYTES = _HEADER.size
_unpack_header = _HEADER.unpack_from


def next_checksum(checksum: int, payload: bytes) -> int:
    """Return the checksum of the operation that follows one with this `checksum` and encoded as `payload`.

    CRC-32C (Castagnoli) over all payloads so far; raw bytes of writes are not in it.
    """
    chained: int = google_crc32c.extend(checksum, payload)
    return chained


def framed(payload: bytes) -> bytes:
    """Return the frame of an encoded operation."""
    return _HEADER.pack(FIXED_MAGIC, len(payload)) + payload


# What is found is not frozen: that would make it twice as dear to make, and there are many of them.


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
    """How many these are; 0 if it is no write."""
    content: memoryview
    """Of a write, those of its raw bytes that came with it: all of them, or the first ones. Nobody else keeps them."""


@dataclass(slots=True)
class WrittenBytes:
    """More raw bytes of the write that was decoded last; nobody else keeps them."""

    content: memoryview


@dataclass(frozen=True, slots=True)
class Desync:
    """Bytes [begin, end) that belong to no operation."""

    begin: int
    end: int


class OperationDecoder:
    """Finds operations in the content of one log, fed in order from any offset on."""

    def __init__(self, log: str, offset: int) -> None:
        """Start at `offset`, bytes, where a frame should begin.

        Args:
            log: Named by errors.
            offset: Of the first byte that will be fed.
        """
        self._log = log
        self._offset = offset
        """Of the first byte of `_pending`; of the next byte fed, if there are none."""
        self._pending = b""
        self._raw_bytes = 0
        """Raw bytes of the current write that are yet to come."""
        self._write_begin = 0
        """Offset of the frame of the current write."""

    @property
    def offset(self) -> int:
        """Up to where the content is decoded, bytes: what follows is not a whole operation yet."""
        return self._offset

    @property
    def raw_bytes(self) -> int:
        """Raw bytes of a write that are yet to be fed."""
        return self._raw_bytes

    @property
    def whole_to(self) -> int:
        """Up to where all that was fed is whole, bytes: an operation may begin here that has no end yet."""
        return self._write_begin if self._raw_bytes else self._offset

    def feed(self, content: bytes) -> Iterator[DecodedOp | WrittenBytes | Desync]:
        """Take the bytes that follow and yield what ends in them; exhaust it before the next call.

        Raises:
            FramingError: an operation is longer than a frame may be.
        """
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
            if magic != FIXED_MAGIC:
                skipped, desync = self._skip(content, at)
                at += skipped
                self._offset += skipped
                yield desync
                continue
            if length > FRAME_BYTES_MAX:
                raise self._too_long(length)
            payload_at = at + _HEADER_BYTES
            content_at = payload_at + length
            if content_at > size:
                break
            payload = content[payload_at:content_at]
            op = _decoded_or_none(payload)
            begin = self._offset
            end = begin + content_at - at
            raw_bytes = -1 if op is None else op.write.length
            if op is None or raw_bytes < 0:
                at, self._offset = content_at, end
                yield Desync(begin, end)
                continue
            at = content_at + raw_bytes
            if at > size:
                at = size
            here_bytes = at - content_at
            self._offset = end + here_bytes
            self._raw_bytes, self._write_begin = raw_bytes - here_bytes, begin
            yield DecodedOp(op, payload, begin, end + raw_bytes, raw_bytes, view[content_at:at])
        if at < size:
            self._pending = content[at:]

    def _too_long(self, length: int) -> FramingError:
        return FramingError(
            self._log,
            offset=self._offset,
            detail=f"an operation of {length} bytes; at most {FRAME_BYTES_MAX} are sound",
        )

    def _skip(self, content: bytes, at: int) -> tuple[int, Desync]:
        """Pass over bytes up to what may be the next frame."""
        found = content.find(FIXED_MAGIC, at + 1)
        # The last three bytes may be the beginning of a magic number.
        skipped = found - at if found > 0 else max(1, len(content) - at - len(FIXED_MAGIC) + 1)
        return skipped, Desync(self._offset, self._offset + skipped)


def _decoded_or_none(payload: bytes) -> RecordedOp | None:
    """Return the operation that a frame holds, unless it holds something else."""
    try:
        return RecordedOp.FromString(payload)
    except DecodeError:
        return None
