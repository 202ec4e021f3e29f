"""Messages that carry bulk bytes, encoded by hand; protobuf encodes all others.

Both sides of the journal service use this module, because protobuf copies content twice where once is enough.

Source: consumer/protocol/journal.proto (field numbers); protobuf's wire format (varints, lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message

from broadsheet.wire.journal_pb2 import AppendRequest, ReadResponse

APPEND_SERVICE = "broadsheet.v1.AppendService"
"""Service of brokers that take an append in one message; see consumer/protocol/appends.proto."""
_READ_OFFSET_TAG = b"\x18"  # ReadResponse field 3, varint
_READ_CONTENT_TAG = b"\x3a"  # ReadResponse field 7, length-delimited
_APPEND_CONTENT_TAG = 0x22  # AppendRequest field 4, length-delimited
_APPEND_CONTENT_HEAD = bytes([_APPEND_CONTENT_TAG])


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A ReadResponse that has only content and its offset."""

    offset: int
    content: bytes


def serialize(message: Message | bytes) -> bytes:
    """Return the wire form of a message; bytes are already encoded."""
    return message if isinstance(message, bytes) else message.SerializeToString()


def encode_read_chunk(offset: int, content: bytes | memoryview) -> bytes:
    """Return the ReadResponse that carries a chunk of content at an offset."""
    return b"".join(
        (
            _READ_OFFSET_TAG,
            encode_varint(offset),
            _READ_CONTENT_TAG,
            encode_varint(len(content)),
            content,
        )
    )


def decode_read(message: bytes) -> ReadChunk | ReadResponse:
    """Return the chunk that a message of a read carries, or the whole message if it is of another kind."""
    if message[:1] == _READ_OFFSET_TAG:
        offset, position = read_varint(message, 1)
        if position > 0 and message[position : position + 1] == _READ_CONTENT_TAG:
            length, start = read_varint(message, position + 1)
            if length > 0 and start + length == len(message):
                return ReadChunk(offset, message[start:])
    return ReadResponse.FromString(message)


def encode_append_chunk(pieces: Sequence[bytes | memoryview]) -> bytes:
    """Return an AppendRequest that has only content, copied once; the pieces must not all be empty."""
    return b"".join((_APPEND_CONTENT_HEAD, encode_varint(sum(map(len, pieces))), *pieces))


def append_content(message: bytes) -> memoryview | None:
    """Return the content of an AppendRequest that has nothing else; None if it has other fields.

    Raises:
        ValueError: the message is malformed.
    """
    if not message:
        return memoryview(b"")
    if message[0] == _APPEND_CONTENT_TAG:
        length, start = read_varint(message, 1)
        if start + length == len(message):
            return memoryview(message)[start:]
    request = parse_append(message)
    only_content = all(field.name == "content" for field, _ in request.ListFields())
    return memoryview(request.content) if only_content else None


def parse_append(message: bytes) -> AppendRequest:
    """Parse an AppendRequest.

    Raises:
        ValueError: the message is malformed.
    """
    try:
        return AppendRequest.FromString(message)
    except DecodeError as error:
        raise ValueError(f"malformed AppendRequest: {error}") from error


_SMALL = tuple(bytes((value,)) for value in range(0x80))


def encode_varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    if value < 0x80:
        return _SMALL[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(message: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the varint at a position and the position after it; (-1, -1) if there is none."""
    value = shift = 0
    for index in range(position, min(position + 10, len(message))):
        byte = message[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    return -1, -1
