"""Ids of schemas in values and in headers, and headers that are none."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broadsheet.consumer.schema_registry.schema_ids import (
    HEADER_NAMES,
    IdentifiedPart,
    RecordPart,
    SchemaKind,
    identified,
)

GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
HEADER = b"\x01" + GUID.bytes
PREFIXED = b"\0\0\0\0\x07body"
NAME = "__value_schema_id"


def test_id_before_the_body_is_read_as_it_is() -> None:
    """Whatever other headers the record has."""
    found = identified(PREFIXED, [("trace", b"\x01"), ("none", None)], "value", "AVRO")
    assert found == IdentifiedPart(7, PREFIXED)
    assert str(found) == "schema id 7"


@pytest.mark.parametrize("body", [b"", b"x", PREFIXED, b"\x01" + bytes(30)])
def test_guid_in_the_header_goes_before_any_body(body: bytes) -> None:
    """Also before one that looks as if it had an id itself."""
    found = identified(body, [("trace", b""), (NAME, HEADER)], "value", "AVRO")
    assert found == IdentifiedPart(GUID, HEADER + body)
    assert str(found) == f"schema GUID {GUID}"


def test_key_and_value_have_headers_of_their_own() -> None:
    """So the other one's says nothing of the form."""
    headers = [(HEADER_NAMES["key"], HEADER)]
    assert identified(b"body", headers, "key", "JSON").schema == GUID
    assert identified(PREFIXED, headers, "value", "JSON").schema == 7


@pytest.mark.parametrize("index", [b"\0", b"\x02\x04", b"\x04\x02\x06"])
def test_header_of_protobuf_says_which_message_it_is(index: bytes) -> None:
    """The body, which could begin with the same bytes, is left alone."""
    found = identified(b"\x02\x02", [(NAME, HEADER + index)], "value", "PROTOBUF")
    assert found.framed == HEADER + index + b"\x02\x02"


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        (None, "AVRO"),
        (b"", "AVRO"),
        (HEADER[:-1], "AVRO"),
        (HEADER + b"\0", "AVRO"),  # It would be the first byte of the body.
        (HEADER + b"\0", "JSON"),
        (b"\0\0\0\0\x07", "AVRO"),  # The prefix form's id.
        (b"\0" + GUID.bytes, "JSON"),
        (b"\x02" + GUID.bytes, "AVRO"),
        (b"\xff" * 17, "AVRO"),
        (HEADER, "PROTOBUF"),  # Which message would be read from the body.
        (HEADER + b"\x04\x02", "PROTOBUF"),
        (HEADER + b"\0\0", "PROTOBUF"),
        (HEADER + b"\x01", "PROTOBUF"),  # Fewer than no indexes.
        (HEADER + b"\xff" * 40, "PROTOBUF"),
        (HEADER + b"\x90\x4e" + b"\x02" * 5_000, "PROTOBUF"),  # Valid, but nested 5,000 deep.
        (HEADER + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "PROTOBUF"),
    ],
)
def test_header_that_is_no_guid_is_told_and_never_taken_for_a_prefix(
    header: bytes | None, kind: SchemaKind
) -> None:
    """The value has an id that could be read, which is not the record's form."""
    with pytest.raises(
        ValueError, match=f"header {NAME}: expected 01 and the 16 bytes of a"
    ) as told:
        identified(PREFIXED, [(NAME, header)], "value", kind)
    assert len(str(told.value)) < 250


@pytest.mark.parametrize("second", [HEADER, b"\x01" + bytes(16), None])
@pytest.mark.parametrize("part", ["value", "key"])
def test_two_headers_of_the_name_are_refused(part: RecordPart, second: bytes | None) -> None:
    """Clients do not agree which of them counts."""
    name = HEADER_NAMES[part]
    headers: list[Any] = [(name, HEADER), ("between", b""), (name, second)]
    with pytest.raises(ValueError, match=f"headers: expected one {name}, got 2"):
        identified(PREFIXED, headers, part, "AVRO")


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"body", HEADER + b"body"])
def test_part_without_any_id_is_told(content: bytes) -> None:
    """A GUID is in headers alone: no client puts it before the body."""
    with pytest.raises(ValueError, match="expected a zero byte and the 4 bytes of a schema id"):
        identified(content, [], "value", "AVRO")
