"""Messages of a journal as JSON lines, whatever their content type: `shardctl journals read --messages`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec

from broadsheet.cli.application_name import load_attribute
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.registry import ContentType, content_of
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.reader import MessageSource
from broadsheet.journals.message.uuid import Flags
from broadsheet.journals.topic import message_type_of
from broadsheet.wire.labels import CONTENT_TYPE, value_of


async def open_messages(
    client: JournalClient, journal: str, message_class: str | None
) -> tuple[MessageSource, ContentType]:
    """Return the source of a journal's messages, and the record of its content type.

    Args:
        client: Reads the journal.
        journal: Its name.
        message_class: `package.module:Class` of the messages, for content types that need one.

    Raises:
        ContentTypeError: the journal holds no messages of a known content type.
        ValidationError: the class is missing, or no class of such messages; or a library is not installed.
        ServiceError: there is no such journal.
    """
    spec = (await client.get(journal)).spec
    content = content_of(value_of(spec.labels, CONTENT_TYPE), journal=journal)
    found = load_attribute(message_class, option="--message-type") if message_class else None
    message_type = message_type_of(content, spec, found)
    return MessageSource(client, journal, spec=spec, message_type=message_type), content


async def message_lines(
    batches: AsyncIterator[MessageBatch], content: ContentType
) -> AsyncGenerator[bytes, None]:
    """Yield messages as JSON: a line for each, or for each of its rows; acknowledgements are left out.

    Raises:
        FramingError: bytes are not a message.
    """
    async for batch in batches:
        for flags, message in zip(batch.flags.tolist(), batch.messages(), strict=True):
            if flags != Flags.ACK_TXN:
                for row in content.shown(message):
                    yield msgspec.json.encode(row, enc_hook=_text_of) + b"\n"


def _text_of(value: Any) -> Any:
    """Return a value that JSON has no form for as text."""
    return str(value)
