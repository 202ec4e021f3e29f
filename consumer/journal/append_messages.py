"""The messages of a stream of appends, coded by hand around their contents: protobuf copies those twice each way.

Source: consumer/protocol/appends.proto (field numbers); protobuf's wire format (tags, varints, lengths).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from allocator.errors import ValidationError
from consumer.journal.wire import encode_varint, read_varint
from consumer.protocol.appends_pb2 import AppendStreamRequest

PLAIN_BYTES_MAX: Final = 16 << 10
"""Of a message that protobuf decodes sooner, copies included."""
APPENDS_MAX: Final = 16_384
"""Appends of one message; clients before this bound sent as many as were small."""
HEAD_BYTES_MAX: Final = 256 << 10
"""Of one append, without its content."""
FIELDS_MAX: Final = 1_024
"""Of one append, each name that it comes after is one."""
_APPENDS_TAG: Final = 0x0A  # AppendStreamRequest field 1, length-delimited
_CONTENT_TAG: Final = 0x12  # Append field 2, length-delimited
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""Length of a value by its kind on the wire; a later version may have such fields."""
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


def decode_appends(message: bytes, *, head_bytes_max: int = HEAD_BYTES_MAX) -> list[WholeAppend]:
    """Return the appends of an AppendStreamRequest, contents uncopied where they are long.

    Args:
        message: Its wire form.
        head_bytes_max: Of one append, without its content, bytes.

    Raises:
        DecodeError: the message is malformed.
        ValidationError: it has more appends, or an append has more in it, than anyone sends: objects made of it would
            take many times its length.
    """
    if len(message) <= PLAIN_BYTES_MAX:
        request = AppendStreamRequest.FromString(message)
        return [WholeAppend(append, [append.content]) for append in request.appends]
    appends: list[WholeAppend] = []
    for count, field in enumerate(_fields(memoryview(message))):
        if count >= APPENDS_MAX:
            raise ValidationError("appends", f"expected {APPENDS_MAX} at most, got more")
        if field.tag == _APPENDS_TAG:
            appends.append(_whole(field.value, head_bytes_max))
    return appends


class _Field(NamedTuple):
    tag: int
    whole: memoryview
    """Its tag included."""
    value: memoryview


def _whole(message: memoryview, head_bytes_max: int) -> WholeAppend:
    """Take a content out of an append."""
    rest: list[memoryview] = []
    head_bytes = 0
    content: list[bytes | memoryview] = []
    for field in _fields(message):
        if field.tag == _CONTENT_TAG:
            content = [field.value]  # the last one counts
            continue
        rest.append(field.whole)
        head_bytes += len(field.whole)
        if head_bytes > head_bytes_max or len(rest) > FIELDS_MAX:
            raise ValidationError(
                "appends",
                f"expected {head_bytes_max} bytes and {FIELDS_MAX} fields at most in each",
            )
    return WholeAppend(AppendStreamRequest.Append.FromString(b"".join(rest)), content)


def _fields(message: memoryview) -> Iterator[_Field]:
    """Yield the fields of a message.

    Raises:
        DecodeError: one is malformed.
    """
    position = 0
    while position < len(message):
        tag, begin = read_varint(message, position)
        kind = tag & 7
        if begin > 0 and kind in (_VARINT, _LENGTH_DELIMITED):
            value, begin = read_varint(message, begin)
            end = begin + (value if kind == _LENGTH_DELIMITED else 0)
        else:
            end = begin + _FIXED_BYTES.get(kind, -begin)
        if not position < begin <= end <= len(message):
            raise DecodeError(f"no whole field begins at {position} of {len(message)} bytes")
        yield _Field(tag, message[position:end], message[begin:end])
        position = end
