"""Schema ids of records, in the two forms that Confluent's clients write.

    prefix   value = 00  id (4 bytes, big-endian)  [protobuf: which message of the file]  body
    header   value = body; header `__value_schema_id` = 01  GUID (16 bytes)  [protobuf: which message of the file]

Keys are alike, with the header `__key_schema_id`. A record with the header is of the header's form, whatever its value
begins with: a body may begin with a zero byte, too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Final, Literal, TypeAlias
from uuid import UUID

from broadsheet.consumer.application import RecordHeaders
from broadsheet.runtime.libraries import needing

RecordPart: TypeAlias = Literal["value", "key"]
"""A part of a record, as names of subjects end with it."""
SchemaIdPlace: TypeAlias = Literal["prefix", "header"]
"""Where records that are sent have the id of their schema."""
SchemaKind: TypeAlias = Literal["AVRO", "JSON", "PROTOBUF"]
"""A registry's name of a kind of schemas."""
HEADER_NAMES: Final[dict[RecordPart, str]] = {
    "value": "__value_schema_id",
    "key": "__key_schema_id",
}
_PREFIX: Final = struct.Struct(">bI")
_PREFIX_MAGIC: Final = 0
_GUID_MAGIC: Final = 1
_GUID_BYTES: Final = 17
"""Of the magic byte and the GUID."""
_HEADER_BYTES_MAX: Final = 256
"""Far more than messages are nested."""
_SHOWN_BYTES: Final = 20
"""Of a header that is none: more would fill the error."""


@dataclass(frozen=True, slots=True)
class IdentifiedPart:
    """A value, or a key, with the id of its schema before the body, as the client's deserializers take both forms."""

    schema: int | UUID
    framed: bytes

    def __str__(self) -> str:
        """Name the schema."""
        return f"schema {'GUID' if isinstance(self.schema, UUID) else 'id'} {self.schema}"


def identified(
    content: bytes, headers: RecordHeaders, part: RecordPart, kind: SchemaKind
) -> IdentifiedPart:
    """Return a part of a record with the id of its schema.

    Args:
        content: The value, or the key.
        headers: Of the record.
        part: Which of the two it is.
        kind: Of its schema.

    Raises:
        ValueError: there is no id, or it is damaged.
    """
    name = HEADER_NAMES[part]
    found = [value for each, value in headers if each == name]
    if not found:
        return _by_prefix(content)
    if len(found) > 1:
        # Of several, clients of other languages take another one than Python's does.
        raise ValueError(f"headers: expected one {name}, got {len(found)}")
    guid = _guid_of(name, found[0], kind)
    assert found[0] is not None, "it has a GUID"
    return IdentifiedPart(guid, found[0] + content)


def _by_prefix(content: bytes) -> IdentifiedPart:
    if len(content) < _PREFIX.size or content[0] != _PREFIX_MAGIC:
        raise ValueError(
            "expected a zero byte and the 4 bytes of a schema id at the beginning, got "
            f"{bytes(content[: _PREFIX.size]).hex(' ') or 'no bytes'}"
        )
    return IdentifiedPart(_PREFIX.unpack_from(content)[1], content)


@lru_cache(maxsize=1_024)
def _guid_of(name: str, header: bytes | None, kind: SchemaKind) -> UUID:
    expected = f"header {name}: expected 01 and the 16 bytes of a schema's GUID"
    if kind == "PROTOBUF":
        expected += ", and which message of its file it is"
    wrong = f"{expected}, got {(header or b'')[:_SHOWN_BYTES].hex(' ') or 'no bytes'}"
    size = len(header or b"")
    if header is None or not _GUID_BYTES <= size <= _HEADER_BYTES_MAX or header[0] != _GUID_MAGIC:
        raise ValueError(wrong)
    with needing("SchemaRegistry", extra="schema-registry"):
        from confluent_kafka.schema_registry.serde import SchemaId
    try:
        rest = SchemaId(kind).from_bytes(BytesIO(header)).read()
    # Every exception: an end before its time and a number without end have no common class.
    except Exception as error:
        raise ValueError(wrong) from error
    if rest:
        # It would be read as the beginning of the body.
        raise ValueError(f"{wrong}, {size} bytes in all")
    return UUID(bytes=header[1:_GUID_BYTES])
