"""The hand-coded messages of a stream of appends, beside what protobuf makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, strategies as st

from broadsheet.journals.append_wire import (
    PLAIN_BYTES_MAX,
    WholeAppend,
    decode_appends,
    encode_appends,
)
from broadsheet.journals.wire import encode_varint
from broadsheet.wire.appends_pb2 import AppendStreamRequest
from broadsheet.wire.journal_pb2 import AppendRequest

_LONG = bytes(range(256)) * (PLAIN_BYTES_MAX // 256 + 1)
_contents = st.lists(st.one_of(st.binary(max_size=40), st.just(_LONG)), max_size=3)
_heads = st.builds(
    AppendStreamRequest.Append,
    parameters=st.builds(AppendRequest, journal=st.text(max_size=9), offset=st.integers(-1, 9)),
    name=st.binary(max_size=9),
    after=st.lists(st.binary(max_size=9), max_size=3),
    number=st.integers(0, 2**64 - 1),
    metadata=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)
_appends = st.lists(st.builds(WholeAppend, _heads, _contents), max_size=3)


def _plain(appends: Sequence[WholeAppend]) -> AppendStreamRequest:
    """Return the message that protobuf would be given."""
    request = AppendStreamRequest()
    for each in appends:
        append = request.appends.add()
        append.CopyFrom(each.append)
        append.content = b"".join(each.content)
    return request


@given(appends=_appends)
def test_encoded_appends_are_what_protobuf_would_parse(appends: list[WholeAppend]) -> None:
    """Plan: none to three appends, of none to three pieces, some of them long."""
    assert AppendStreamRequest.FromString(encode_appends(appends)) == _plain(appends)


@given(appends=_appends)
def test_appends_encoded_by_protobuf_are_decoded(appends: list[WholeAppend]) -> None:
    """Plan: the same the other way, on the long way and on the short one."""
    assert _plain(decode_appends(_plain(appends).SerializeToString())) == _plain(appends)


def test_long_content_is_not_copied() -> None:
    """Why: it is what the hand-coding is for. An `obj` of a view is what it looks at."""
    message = encode_appends([WholeAppend(AppendStreamRequest.Append(number=3), [_LONG])])

    (decoded,) = decode_appends(message)

    (content,) = decoded.content
    assert isinstance(content, memoryview)
    assert content.obj is message
    assert decoded.append == AppendStreamRequest.Append(number=3)


def test_last_of_two_contents_counts() -> None:
    """Why: protobuf's rule, by which a broker that parses the message itself stores the same bytes."""
    twice = AppendStreamRequest.Append(content=_LONG).SerializeToString()
    twice += AppendStreamRequest.Append(number=3, content=b"last").SerializeToString()
    message = b"\x0a" + encode_varint(len(twice)) + twice

    assert _plain(decode_appends(message)) == AppendStreamRequest.FromString(message)


def test_fields_of_a_later_version_are_passed_over() -> None:
    """Plan: a field of 32 bits, which these messages have none of, behind a long append."""
    unknown = bytes([9 << 3 | 5]) + b"\x01\x02\x03\x04"
    message = encode_appends([WholeAppend(AppendStreamRequest.Append(), [_LONG])])

    (decoded,) = decode_appends(message + unknown)

    assert b"".join(decoded.content) == _LONG


@pytest.mark.parametrize("cut", [1, len(_LONG) // 2, len(_LONG)])
def test_message_that_is_cut_off_is_an_error(cut: int) -> None:
    """Why: half an append must not pass for one."""
    message = encode_appends([WholeAppend(AppendStreamRequest.Append(number=3), [_LONG])])
    with pytest.raises(DecodeError):
        decode_appends(message[:-cut])
