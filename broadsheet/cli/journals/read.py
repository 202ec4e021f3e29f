"""`shardctl journals read`: a journal's bytes, or its messages as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

import click
import msgspec

from broadsheet.cli.application_name import load_attribute
from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.fragment_options import FRAGMENTS
from broadsheet.cli.names import JournalName
from broadsheet.cli.numbers import OFFSET, OFFSET_OR_HEAD
from broadsheet.cli.options import command_options, flag, option
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.content.registry import content_of
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.reader import MessageSource
from broadsheet.journals.message.uuid import Flags
from broadsheet.journals.topic import message_type_of
from broadsheet.wire.labels import CONTENT_TYPE, value_of


@command_options
class _ReadOptions:
    journal: JournalName
    offset: int = option("First byte; -1 is the write head.", type=OFFSET_OR_HEAD, default=0)
    end_offset: int = option("Stop before this byte.", type=OFFSET, default=0)
    block: bool = flag("Wait for more at the write head, for ever.")
    messages: bool = flag("Committed messages as JSON lines, instead of the bytes.")
    message_type: str | None = option(
        "Class of the messages: needed for protobuf with --messages.", metavar="MODULE:CLASS"
    )
    fragments: Annotated[DirectFragments, FRAGMENTS]


@cluster_command("read", _ReadOptions)
async def read_journal(connection: Connection, options: _ReadOptions) -> None:
    """Write a journal's bytes to standard output.

    With --messages, write its committed messages instead, each once and as JSON, whatever the
    journal's content type: JSON, CSV, protobuf, Arrow or Avro. A message of rows gives a line for each row.

    What is in a fragment store is read there, if it can be, and does not pass through the broker.

    \b
    Examples:
      shardctl journals read my/journal | head
      shardctl journals read my/journal --fragment-root /srv/fragments > copy
      shardctl journals read my/journal --offset -1 --block   # follow it
      shardctl journals read my/rows --messages | jq .delay
    """
    if options.message_type is not None and not options.messages:
        raise click.UsageError("--message-type needs --messages")
    async with connection.journals(options.fragments) as client:
        await (_write_messages if options.messages else _write_bytes)(client, options)


async def _write_bytes(client: JournalClient, options: _ReadOptions) -> None:
    reader = client.reader(
        options.journal, offset=options.offset, block=options.block, end_offset=options.end_offset
    )
    async for span in reader:
        sys.stdout.buffer.write(span.content)
        sys.stdout.buffer.flush()


async def _write_messages(client: JournalClient, options: _ReadOptions) -> None:
    source, content = await _open_messages(client, options.journal, options.message_type)
    read = source.committed(
        offset=options.offset, end_offset=options.end_offset, block=options.block
    )
    async with aclosing(read) as batches:
        async for line in _message_lines(batches, content):
            sys.stdout.buffer.write(line)
            if options.block:
                sys.stdout.buffer.flush()
    sys.stdout.buffer.flush()


async def _open_messages(
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


async def _message_lines(
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
