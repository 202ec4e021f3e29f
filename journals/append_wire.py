"""Messages of an append stream, encoded by hand around their contents, because protobuf copies contents twice each way.

Source: consumer/protocol/appends.proto (field numbers); protobuf's wire format (tags, varints, lengths).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from broadsheet.journals.wire import encode_varint, read_varint
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.appends_pb2 import AppendStreamRequest

PLAIN_BYTES_MAX: Final = 16 << 10
"""Message size up to which protobuf decodes faster, copies included."""
APPENDS_MAX: Final = 16_384
"""Most appends of one message; earlier clients sent as many small ones as they had."""
HEAD_BYTES_MAX: Final = 256 << 10
"""Largest append, without its content."""
FIELDS_MAX: Final = 1_024
"""Most fields of one append; each predecessor's name is one."""
_APPENDS_TAG: Final = 0x0A  # AppendStreamRequest field 1, length-delimited
_CONTENT_TAG: Final = 0x12  # Append field 2, length-delimited
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""Length of a value by its wire type; a later version may have such fields."""
_APPENDS_HEAD: Final = bytes([_APPENDS_TAG])
_CONTENT_HEAD: Final = bytes([_CONTENT_TAG])


class WholeAppend(NamedTuple):
    """An append and its content."""

    append: AppendStreamRequest.Append
    """All fields except the content."""
    content: Sequence[bytes | memoryview]
    """Pieces of the content."""

    @property
    def size(self) -> int:
        """Bytes of content."""
        return sum(map(len, self.content))


def encode_appends(appends: Sequence[WholeAppend]) -> bytes:
    """Return the AppendStreamRequest of appends, copying each content once.

    A content precedes the other fields, so that brokers find both without looking at each field.
    """
    parts: list[bytes | memoryview] = []
    for each in appends:
        head = each.append.SerializeToString()
        size = each.size
        content_head = _CONTENT_HEAD + encode_varint(size) if size else b""
        whole = encode_varint(len(head) + len(content_head) + size)
        parts += [_APPENDS_HEAD, whole, content_head, *each.content, head]
    return b"".join(parts)


def decode_appends(message: bytes, *, head_bytes_max: int = HEAD_BYTES_MAX) -> list[WholeAppend]:
    """Return the appends of an AppendStreamRequest; long contents are not copied.

    Args:
        message: Its wire form.
        head_bytes_max: Of one append, without its content, bytes.

    Raises:
        DecodeError: the message is malformed.
        ValidationError: it has more appends, or an append has more fields, than any client sends: objects made of it
            would take many times its length.
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
    """Separate an append's content from its other fields."""
    if message and message[0] == _CONTENT_TAG:
        size, begin = read_varint(message, 1)
        head = message[begin + size :]
        # Few enough to need no bound of their own; without a tag of content, protobuf copies none.
        if begin > 0 and begin + size <= len(message) and len(head) <= PLAIN_BYTES_MAX:
            append = AppendStreamRequest.Append.FromString(bytes(head))
            if not append.content:
                return WholeAppend(append, [message[begin : begin + size]])
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
            raise DecodeError(f"truncated field at {position} of {len(message)} bytes")
        yield _Field(tag, message[position:end], message[begin:end])
        position = end
