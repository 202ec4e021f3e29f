"""Messages as a test writes and reads them: mappings, Structs or whatever the application's message type takes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.content.registry import content_of, registered
from broadsheet.journals.message.batch import MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.uuid import Flags, MessageClock, new_producer_id
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, value_of


def as_published(message: Any, message_type: MessageType, *, field: str) -> Any:
    """Return a copy of a message as its type takes it, because publishing writes the UUID into it.

    Args:
        message: A mapping, a Struct, or what the type encodes.
        message_type: Of the journal.
        field: Names the message in errors.

    Raises:
        ValidationError: the mapping is no message of this type.
    """
    if type(message_type) is JsonType and isinstance(message, msgspec.Struct):
        return msgspec.to_builtins(message)
    if isinstance(message, Mapping) and type(message_type) is not JsonType:
        return _of_mapping(message, message_type, field)
    return copy.deepcopy(message)


def _of_mapping(message: Mapping[str, Any], message_type: MessageType, field: str) -> Any:
    content = registered(message_type.content_type)
    if content is None:
        expected = f"expected a message of {type(message_type).__name__}, got a mapping"
        raise ValidationError(field, expected)
    try:
        return content.made_of(message_type, [dict(message)])
    except (ValueError, TypeError) as error:
        raise ValidationError(field, str(error)) from error


class TestProducer:
    """Publishes messages that are committed by themselves."""

    __test__ = False

    def __init__(self, journals: JournalClient) -> None:
        self._journals = journals
        self._clock = MessageClock()
        self._publisher = Publisher(self._clock, new_producer_id())

    async def publish(
        self,
        mapped: MappedJournal,
        messages: Sequence[Any],
        message_type: MessageType,
        *,
        wall_seconds: float,
    ) -> None:
        """Append messages at once, as prepared by `as_published`.

        Raises:
            PublishError: a message cannot be encoded.
        """
        self._clock.update(wall_seconds)
        for message in messages:
            self._publisher.publish_committed(mapped, message, message_type)
        for append in self._publisher.take_appends():
            await self._journals.append(append.journal, append.content)


async def committed(
    journals: JournalClient, spec: JournalSpec, message_type: MessageType | None
) -> list[Any]:
    """Return the messages of a journal as readers see them, without acknowledgements.

    Args:
        journals: Reads the journal.
        spec: The journal's.
        message_type: None: as the journal's content type says; JSON messages are then mappings without `_meta`.
    """
    content_type = value_of(spec.labels, CONTENT_TYPE)
    found: list[Any] = []
    chosen = message_type or _default_type(spec, content_type)
    read = read_committed(journals, spec.name, chosen, block=False)
    async with aclosing(read) as batches:
        async for batch in batches:
            for message, flags in zip(batch.messages(), batch.flags, strict=True):
                if flags == Flags.ACK_TXN:
                    continue
                if message_type is None and isinstance(message, dict):
                    message.pop("_meta", None)
                found.append(message)
    return found


def _default_type(spec: JournalSpec, content_type: str) -> MessageType:
    try:
        return content_of(content_type, journal=spec.name).message_type(spec.labels, None)
    except ValueError as error:
        raise ValidationError(
            "message_type",
            f"expected the type of the messages of {spec.name!r}, which {content_type} alone does not say: {error}",
        ) from error
