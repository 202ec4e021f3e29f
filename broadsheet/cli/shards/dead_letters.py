"""`shardctl shards dead-letters`: messages that a shard left out because the application failed at them."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.cli.output.messages import say
from broadsheet.cli.shards.selection import shard_of
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.uuid import Flags, MessageClock, new_producer_id
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, value_of
from broadsheet.wire.shard_pb2 import ShardSpec

_JSON = JsonType()


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter."""

    offset: int
    """In the dead-letter journal, bytes: its name in these commands."""
    fields: dict[str, Any]
    """As it was recorded."""
    digest: bytes
    """Of all that was recorded, and where."""

    @property
    def journal(self) -> str:
        """The source that has the message, without `;meta`."""
        return str(self.fields.get("journal", "")).partition(";")[0]

    @property
    def obstacle(self) -> str:
        """The reason why it cannot be replayed; empty if it can."""
        if not self.fields.get("uuid"):
            return "it is no message, but bytes that could not be read as one"
        if "payload_bytes" in self.fields:
            return "it is too long: the letter has its beginning only"
        return ""

    def published(self) -> Sequence[bytes]:
        """Return the framed message, in pieces, with a UUID that is the letter's own.

        Raises:
            ValidationError: it is no JSON message.
        """
        clock = MessageClock()
        clock.update(datetime.fromisoformat(self.fields["at"]).timestamp())
        publisher = Publisher(clock, new_producer_id(lambda count: self.digest[:count]))
        try:
            message = _JSON.decode(b64decode(self.fields["payload_base64"]))
        except ValueError as error:
            raise ValidationError(
                f"letter {self.offset}", f"is no JSON message: {error}"
            ) from error
        publisher.publish_committed(MappedJournal(self.journal, NDJSON), message, _JSON)
        (append,) = publisher.take_appends()
        return append.content


def letter_journal(spec: ShardSpec) -> str:
    """Return the journal of a shard's dead letters.

    Raises:
        ValidationError: it has none.
    """
    journal = value_of(spec.labels, DEAD_LETTER_JOURNAL)
    if not journal:
        problem = f"shard {spec.id} has no label {DEAD_LETTER_JOURNAL}, so it leaves nothing out"
        raise ValidationError("SHARD", problem)
    return journal


async def letters_of(journals: JournalClient, spec: ShardSpec) -> list[Letter]:
    """Return the dead letters of a shard, oldest first; the journal may have those of others, too.

    Raises:
        ValidationError: the shard has no such journal.
        ServiceError: it cannot be read.
    """
    journal = letter_journal(spec)
    found = []
    async with aclosing(read_committed(journals, journal, _JSON, block=False)) as batches:
        async for batch in batches:
            for offset, flags, payload in zip(
                batch.begins.tolist(), batch.flags.tolist(), batch.payloads, strict=True
            ):
                if flags == Flags.ACK_TXN:
                    continue
                fields = _JSON.decode(payload)
                if fields.get("shard") == spec.id:
                    where = f"{journal}\0{offset}\0".encode()
                    digest = hashlib.blake2b(where + payload).digest()
                    found.append(Letter(offset, fields, digest))
    return found


@command_options
class _DeadLettersOptions:
    shard: ShardId
    output: Output


@cluster_command("dead-letters", _DeadLettersOptions)
async def list_dead_letters(connection: Connection, options: _DeadLettersOptions) -> None:
    """List the messages that a shard left out, and why.

    They are in the journal that the shard's label broadsheet.dev/dead-letter-journal names. LETTER is their offset
    there, by which `shardctl shards replay` knows them.

    \b
    Examples:
      shardctl shards dead-letters flights-000
      shardctl shards dead-letters flights-000 -o json |
          jq -r '.letters[].payload_base64' | base64 -d
    """
    async with connection.shards() as client, connection.journals() as journals:
        found = await letters_of(journals, (await shard_of(client, options.shard)).spec)
    items = [{"letter": each.offset, **each.fields} for each in found]
    columns = ["LETTER", "AT", "JOURNAL", "OFFSET", "CAUSE"]
    if print_list(options.output, "letters", items, columns, map(_row, found)) and not found:
        say(f"shard {options.shard} left nothing out")


def _row(letter: Letter) -> list[str]:
    fields = letter.fields
    cause = " ".join(str(fields.get("cause", "")).split())
    return [
        str(letter.offset),
        str(fields.get("at")),
        letter.journal,
        str(fields.get("begin")),
        cause,
    ]
