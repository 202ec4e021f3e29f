"""Protobuf messages of one class, length-prefixed, with their UUID in a field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError, Message

from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.journals.message.uuid import NIL_UUID, UUID_BYTES
from broadsheet.wire.journal_pb2 import LabelSet

PROTOBUF_FIXED: Final = "application/x-protobuf-fixed"
"""The content type of length-prefixed protobuf messages."""


class ProtobufType:
    """Protobuf messages of one generated class, length-prefixed, with their UUID in a `bytes` field."""

    content_type = PROTOBUF_FIXED

    def __init__(self, message_class: type[Message], *, uuid_field: str = "uuid") -> None:
        """Check that `message_class` has a field for the UUID.

        Raises:
            TypeError: the class has no `bytes` field of that name.
        """
        field = message_class.DESCRIPTOR.fields_by_name.get(uuid_field)
        if field is None or field.type != FieldDescriptor.TYPE_BYTES or field.is_repeated:
            raise TypeError(
                f"{message_class.__name__} needs a field `bytes {uuid_field}` to hold the UUID"
            )
        self._message_class = message_class
        self._uuid_field = uuid_field

    def decode(self, payload: bytes) -> Any:
        """Return the message of a payload."""
        try:
            return self._message_class.FromString(payload)
        except DecodeError as error:
            raise ValueError(f"not a {self._message_class.__name__}: {error}") from error

    def encode(self, message: Any) -> bytes:
        """Return the message's serialization."""
        encoded: bytes = message.SerializeToString()
        return encoded

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the UUID field; zero bytes if it is not set."""
        uuid: bytes = getattr(self.decode(payload), self._uuid_field)
        if not uuid:
            return NIL_UUID
        if len(uuid) != UUID_BYTES:
            raise ValueError(
                f"{self._uuid_field} of {self._message_class.__name__} has {len(uuid)} bytes, expected 16"
            )
        return uuid

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Set the UUID field."""
        setattr(message, self._uuid_field, uuid)

    def new_acknowledgement(self, journal: str) -> Any:
        """Return an empty message."""
        del journal
        return self._message_class()


# ---- The content type ----


def _message_type(labels: LabelSet, message_class: type[Any] | None) -> MessageType:
    del labels
    if message_class is None or not issubclass(message_class, Message):
        raise ValueError(
            f"expected module:Class of the protobuf messages, for they are of {PROTOBUF_FIXED}"
        )
    return ProtobufType(message_class)


def _shown(message: Message) -> list[Any]:
    return [MessageToDict(message, preserving_proto_field_name=True)]


def _made_of(message_type: MessageType, values: Sequence[Any]) -> Any:
    (value,) = values
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    try:
        return ParseDict(value, message_type.new_acknowledgement(""))
    except ParseError as error:
        raise ValueError(str(error)) from error


CONTENT: Final = ContentType(
    name=PROTOBUF_FIXED,
    framing=FixedFraming(),
    message_type=_message_type,
    shown=_shown,
    made_of=_made_of,
    spark_columns="protobuf",
)
