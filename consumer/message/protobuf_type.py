"""Protobuf messages, length-prefixed, with their UUID in a `bytes` field."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from consumer.message.framing import PROTOBUF_FIXED
from consumer.message.uuid import NIL_UUID

_UUID_BYTES: Final = 16


class ProtobufType:
    """Messages are of one generated protobuf class."""

    content_type = PROTOBUF_FIXED

    def __init__(self, message_class: type[Message], *, uuid_field: str = "uuid") -> None:
        """Describe messages of `message_class`.

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
        if len(uuid) != _UUID_BYTES:
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
