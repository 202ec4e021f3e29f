"""Protobuf messages of one class, length-prefixed, with their UUID in a field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.content.registry import ContentType
from broadsheet.journals.message.framing import PROTOBUF_FIXED, FixedFraming
from broadsheet.journals.message.types import ProtobufType
from broadsheet.wire.journal_pb2 import LabelSet


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
)
