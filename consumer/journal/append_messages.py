"""The messages of a stream of appends, coded by hand around their contents: protobuf copies those twice each way.

Source: consumer/protocol/appends.proto (field numbers); protobuf's wire format (tags, varints, lengths).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from consumer.journal.wire import encode_varint, read_varint
from consumer.protocol.appends_pb2 import AppendStreamRequest

PLAIN_BYTES_MAX: Final = 16 << 10
"""Of a message that protobuf decodes sooner, copies included."""
_APPENDS_TAG: Final = 0x0A  # AppendStreamRequest field 1, length-delimited
_CONTENT_TAG: Final = 0x12  # Append field 2, length-delimited
_VARINT, _LENGTH_DELIMITED = 0, 2
_APPENDS_HEAD: Final = bytes([_APPENDS_TAG])
_CONTENT_HEAD: Final = bytes([_CONTENT_TAG])


class WholeAppend(NamedTuple):
    """An append and its content."""

    append: AppendStreamRequest.Append
    """All but the content."""
    content: Sequence[bytes | memoryview]
    """In pieces."""

    @property
    def size(self) -> int:
        """Bytes of content."""
        return sum(map(len, self.content))


def encode_appends(appends: Sequence[WholeAppend]) -> bytes:
    """Return the AppendStreamRequest of appends, copying each content once."""
    parts: list[bytes | memoryview] = []
    for each in appends:
        head = each.append.SerializeToString()
        size = each.size
        content_head = _CONTENT_HEAD + encode_varint(size) if size else b""
        whole = encode_varint(len(head) + len(content_head) + size)
        parts += [_APPENDS_HEAD, whole, head, content_head, *each.content]
    return b"".join(parts)


def decode_appends(message: bytes) -> list[WholeAppend]:
    """Return the appends of an AppendStreamRequest, contents uncopied where they are long.

    Raises:
        DecodeError: the message is malformed.
    """
    if len(message) > PLAIN_BYTES_MAX:
        try:
            return [_whole(field.value) for field in _fields(memoryview(message))]
        except ValueError:
            pass  # malformed, or of a later version: protobuf knows
    request = AppendStreamRequest.FromString(message)
    return [WholeAppend(append, [append.content]) for append in request.appends]


class _Field(NamedTuple):
    tag: int
    whole: memoryview
    """Its tag included."""
    value: memoryview


def _whole(message: memoryview) -> WholeAppend:
    """Take a content out of an append."""
    rest: list[memoryview] = []
    content: list[bytes | memoryview] = []
    for field in _fields(message):
        if field.tag == _CONTENT_TAG:
            content = [field.value]  # the last one counts
        else:
            rest.append(field.whole)
    try:
        return WholeAppend(AppendStreamRequest.Append.FromString(b"".join(rest)), content)
    except DecodeError as error:
        raise ValueError(str(error)) from error


def _fields(message: memoryview) -> Iterator[_Field]:
    """Yield the fields of a message.

    Raises:
        ValueError: one is malformed, or of a kind that these messages do not have.
    """
    position = 0
    while position < len(message):
        tag, begin = read_varint(message, position)
        value, end = read_varint(message, begin) if begin > 0 else (-1, -1)
        if end < 0 or tag & 7 not in (_VARINT, _LENGTH_DELIMITED):
            raise ValueError(f"no field begins at {position}")
        begin, end = end, end + (value if tag & 7 == _LENGTH_DELIMITED else 0)
        if end > len(message):
            raise ValueError(f"the field at {position} ends behind the message")
        yield _Field(tag, message[position:end], message[begin:end])
        position = end
